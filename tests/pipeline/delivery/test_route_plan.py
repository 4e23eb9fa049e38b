"""Exactly once by Spark: whoever tries a task again finds what was delivered, and sends the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from dispatch.transactions.closing import epoch_of
from dispatch.transactions.progress import (
    Deliverer,
    encode,
    task_transactional_id,
    transactional_id,
)
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from pipeline.delivery.route_plan import read_segments
from pipeline.delivery.task_book import TaskBook, open_topic
from pipeline.spark_release import READ_LIMITS, has
from spool.format.wire import encode as encode_message
from spool.marks.outcome_file import list_outcomes, read_outcomes
from spool.read.overview import take_totals
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BY = Deliverer(bytes(16), "here", 1)
LIMIT = {"maxBytesPerTrigger": "4000"} if has(READ_LIMITS) else {}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers, and a topic of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("clicks", 3), ("bruce-progress", 1)]) as running:
        yield running


def numbers(*some: int) -> Any:
    """As sequences."""
    return np.array(some, np.int64)


def fill(spool: SpoolFixture, count: int) -> None:
    """Messages with five partition keys."""
    for first in range(0, count, 10):
        spool.append(
            [encode_message(b"clicks", b"%d" % i, partition_key=i % 5) for i in range(first, first + 10)]
        )
    spool.step()


@pytest.mark.spark
def test_a_task_that_runs_again_sends_nothing(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Its first run wrote no outcomes: the second finds all in Kafka, reports all, and sends none.

    A third one sends nothing either: it finds what the second wrote down, and Kafka's record no more.
    """
    from pipeline.delivery.choice import Routes
    from pipeline.delivery.route import route
    from pipeline.delivery.sink import Delivery, arrange, deliver

    fill(spool, 200)
    uuid = spool.identity.spool.hex()
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, mode="exactly_once")
    segments = read_segments(spool.layout)
    stored = spark.read.format("bruce").load(str(spool.options.directory))
    placed = route(stored, Routes({"clicks": np.ones(3, np.bool_)}))
    arranged = arrange(placed, in_transactions=True)
    (tmp_path / "out").mkdir()
    for outcomes in ({}, *[{uuid: str(tmp_path / "out")}] * 2):
        delivery = Delivery(options, "job", outcomes, segments={uuid: segments})
        told = deliver(arranged, delivery).collect()
        assert sorted((row.sequence, row.reason) for row in told) == [(i, 0) for i in range(200)]
        frame = spark.read.format("bruce-kafka").option("bootstrap.servers", kafka.bootstrap_servers)
        rows = frame.option("topics", "clicks").load().orderBy("partition", "offset").collect()
        assert sorted(row.bruce_sequence for row in rows) == list(range(200))
        for partition in range(3):
            sent = [row.bruce_sequence for row in rows if row.partition == partition]
            assert sent == sorted(sent)
    files = [read_outcomes(path) for path in list_outcomes(tmp_path / "out")]
    assert set(np.concatenate([file.sequences for file in files]).tolist()) == set(range(200))


@pytest.mark.sample("daemon")
@pytest.mark.spark
@pytest.mark.parametrize("attempt", ["daemon", "task"])
def test_a_drain_finds_what_nobody_wrote_down(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, attempt: str
) -> None:
    """A daemon, or a task of an earlier job, committed and died: those messages are not sent again.

    Behind the drain the marks have them all.
    """
    from pipeline.delivery.drain import run_drain

    fill(spool, 100)
    spool.crash()
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, mode="exactly_once")
    book = TaskBook(read_segments(spool.layout))
    book.recover(Begun(None, ProgressPosition(0, 0)))
    name = (
        transactional_id(spool.identity.spool)
        if attempt == "daemon"
        else task_transactional_id(spool.identity.spool, 1)
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("bruce-progress", encode(book.progress(1, BY, numbers(*range(40, 60)), ())), name)
    assert producer.flush(30) == 0
    done = run_drain(lambda: spark, [str(spool.options.directory)], options, {})
    assert (done.messages, done.delivered, done.left) == (80, 80, 0)
    assert take_totals(spool.layout, list).backlog == 0
    frame = spark.read.format("bruce-kafka").option("bootstrap.servers", kafka.bootstrap_servers)
    rows = frame.option("topics", "clicks").load().collect()
    assert sorted(row.bruce_sequence for row in rows) == [*range(40), *range(60, 100)]


@pytest.mark.long
@pytest.mark.sample(one_of=2)
@pytest.mark.oldest_spark
@pytest.mark.spark
@pytest.mark.parametrize("name", ["", "fleet-to-main"])
def test_a_stream_that_starts_again(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path, name: str
) -> None:
    """Killed before its last batch was noted: none is lost, and with transactions none comes twice.

    Without limits in Spark a restarted query brings that batch alone, and the next one the rest.
    """
    from pipeline.delivery.choice import Routes
    from pipeline.delivery.route import route
    from pipeline.delivery.sink import arrange

    stored = spark.readStream.format("bruce").options(**LIMIT)
    placed = route(stored.load(str(spool.options.directory)), Routes({"clicks": np.ones(3, np.bool_)}))
    writer = arrange(placed, in_transactions=bool(name)).writeStream.format("bruce-kafka")
    writer = writer.options(
        **{"bootstrap.servers": kafka.bootstrap_servers}, checkpointLocation=str(tmp_path / "c")
    )
    if name:
        writer = writer.option("transactional.id", name)
    for count in (400, 100):
        fill(spool, count)
        for _ in range(1 if LIMIT else 2):
            writer.trigger(availableNow=True).start().awaitTermination()
        batches = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        # The next epoch of each transactional task: an attempt of this batch that begins now finds that it is
        # over.
        assert not name or newest_epoch(kafka, name) == 2 * int(batches[-1].name) + 1
        batches[-1].unlink()
        (batches[-1].parent / f".{batches[-1].name}.crc").unlink(missing_ok=True)
    frame = spark.read.format("bruce-kafka").option("bootstrap.servers", kafka.bootstrap_servers)
    rows = frame.option("topics", "clicks").load().orderBy("partition", "offset").collect()
    assert {row.bruce_sequence for row in rows} == set(range(500))
    assert (len(rows) == 500) == bool(name)
    for partition in range(3):
        sent = [row.bruce_sequence for row in rows if row.partition == partition]
        firsts = list(dict.fromkeys(sent))
        assert firsts == sorted(firsts)


@pytest.mark.long
@pytest.mark.spark
def test_a_write_that_is_run_again(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """A job of the same name finds what the first one has sent, and those before it send nothing any more."""
    from pipeline.delivery.choice import Routes
    from pipeline.delivery.route import route
    from pipeline.delivery.sink import arrange

    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    fill(spool, 200)
    for epoch in (1, 3):
        stored = spark.read.format("bruce").load(str(spool.options.directory))
        placed = arrange(route(stored, Routes({"clicks": np.ones(3, np.bool_)})), in_transactions=True)
        writer = placed.write.format("bruce-kafka").mode("append").options(**properties)
        writer.option("transactional.id", "weekly").save()
        assert newest_epoch(kafka, "weekly") == epoch + 1
        fill(spool, 100)
    rows = spark.read.format("bruce-kafka").options(**properties).option("topics", "clicks").load().collect()
    assert sorted(row.bruce_sequence for row in rows) == list(range(300))


def newest_epoch(kafka: EmbeddedKafka, name: str) -> int:
    """The newest epoch of the records under a transactional.id."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    with open_topic(DispatchOptions(kafka=properties), name) as topic:
        family, _ = topic.read_family()
    return epoch_of(family.values(), "", None)


def test_names_are_made_of_spool_and_partition() -> None:
    """No other names: neither the daemon's nor another partition's."""
    assert task_transactional_id(bytes(16), 7) == "bruce-" + "00" * 16 + "-7"
