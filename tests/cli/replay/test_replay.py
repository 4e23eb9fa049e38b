"""`brucectl replay`: kept messages go to Kafka again, and nothing else changes."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.conftest import MESSAGES, PARTITIONS
from tests.cli.program import run
from tests.daemon import RunningBruce, consume


def states(bruce: RunningBruce) -> Path:
    """The folder of its replay states."""
    return bruce.config.with_name("states")


def counted(bruce: RunningBruce, *arguments: object, code: int = 0) -> dict[str, Any]:
    """The output of `brucectl replay --json`; topics as messages by name."""
    done = run("replay", "--json", "--state", states(bruce), *arguments, environ=bruce.environ)
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    return {**report, "topics": {row["topic"]: row["messages"] for row in report["topics"]}}


def replayed(bruce: RunningBruce, *arguments: object, code: int = 0) -> dict[str, Any]:
    """The same with `--yes`."""
    return counted(bruce, "--yes", *arguments, code=code)


def records(kafka: EmbeddedKafka, topic: str, count: int) -> list[Message]:
    """All records of a topic."""
    return consume(kafka.bootstrap_servers, topic, PARTITIONS, count)


def numbers(found: list[Message]) -> list[int]:
    """The numbers that the records carry, in order."""
    return sorted(int(record.value()) for record in found)


def test_a_range_of_one_topic(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Exactly the requested messages arrive again, in order, with their header; the daemon counts nothing."""
    before = delivered.status()
    report = replayed(delivered, "--from", 1001, "--to", 3001, "--topic", "t")
    assert (report["topics"], report["messages"], report["sent"]) == ({"t": 1000}, 1000, 1000)
    assert (report["refused"], report["left"], report["dry_run"], report["kept_from"]) == ({}, 0, False, 0)
    found = records(kafka, "t", MESSAGES // 2 + 1000)
    assert Counter(numbers(found)) == Counter([*range(0, MESSAGES, 2), *range(1002, 3001, 2)])
    assert numbers(records(kafka, "u", MESSAGES // 2)) == list(range(1, MESSAGES, 2))
    for partition in range(PARTITIONS):
        again = [int(r.value()) for r in found if r.partition() == partition]
        again = again[again.index(max(again)) + 1 :]
        assert again == sorted(again)
    ids: dict[int, set[tuple[Any, ...]]] = {}
    since: set[bytes] = set()
    for record in found:
        headers = dict(record.headers())
        since |= {headers.pop("bruce-replay")} if "bruce-replay" in headers else set()
        ids.setdefault(int(record.value()), set()).add(
            (record.key(), record.timestamp(), record.partition(), *headers.items())
        )
    assert all(len(same) == 1 for same in ids.values())
    # One replay, one time, in ms and digits.
    assert len(since) == 1
    assert 0 <= time.time() - int(since.pop()) / 1000 < 3600
    assert sum("bruce-replay" in dict(record.headers()) for record in found) == 1000
    assert not list(states(delivered).iterdir())
    after = delivered.status()
    assert (after.received, after.delivered, after.backlog) == (before.received, before.delivered, 0)


def test_messages_that_cannot_be_read(delivered: RunningBruce) -> None:
    """A count says how many are on the way: all of a damaged frame that are in the range asked for."""
    assert counted(delivered)["unreadable"] == 0
    first = min(delivered.spool.glob("segments/*.se*"))
    with first.open("r+b") as file:
        file.seek(4096 + 200)
        file.write(os.urandom(16))
    report = counted(delivered)
    assert report["messages"] + report["unreadable"] == MESSAGES
    assert report["unreadable"] > 1
    parts = [counted(delivered, side, 6)["unreadable"] for side in ("--to", "--from")]
    assert sum(parts) == report["unreadable"]
    done = run("replay", "--state", states(delivered), environ=delivered.environ)
    assert f"{report['unreadable']} messages on the way cannot be read" in done.stderr


def test_to_another_topic(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """`--to-topic` sends everything there, by that topic's partitioner."""
    kafka.topic("again", PARTITIONS)
    report = replayed(delivered, "--from", 0, "--to-topic", "again")
    assert (report["topics"], report["sent"]) == ({"t": 2000, "u": 2000}, MESSAGES)
    found = records(kafka, "again", MESSAGES)
    assert numbers(found) == list(range(MESSAGES))
    assert all(r.partition() == int(r.value()) % 5 % PARTITIONS for r in found)


@pytest.mark.long
def test_by_whose_they_are(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """`--key`, `--partition-key` and `--uid` choose messages, each by any of its values, combined by AND."""
    kafka.topic("again", PARTITIONS)
    to = ("--to-topic", "again")
    assert replayed(delivered, "--key", "k17", "--key", "k18", "--key", "k1", *to)["sent"] == 3
    chosen = ("--partition-key", "3", "--from", 0, "--to", 100)
    assert replayed(delivered, *chosen, "--uid", os.getuid(), *to)["topics"] == {"t": 10, "u": 10}
    assert counted(delivered, *chosen, "--uid", os.getuid() + 1)["messages"] == 0
    assert counted(delivered, *chosen, "--key", "k13", "--key", "k14")["messages"] == 1
    assert numbers(records(kafka, "again", 23)) == sorted([1, 17, 18, *range(3, 100, 5)])


def test_by_time(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Times are those of reception: messages before and after the range are not sent."""
    bruce.send(encode(b"t", b"%d" % n) for n in range(10))
    bruce.await_status(lambda s: s.watermarks.written == 10)
    time.sleep(0.2)
    start = time.time()
    bruce.send(encode(b"t", b"%d" % n) for n in range(10, 20))
    bruce.await_status(lambda s: s.watermarks.written == 20)
    end = time.time() + 0.1
    time.sleep(0.3)
    bruce.send(encode(b"t", b"%d" % n) for n in range(20, 30))
    bruce.await_status(lambda s: s.delivered == 30)
    local = [
        time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) + f"{at % 1:.6f}"[1:] for at in (start, end)
    ]
    assert replayed(bruce, "--from", local[0], "--to", local[1])["sent"] == 10
    assert numbers(records(kafka, "t", 40)) == sorted([*range(30), *range(10, 20)])
    assert counted(bruce, "--from", "-1h", "--to", "-30m")["messages"] == 0
    assert counted(bruce, "--from", "-1h")["messages"] == 30


def test_without_the_stamp(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """`[dispatch] stamp = false` holds for replayed messages too; a dead daemon is no obstacle."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"stamp": False}}) as bruce:
        bruce.send(encode(b"t", b"%d" % n) for n in range(10))
        bruce.await_status(lambda s: s.delivered == 10)
        bruce.kill9()
        assert replayed(bruce, "--from", 5)["sent"] == 5
        found = records(kafka, "t", 15)
        assert numbers(found) == sorted([*range(10), *range(5, 10)])
        assert all(set(dict(record.headers() or [])) <= {"bruce-replay"} for record in found)


def test_beside_intake(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Messages that come meanwhile are delivered once; the replay ends at the former end of the log."""
    stop = threading.Event()
    sent = []

    def keep_sending() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(delivered.socket))
            while not stop.is_set():
                sender.send(encode(b"u", b"%d" % (MESSAGES + len(sent))))
                sent.append(1)
                time.sleep(0.001)

    thread = threading.Thread(target=keep_sending)
    thread.start()
    try:
        report = replayed(delivered, "--from", 0, "--topic", "t")
    finally:
        stop.set()
        thread.join(60)
    assert report["sent"] == 2000
    delivered.await_status(lambda s: s.backlog == 0 and s.delivered == MESSAGES + len(sent))
    assert numbers(records(kafka, "u", 2000 + len(sent))) == [
        *range(1, MESSAGES, 2),
        *range(MESSAGES, MESSAGES + len(sent)),
    ]


@pytest.mark.long
def test_a_broker_that_comes_back(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A failure on the way does not end the replay: unacknowledged messages are sent again."""
    kafka.down()
    timer = threading.Timer(2, kafka.up)
    timer.start()
    try:
        assert replayed(delivered, "--from", 0, "--to", 500)["sent"] == 500
    finally:
        timer.join(60)
    found = numbers(records(kafka, "t", 2250))
    assert set(range(0, MESSAGES, 2)) == set(found)


def test_what_is_no_longer_kept(delivered: RunningBruce) -> None:
    """Removed segments are reported; the rest is counted."""
    delivered.stop()
    layout = Layout(delivered.spool)
    first, second = layout.list_segments()[:2]
    layout.segment(*first).unlink()
    kept = second[0]
    done = run("replay", "--from", 1, environ=delivered.environ)
    assert done.stderr.splitlines()[-2] == f"messages below {kept} are no longer kept"
    assert done.returncode == 0
    assert sum(int(line.split("\t")[1]) for line in done.stdout.splitlines()) == MESSAGES - kept
