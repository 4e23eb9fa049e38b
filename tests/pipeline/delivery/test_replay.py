"""A replay sends what was asked for, as it went at first, with a header that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from spool.format.wire import encode, encode_message
from spool.read.selection import Wanted
from tests.daemon import consume
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and topics of three partitions."""
    with EmbeddedKafka(brokers=1, topics=[("clicks", 3), ("views", 3), ("again", 3)]) as running:
        yield running


def fill(spool: SpoolFixture, count: int) -> None:
    """Messages of two topics, ten received in each second."""
    for first in range(0, count, 10):
        spool.append(
            [
                encode((b"clicks", b"views")[i % 2], b"%d" % i, key=b"k", timestamp=i, partition_key=i % 5)
                for i in range(first, min(first + 10, count))
            ],
            received_ns=START + first // 10 * SECOND,
        )
    spool.step()
    spool.crash()


def test_what_is_asked_for_goes_again(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """By time, number and topic, to another topic: as stored, both headers, in order; without marks."""
    from pipeline.delivery.replay import StoredMessages, dry, run_replay
    from spool.read.selection import TopicCount

    fill(spool, 200)
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    kept = StoredMessages(spark, [str(spool.options.directory)], archive=False)
    topics = frozenset([b"clicks"])
    wanted = Wanted(end=155, from_ns=START + 5 * SECOND, to_ns=START + 17 * SECOND, topics=topics)
    expected = list(range(50, 155, 2))
    counted = dry(kept, wanted)
    assert counted.topics == [
        TopicCount("clicks", len(expected), START + 5 * SECOND, START + 15 * SECOND),
    ]
    assert (counted.messages, counted.sent, counted.left) == (len(expected), 0, len(expected))
    done = run_replay(kept, wanted, options, {}, to_topic="again")
    assert (done.messages, done.sent, done.left, done.gone) == (len(expected), len(expected), 0, 0)
    assert (done.topics, done.unknown, done.refused) == (counted.topics, [], {})
    records = consume(kafka.bootstrap_servers, "again", 3, len(expected))
    assert sorted(int(record.value() or b"") for record in records) == expected
    last: dict[int | None, int] = {}
    for record in records:
        number, headers = int(record.value() or b""), dict(record.headers() or [])
        assert headers["bruce-id"] == spool.identity.spool + number.to_bytes(8, "big")
        assert len(headers["bruce-replay"]) == len("1700000000000")
        assert headers["bruce-replay"].isdigit()
        assert (record.key(), record.timestamp()[1], record.partition()) == (b"k", number, number % 5 % 3)
        assert last.get(record.partition(), -1) < number
        last[record.partition()] = number
    assert not (spool.layout.delivery / "data.mdb").exists()


def test_a_partition_that_the_other_topic_lacks(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """That is the reason in the result; the others go to the partitions that their senders named."""
    from pipeline.delivery.replay import StoredMessages, run_replay

    spool.append([encode_message(b"clicks", b"%d" % n, partition=n) for n in (2, 3, 0)])
    spool.step()
    spool.crash()
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    kept = StoredMessages(spark, [str(spool.options.directory)], archive=False)
    done = run_replay(kept, Wanted(), options, {}, to_topic="again")
    assert (done.messages, done.sent, done.refused, done.left) == (3, 2, {"partition": 1}, 0)
    records = consume(kafka.bootstrap_servers, "again", 3, 2)
    assert sorted((record.partition(), record.value()) for record in records) == [(0, b"0"), (2, b"2")]


@pytest.mark.oldest_spark
def test_an_archive_goes_again(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path
) -> None:
    """The same from an archive, whose spool is gone: each message once, with the header of its stored."""
    from pipeline.archive.job import READ, shelve
    from pipeline.delivery.replay import StoredMessages, run_replay
    from pipeline.spark_engine import SparkEngine

    fill(spool, 100)
    stored = SparkEngine(spark).spools([str(spool.options.directory)], READ)
    shelve(stored).write.partitionBy("topic", "date").parquet(str(tmp_path / "archive"))
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    kept = StoredMessages(spark, [str(tmp_path / "archive")], archive=True)
    done = run_replay(kept, Wanted(first=10), options, {"clicks": "murmur2"})
    assert (done.messages, done.sent, done.left, done.gone) == (90, 90, 0, 0)
    found = [
        *consume(kafka.bootstrap_servers, "clicks", 3, 45),
        *consume(kafka.bootstrap_servers, "views", 3, 45),
    ]
    ids = sorted(dict(record.headers() or [])["bruce-id"] for record in found)
    assert ids == [spool.identity.spool + number.to_bytes(8, "big") for number in range(10, 100)]


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("archive", [False, True])
def test_by_whose_they_are(
    spark: SparkSession, spool: SpoolFixture, tmp_path: Path, *, archive: bool
) -> None:
    """By key, an empty one too, by partition key and by sender, as `brucectl replay` has it."""
    from pipeline.archive.job import READ, shelve
    from pipeline.delivery.replay import StoredMessages, dry
    from pipeline.spark_engine import SparkEngine

    for uid in (0, 1000):
        spool.append(
            [
                encode(
                    b"clicks",
                    b"v",
                    key=(b"", b"k\xff", b"k2")[i % 3],
                    partition_key=(None, -3, 7)[i // 3 % 3],
                )
                for i in range(18)
            ],
            sender=(uid, 1),
        )
    spool.append([encode_message(b"clicks", b"v", key=b""), encode_message(b"clicks", b"v")], sender=(7, 1))
    spool.step()
    spool.crash()
    path = str(spool.options.directory)
    if archive:
        stored = SparkEngine(spark).spools([path], READ)
        path = str(tmp_path / "archive")
        shelve(stored).write.partitionBy("topic", "date").parquet(path)
    kept = StoredMessages(spark, [path], archive=archive)
    for wanted, expected in (
        (Wanted(keys=frozenset([b"k\xff"])), 12),
        (Wanted(keys=frozenset([b"", b"k2"])), 26),
        (Wanted(partition_keys=frozenset([-3])), 12),
        (Wanted(partition_keys=frozenset([-3, 7]), keys=frozenset([b"k2"])), 8),
        (Wanted(uids=frozenset([1000])), 18),
        (Wanted(uids=frozenset([1000, 0]), first=35), 1),
        (Wanted(uids=frozenset([5])), 0),
    ):
        assert dry(kept, wanted).messages == expected


def test_what_goes_before_it_is_sent(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that retention takes behind the count: their messages are counted as gone, the others sent.

    Messages left out for another reason are counted apart.
    """
    from pipeline.delivery import replay

    for first in range(0, 120, 4):
        spool.append(
            [
                encode((b"clicks", b"no such topic")[i % 2], b"%d" % i + bytes(900))
                for i in range(first, first + 4)
            ]
        )
        spool.step()
    spool.crash()
    starts = [first for first, _ in spool.layout.list_segments()]
    assert len(starts) > 3
    send = replay.send

    def late(*arguments: Any) -> Any:
        for pair in spool.layout.list_segments()[:2]:
            spool.layout.segment(*pair).unlink()
        return send(*arguments)

    monkeypatch.setattr(replay, "send", late)
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, unknown_topic_seconds=0)
    kept = replay.StoredMessages(spark, [str(spool.options.directory)], archive=False)
    done = replay.run_replay(kept, Wanted(), options, {})
    gone = starts[2] // 2
    assert (done.messages, done.sent, done.gone, done.left) == (120, 60 - gone, gone, 60)
    assert done.unknown == ["no such topic"]
    found = consume(kafka.bootstrap_servers, "clicks", 3, done.sent)
    assert sorted(int((record.value() or b"").rstrip(b"\0")) for record in found) == list(
        range(starts[2], 120, 2)
    )


@pytest.mark.long
def test_what_went_since_it_was_counted(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Segments are removed behind a dry run, and more behind a replay that was interrupted: all are counted.

    Behind one that sent all, nothing is compared any more.
    """
    from pipeline.delivery.replay import Note, StoredMessages, dry, run_replay

    for first in range(0, 120, 4):
        spool.append([encode(b"clicks", b"%d" % i + bytes(900)) for i in range(first, first + 4)])
        spool.step()
    spool.crash()
    starts = [first for first, _ in spool.layout.list_segments()]
    assert len(starts) > 3
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    path = tmp_path / "notes" / "note.json"

    def kept() -> StoredMessages:
        found = StoredMessages(spark, [str(spool.options.directory)], archive=False)
        found.note = Note(path)
        return found

    assert dry(kept(), Wanted()).messages == 120
    for at in (1, 2):
        spool.layout.segment(*spool.layout.list_segments()[0]).unlink()
        # The first has no time for any message, as if it had been interrupted.
        done = run_replay(kept(), Wanted(), options, {}, timeout_s=0 if at == 1 else None)
        assert (done.messages, done.gone) == (120, starts[at])
        assert path.exists() == (at == 1)
    assert (done.sent, done.left) == (120 - starts[2], 0)
    again = run_replay(kept(), Wanted(), options, {})
    assert (again.messages, again.gone, path.exists()) == (120 - starts[2], 0, False)


def test_what_went_counts_only_where_it_is_asked_for() -> None:
    """By what is kept, by what was seen once more, and by the times that are meant now; no note, no count."""
    from pipeline.delivery.replay import Counted, Note, count_gone

    rows = [Counted("a", number, "clicks", 10, number * SECOND, (number + 1) * SECOND) for number in range(5)]
    wanted = Wanted(from_ns=2 * SECOND, to_ns=4 * SECOND)
    assert count_gone(rows, [], {"a": {3}}, Wanted()) == 40
    assert count_gone(rows, rows[:1], {"a": {3}}, Wanted()) == 30
    assert count_gone(rows, [], {"a": {3}}, wanted) == 20
    assert count_gone(rows, [], {"b": {3}}, wanted) == 30
    assert Note(Path("/nowhere/at/all")).read() == []
