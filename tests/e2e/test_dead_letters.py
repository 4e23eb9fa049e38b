"""`bruce run`: what Kafka will never take is dead-lettered, or discarded and kept, listed, and sent again."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from spool.format.wire import encode
from spool.marks.discard_file import read_discard_file
from tests.daemon import RunningBruce, consume

PRODUCE = 0
PARTITIONS = 2
NO_AUTO = {"allow.auto.create.topics": False}
SMALL = {"message.max.bytes": 2000}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers; the topics `t` and `dead`."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS), ("dead", PARTITIONS)]) as running:
        yield running


def message(number: int, topic: bytes = b"t", size: int = 10) -> bytes:
    """A keyed, numbered message."""
    value = b"%d:" % number + b"." * size
    at = 1_700_000_000_000 + number
    return encode(topic, value, key=b"k%d" % number, timestamp=at, partition_key=number)


def read(kafka: EmbeddedKafka, topic: str, count: int) -> list[Message]:
    """All records of a topic."""
    return consume(kafka.bootstrap_servers, topic, PARTITIONS, count, 60)


def discards(bruce: RunningBruce, *arguments: str) -> dict[str, Any]:
    """The output of `brucectl discards --json`."""
    done = bruce.brucectl("discards", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_dead_letters(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Too large, refused for its content, of no topic: records as documented, counts, and the list."""
    settings = {
        "kafka": NO_AUTO | SMALL,
        "dispatch": {"dead_letter_topic": "dead", "unknown_topic_seconds": 1},
    }
    before = time.time_ns() // 1_000_000
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        # The client's own limit holds for dead letters too.
        sent = [message(0), message(1, b"none"), message(2, size=3000), message(3)]
        bruce.send(sent)
        bruce.await_status(lambda s: s.backlog == 0 and s.received == 4)
        kafka.errors(PRODUCE, [Code.INVALID_RECORD] * 2)
        sent.append(message(4))
        bruce.send(sent[4:])
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 5)
        assert seen.delivered == 2
        assert seen.discarded == {"unknown_topic": 1, "too_large": 1, "invalid_record": 1}
        assert seen.dead_lettered == 2
        spool = uuid.UUID(seen.spool.uuid).bytes
        listed = discards(bruce)
    after = time.time_ns() // 1_000_000
    assert listed["version"] == 1
    assert [(d["topic"], d["reason"], d["messages"], d["dead_lettered"]) for d in listed["discards"]] == [
        ("none", "unknown_topic", 1, 1),
        ("t", "invalid_record", 1, 1),
        ("t", "too_large", 1, 0),
    ]
    assert [(s["sequence"], s["reason"]) for s in listed["samples"]] == [(2, "too_large")]
    found = {record.key(): record for record in read(kafka, "dead", 2)}
    for number, topic, reason in ((1, b"none", b"unknown_topic"), (4, b"t", b"invalid_record")):
        record = found.pop(b"k%d" % number)
        headers = dict(record.headers() or [])
        assert record.value() == sent[number]
        first, last = int(headers.pop("bruce-first-attempt")), int(headers.pop("bruce-last-attempt"))
        assert before <= first <= last <= record.timestamp()[1] <= after
        assert headers == {
            "bruce-reason": reason,
            "bruce-topic": topic,
            "bruce-id": spool + number.to_bytes(8, "big"),
        }
    assert found == {}


@pytest.mark.long
@pytest.mark.crash
def test_killed_while_dead_lettering(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """SIGKILL again and again: each letter is there, and counts once; the others are delivered."""
    settings = {"kafka": NO_AUTO, "dispatch": {"dead_letter_topic": "dead", "unknown_topic_seconds": 0}}
    count = 6000
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.send(message(n, b"none" if n % 2 else b"t") for n in range(count))
        for share in (0.05, 0.3, 0.6):
            bruce.await_status(lambda s, share=share: s.dead_lettered >= share * count / 2)
            bruce.kill9()
            bruce.start()
        seen = bruce.await_status(lambda s: s.backlog == 0, 60)
    assert (seen.received, seen.delivered, seen.dead_lettered) == (count, count // 2, count // 2)
    assert seen.discarded == {"unknown_topic": count // 2}
    letters = read(kafka, "dead", count // 2)
    keys = Counter(record.key() for record in letters)
    assert keys.keys() == {b"k%d" % n for n in range(1, count, 2)}
    # The messages in flight, and those acknowledged and not yet marked.
    assert keys.total() < count


@pytest.mark.crash
def test_killed_between_commit_and_marks(tmp_path: Path) -> None:
    """Exactly once: Kafka has the letters, and no mark says so; the successor counts them as dead letters."""
    points = tmp_path / "points"
    points.write_text("mark.acknowledged\n" * 2)
    settings = {
        "kafka": NO_AUTO,
        "dispatch": {"mode": "exactly_once", "dead_letter_topic": "dead", "unknown_topic_seconds": 0},
    }
    topics = [("t", PARTITIONS), ("dead", PARTITIONS), ("bruce-progress", 1)]
    with EmbeddedKafka(brokers=1, topics=topics) as kafka:
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
        bruce.environ["BRUCE_CRASH_POINTS"] = str(points)
        with bruce:
            bruce.send(message(n, b"none") for n in range(20))
            bruce.await_true(lambda: len(points.read_text().splitlines()) < 2)
            bruce.await_status(lambda s: s.backlog == 0 and s.dead_lettered == 20)
            bruce.send(message(n, b"none" if n % 2 else b"t") for n in range(20, 40))
            bruce.await_true(lambda: points.read_text() == "")
            seen = bruce.await_status(lambda s: s.received == 40 and s.backlog == 0)
            assert (seen.received, seen.delivered, seen.dead_lettered) == (40, 10, 30)
            assert seen.discarded == {"unknown_topic": 30}
            listed = discards(bruce)["discards"]
            assert [(d["topic"], d["reason"], d["messages"], d["dead_lettered"]) for d in listed] == [
                ("none", "unknown_topic", 30, 30)
            ]
        keys = [record.key() for record in read(kafka, "dead", 30)]
    assert sorted(keys) == sorted(b"k%d" % n for n in range(40) if n < 20 or n % 2)


def test_discarded_and_sent_again(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The file has them; a dry run counts them; with the limit raised they are delivered."""
    path = tmp_path / "discards"
    settings = {"kafka": NO_AUTO | SMALL, "dispatch": {"discard_file": str(path)}}
    sent = [message(n, size=3000 if n % 5 == 0 else 10) for n in range(50)]
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.send(sent)
        bruce.send([b"", b"short"])
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 52)
        assert (seen.delivered, seen.discarded) == (40, {"short": 2, "too_large": 10})
        assert sorted(one.datagram for one in read_discard_file(path)) == sorted(sent[::5])
        listed = discards(bruce, "--samples", "3")
        rows = {(d["topic"], d["reason"]): d for d in listed["discards"]}
        assert rows["t", "too_large"]["messages"] == 10
        assert rows[None, "short"]["messages"] == 2
        assert all(row["first"] <= row["last"] for row in rows.values())
        samples = [s for s in listed["samples"] if s["reason"] == "too_large"]
        assert len(samples) == 3
        # One message of a burst is kept.
        assert "" in {s["data"] for s in listed["samples"] if s["reason"] == "short"}
        text = bruce.brucectl("discards", "--reason", "too_large").stdout.decode()
        assert text.splitlines()[0].startswith("t\ttoo_large\t10\t0\t")
        assert "short" not in text
        bruce.stop()
        bruce.config.write_text(bruce.config.read_text().replace("2000", "200000"))
        bruce.start()
        dry = json.loads(bruce.brucectl("replay", "--discards", "--json").stdout)
        assert [(row["topic"], row["messages"]) for row in dry["topics"]] == [("t", 10)]
        assert (dry["messages"], dry["sent"], dry["left"]) == (10, 0, 10)
        assert bruce.status().received == 52
        done = json.loads(bruce.brucectl("replay", "--discards", "--from", "0", "--yes", "--json").stdout)
        assert (done["messages"], done["sent"], done["left"]) == (10, 10, 0)
        seen = bruce.await_status(lambda s: s.delivered == 50)
        assert seen.received == 62
    found = {record.key(): record for record in read(kafka, "t", 50)}
    assert found.keys() == {b"k%d" % n for n in range(50)}
    assert len(found[b"k5"].value() or b"") == 3002


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["replay", "--discards", "--from", "0", "--yes"],
            2,
            "no discard file is kept: name one in [dispatch] discard_file",
        ),
        (
            ["discards", "--reason", "bad_luck"],
            2,
            "there is no reason 'bad_luck'; bruce-spool(5) has them all",
        ),
        (["discards", "--spool", "/nowhere"], 3, "/nowhere holds no spool; see [spool] directory"),
    ],
)
def test_mistakes(kafka: EmbeddedKafka, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """One sentence and an exit code."""
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers)
    done = bruce.brucectl(*arguments)
    bruce.close()
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", words + "\n")
