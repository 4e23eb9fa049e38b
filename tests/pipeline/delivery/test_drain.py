"""A drain delivers what spools hold, once, and the marks know it: `brucectl spark drain` and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from spool.format.wire import Reason, encode, encode_message
from spool.index.segment_list import SegmentList
from spool.marks.discard_file import read_discard_file
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.marks.task_files import read_transactional_tasks
from spool.read.overview import take_totals
from tests.spark import Done
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers, and topics of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("clicks", 3), ("views", 3)]) as running:
        yield running


def fill(spool: SpoolFixture, count: int, topics: tuple[bytes, ...] = (b"clicks", b"views")) -> None:
    """Messages with five partition keys; then the spool is left as a daemon that ended leaves it."""
    for first in range(0, count, 10):
        numbers = range(first, min(first + 10, count))
        spool.append(
            [encode(topics[i % len(topics)], b"%d" % i, timestamp=i, partition_key=i % 5) for i in numbers]
        )
    spool.step()
    spool.crash()


def mark(
    spool: SpoolFixture, *sequences: int, low_watermark: int = 0, history: list[tuple[int, int]] | None = None
) -> None:
    """Have the marks say that these are delivered, and how many partitions the topic clicks had."""
    bitmap = np.zeros(2008, np.uint8)
    first = min(start for start, _ in spool.layout.list_segments())
    for sequence in sequences:
        bitmap[(sequence - first) >> 3] |= 1 << ((sequence - first) & 7)
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    partitions = {b"clicks": history} if history else {}
    marks.commit(Changes(low_watermark, chunks={(1, 0): bitmap}, partitions=partitions))
    marks.close()


def in_kafka(spark: SparkSession, kafka: EmbeddedKafka) -> list[Row]:
    """All records, in order within their partitions."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    frame = spark.read.format("bruce-kafka").options(**properties).load()
    return frame.orderBy("topic", "partition", "offset").collect()


def run(spark: SparkSession, kafka: EmbeddedKafka, *spools: SpoolFixture, **more: Any) -> Any:
    """Drain these spools."""
    from pipeline.delivery.drain import run_drain

    settings = more.pop("options", {"unknown_topic_seconds": 0})
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, **settings)
    return run_drain(lambda: spark, [str(spool.options.directory) for spool in spools], options, {}, **more)


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_a_drain_delivers_what_the_marks_do_not_have(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, second_spool: SpoolFixture
) -> None:
    """It delivers two spools, in order within each partition; a second drain finds nothing to do."""
    fill(spool, 300)
    fill(second_spool, 100)
    mark(spool, 2, 7, 11, low_watermark=1)
    done = run(spark, kafka, spool, second_spool)
    assert (done.messages, done.delivered, done.left, done.refused) == (396, 396, 0, {})
    assert done.topics == {"clicks": 148 + 50, "views": 148 + 50}
    rows = in_kafka(spark, kafka)
    for made, expected in (
        (spool, sorted(set(range(300)) - {0, 2, 7, 11})),
        (second_spool, list(range(100))),
    ):
        ours = [row for row in rows if row.bruce_spool == made.identity.spool.hex()]
        assert sorted(row.bruce_sequence for row in ours) == expected
        for place in {(row.topic, row.partition) for row in ours}:
            sent = [row.bruce_sequence for row in ours if (row.topic, row.partition) == place]
            assert sent == sorted(sent)
            assert {(n % 5) % 3 for n in sent} == {place[1]}
        assert take_totals(made.layout, list).backlog == 0
        assert not list(made.layout.outcomes.rglob("*.out"))
        marks = Marks(made.layout.delivery, SegmentList(made.layout), readonly=True)
        assert marks.partitions() == {b"clicks": [(0, 3)], b"views": [(0, 3)]}
        marks.close()
    from pipeline.delivery.drain import run_drain

    def start() -> SparkSession:
        raise AssertionError("a session was started for nothing")

    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    again = run_drain(start, [str(made.options.directory) for made in (spool, second_spool)], options, {})
    assert (again.messages, again.delivered, again.left) == (0, 0, 0)
    assert len(in_kafka(spark, kafka)) == 396


@pytest.mark.long
@pytest.mark.spark
def test_a_topic_that_grew_keeps_its_count_for_what_waits(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """With two partitions in the marks and three in Kafka, a key stays where its predecessors went."""
    fill(spool, 50, (b"clicks",))
    mark(spool, history=[(0, 2)])
    assert run(spark, kafka, spool).left == 0
    assert {(row.bruce_sequence % 5 % 2, row.partition) for row in in_kafka(spark, kafka)} == {(0, 0), (1, 1)}


@pytest.mark.spark
def test_what_cannot_be_delivered_stays(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, job: Callable[..., Done], tmp_path: Path
) -> None:
    """Messages of a topic that Kafka lacks are left, and reported by name and number; others are delivered.

    No mark says that these are done: the next drain finds them again, and exits 1.
    """
    fill(spool, 40, (b"clicks", b"no such topic"))
    done = run(spark, kafka, spool)
    assert (done.messages, done.delivered, done.left, done.unknown) == (40, 20, 20, ["no such topic"])
    assert done.as_json()["unknown_messages"] == {"no such topic": 20}
    account = take_totals(spool.layout, list)
    assert (account.backlog, account.delivered, account.discarded) == (20, 20, [])
    config = tmp_path / "bruce.toml"
    config.write_text(
        f'[kafka]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n[dispatch]\nunknown_topic_seconds = 0\n'
    )
    said = job("drain", spool.options.directory, "--config", config)
    assert said.returncode == 1
    assert said.stdout.startswith("not drained: 0 of 20 messages delivered in ")
    assert said.stdout.endswith("20 left; Kafka does not have the topic no such topic (20 messages)\n")
    assert take_totals(spool.layout, list).backlog == 20


@pytest.mark.spark
@pytest.mark.parametrize("keeps", [True, False])
def test_what_kafka_refuses(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path, *, keeps: bool
) -> None:
    """It is discarded with its reason, and in the discard file, where there is one."""
    sent = [encode(b"clicks", bytes(5000 if i == 3 else 5), partition_key=1) for i in range(10)]
    spool.append(sent)
    spool.step()
    spool.crash()
    kafka_properties = {"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": "4000"}
    path = tmp_path / "discards"
    more = {"discard_file": path} if keeps else {}
    done = run_with(spark, spool, DispatchOptions(kafka=kafka_properties, **more))
    assert (done.delivered, done.refused, done.left) == (9, {"too_large": 1}, 0)
    account = take_totals(spool.layout, list)
    assert (account.backlog, account.delivered, account.by_reason()) == (0, 9, {Reason.TOO_LARGE: 1})
    kept = [(one.sequence, one.reason, one.datagram) for one in read_discard_file(path)]
    assert kept == ([(3, Reason.TOO_LARGE, sent[3])] if keeps else [])


@pytest.mark.spark
@pytest.mark.parametrize("letters", [pytest.param("", marks=pytest.mark.long), "dead"])
@pytest.mark.parametrize("mode", ["at_least_once", pytest.param("exactly_once", marks=pytest.mark.long)])
def test_partitions_that_senders_name(
    spark: SparkSession, spool: SpoolFixture, mode: str, letters: str
) -> None:
    """Each message goes to its own; if its topic lacks that, it is discarded for this, beside partition 0.

    Of a topic that Kafka does not have it is left. A second drain has nothing to do but that.
    """
    named = [2, 0, 3, 0, -1, 1, 2**31 - 1, 0]
    spool.append([encode_message(b"clicks", b"%d" % i, partition=n) for i, n in enumerate(named)])
    spool.append([encode_message(b"no such topic", b"8", partition=0)])
    spool.step()
    spool.crash()
    topics = [("clicks", 3), ("dead", 1), ("bruce-progress", 1)]
    with EmbeddedKafka(brokers=1, topics=topics) as kafka:
        more = {"mode": mode, "dead_letter_topic": letters, "unknown_topic_seconds": 0}
        for names, found in ((4, (9, 5, {"partition": 3}, 1)), (1, (1, 0, {}, 1))):
            done = run(spark, kafka, spool, options=more)
            assert (done.messages, done.delivered, done.refused, done.left) == found
            tasks = read_transactional_tasks(spool.layout)
            # With the one for messages without a partition: the next process that delivers closes it, too.
            assert (tasks.names if tasks else 0) == (names if mode == "exactly_once" else 0)
        rows = [row for row in in_kafka(spark, kafka) if row.topic == "clicks"]
        dead = [row for row in in_kafka(spark, kafka) if row.topic == "dead"]
    assert [(row.partition, row.bruce_sequence) for row in rows] == [(0, 1), (0, 3), (0, 7), (1, 5), (2, 0)]
    assert sorted(row.bruce_sequence for row in dead) == ([2, 4, 6] if letters else [])
    account = take_totals(spool.layout, list)
    assert (account.backlog, account.delivered) == (1, 5)
    assert account.by_reason() == {Reason.PARTITION: 3}


def run_with(spark: SparkSession, spool: SpoolFixture, options: DispatchOptions) -> Any:
    """Drain one spool by these options."""
    from pipeline.delivery.drain import run_drain

    return run_drain(lambda: spark, [str(spool.options.directory)], options, {})
