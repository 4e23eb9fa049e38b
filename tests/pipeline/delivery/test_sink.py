"""The sink's messages are in Kafka once, in order, with the daemon's header; their outcomes are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.errors import PySparkException

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from pipeline.delivery.choice import Routes
from pipeline.delivery.route import route
from pipeline.delivery.sink import Delivery, arrange, deliver
from spool.format.wire import encode, encode_message
from spool.marks.outcome_file import list_outcomes, read_outcomes
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

ROUTES = Routes({name: np.ones(3, np.bool_) for name in ("clicks", "views")})


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers, and topics of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("clicks", 3), ("views", 3)]) as running:
        yield running


def options(kafka: EmbeddedKafka, **kafka_properties: str) -> DispatchOptions:
    """How to deliver there."""
    return DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers, **kafka_properties})


def fill(spool: SpoolFixture, count: int, *, large: tuple[int, ...] = ()) -> None:
    """Messages with five partition keys, in two topics; some of 5,000 bytes."""
    for first in range(0, count, 10):
        spool.append(
            [
                encode(
                    (b"clicks", b"views")[i % 2],
                    b"%d" % i if i not in large else bytes(5000),
                    key=b"k" if i % 3 else b"",
                    timestamp=i,
                    partition_key=i % 5,
                )
                for i in range(first, min(first + 10, count))
            ]
        )
    spool.step()


def arranged(spark: SparkSession, *spools: SpoolFixture) -> DataFrame:
    """Everything in these spools, as it is delivered."""
    frame = spark.read.format("bruce").load([str(spool.options.directory) for spool in spools])
    return arrange(route(frame, ROUTES))


def in_kafka(spark: SparkSession, kafka: EmbeddedKafka) -> list[Row]:
    """All records, in order within their partitions."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    return (
        spark.read.format("bruce-kafka").options(**properties).load().orderBy("partition", "offset").collect()
    )


def assert_sent(rows: list[Row], spool: SpoolFixture, count: int) -> None:
    """Each message of a spool is there once, as it was stored, in order within its topic partition."""
    ours = [row for row in rows if row.bruce_spool == spool.identity.spool.hex()]
    assert sorted(row.bruce_sequence for row in ours) == list(range(count))
    last: dict[tuple[str, int], int] = {}
    for row in ours:
        i = row.bruce_sequence
        assert (row.topic, row.partition) == (("clicks", "views")[i % 2], i % 5 % 3)
        assert (row.key, row.value, row.timestamp_ms) == (b"k" if i % 3 else None, b"%d" % i, i or 1)
        assert last.get((row.topic, row.partition), -1) < i
        last[row.topic, row.partition] = i


def test_messages_of_several_spools_are_delivered(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, second_spool: SpoolFixture, tmp_path: Path
) -> None:
    """Each once, in order, stamped as by the daemon; the outcomes name all, in files too.

    Tasks that are run again find the files, tell the same, and send nothing.
    """
    fill(spool, 300)
    fill(second_spool, 200)
    directories = {}
    for made in (spool, second_spool):
        directories[made.identity.spool.hex()] = str(tmp_path / made.identity.spool.hex())
        (tmp_path / made.identity.spool.hex()).mkdir()
    delivery = Delivery(options(kafka), "job", directories)
    told = deliver(arranged(spark, spool, second_spool), delivery).collect()
    rows = in_kafka(spark, kafka)
    for made, count in ((spool, 300), (second_spool, 200)):
        uuid = made.identity.spool.hex()
        assert_sent(rows, made, count)
        assert sorted((row.sequence, row.reason) for row in told if row.spool == uuid) == [
            (i, 0) for i in range(count)
        ]
        files = [read_outcomes(path) for path in list_outcomes(Path(directories[uuid]))]
        assert sorted(np.concatenate([file.sequences for file in files]).tolist()) == list(range(count))
        assert all(file.spool == made.identity.spool and not file.reasons.any() for file in files)
    # As when the executor with a task's result is gone.
    again = deliver(arranged(spark, spool, second_spool), delivery).collect()
    assert sorted(again) == sorted(told)
    assert in_kafka(spark, kafka) == rows


def test_what_kafka_refuses_is_told_and_nothing_else(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """A message that is too large has its reason; those around it are delivered, in order."""
    fill(spool, 100, large=(17, 50))
    delivery = Delivery(options(kafka, **{"message.max.bytes": "4000"}))
    told = {row.sequence: row.reason for row in deliver(arranged(spark, spool), delivery).collect()}
    assert told == {i: 15 if i in (17, 50) else 0 for i in range(100)}
    sent = [row.bruce_sequence for row in in_kafka(spark, kafka)]
    assert sorted(sent) == [i for i in range(100) if i not in (17, 50)]


def test_errors_that_pass_cost_neither_messages_nor_order(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """Brokers that refuse for a while, and windows of 20 messages: each is there once, in order."""
    fill(spool, 300)
    # NOT_ENOUGH_REPLICAS, NOT_LEADER
    kafka.errors(0, [19, 6, 19, 6])
    small = DispatchOptions(kafka=options(kafka).kafka, window_messages=20)
    told = deliver(arranged(spark, spool), Delivery(small)).collect()
    assert sorted((row.sequence, row.reason) for row in told) == [(i, 0) for i in range(300)]
    assert_sent(in_kafka(spark, kafka), spool, 300)


def test_a_batch_refused_as_a_whole_costs_no_message(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """Kafka names no record when it refuses a batch: none counts as bad before it was sent alone."""
    fill(spool, 300)
    # MSG_SIZE_TOO_LARGE, INVALID_RECORD
    kafka.errors(0, [10, 87])
    told = deliver(arranged(spark, spool), Delivery(options(kafka))).collect()
    assert sorted((row.sequence, row.reason) for row in told) == [(i, 0) for i in range(300)]
    assert sorted(row.bruce_sequence for row in in_kafka(spark, kafka)) == list(range(300))


def test_the_time_may_be_over(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """With Kafka away the job ends at its deadline, and reports no message."""
    import time

    fill(spool, 50)
    kafka.down(-1)
    delivery = Delivery(options(kafka), deadline=time.time() + 2)
    assert deliver(arranged(spark, spool), delivery).collect() == []


@pytest.mark.oldest_spark
def test_a_writer(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """`write.format("bruce-kafka")` delivers the same rows."""
    fill(spool, 100)
    writer = arranged(spark, spool).write.format("bruce-kafka").mode("append")
    writer.options(**{"bootstrap.servers": kafka.bootstrap_servers}).save()
    assert_sent(in_kafka(spark, kafka), spool, 100)


def test_a_writer_refuses_rows_without_a_place(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """One sentence names the column, and one the message that Kafka never takes."""
    fill(spool, 10, large=(7,))
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": "4000"}
    frame = spark.read.format("bruce").load(str(spool.options.directory))
    with pytest.raises(PySparkException, match="rows need the columns partition: pass the frame"):
        frame.write.format("bruce-kafka").mode("append").options(**properties).save()
    with pytest.raises(
        PySparkException, match=r"Kafka refuses message 7 of spool .*: too_large \(larger than Kafka takes\)"
    ):
        arranged(spark, spool).write.format("bruce-kafka").mode("append").options(**properties).save()


def test_rows_out_of_order_are_refused(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """A task that gets them unsorted fails with one sentence, before it sends them."""
    fill(spool, 30)
    wrong = arranged(spark, spool).coalesce(1).sortWithinPartitions("spool", "value")
    with pytest.raises(PySparkException, match="must be sorted by spool and sequence"):
        deliver(wrong, Delivery(options(kafka))).collect()


@pytest.mark.oldest_spark
def test_rows_for_sparks_own_connector(spark: SparkSession, spool: SpoolFixture) -> None:
    """Its columns, by name and type, and headers of the same bytes that the daemon sends.

    The id is before the sender's own, even one of its name; a frame may have no headers.
    """
    from pipeline.kafka.reader import as_kafka_rows, bruce_id

    fill(spool, 40)
    own = [("bruce-id", bytes(24)), ("n", None), ("e", b"")]
    spool.append([encode_message(b"clicks", None, headers=own)])
    spool.step()
    every = arranged(spark, spool)
    (last,) = as_kafka_rows(every.where("sequence = 40")).collect()
    stamp = ("bruce-id", spool.identity.spool + (40).to_bytes(8, "big"))
    assert (last.value, last.headers) == (None, [stamp, *own])
    (bare,) = as_kafka_rows(every.where("sequence = 40").drop("headers")).collect()
    assert bare.headers == [stamp]
    rows = as_kafka_rows(every.where("sequence < 40"))
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    uuid = spool.identity.spool
    found = rows.select("*", bruce_id("headers").alias("id")).collect()
    assert sorted((row.id.spool, row.id.sequence) for row in found) == [(uuid.hex(), i) for i in range(40)]
    for row in found:
        i = row.id.sequence
        assert [(one.key, bytes(one.value)) for one in row.headers] == [
            ("bruce-id", uuid + i.to_bytes(8, "big"))
        ]
        place = (("clicks", "views")[i % 2], i % 5 % 3)
        key = b"k" if i % 3 else None
        assert (row.topic, row.partition, row.key, row.value) == (*place, key, b"%d" % i)
