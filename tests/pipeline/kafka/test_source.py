"""`format("bruce-kafka")` gives what Kafka holds, up to the offsets taken when it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable
from pipeline.kafka.reader import Range, count_dropped, plan_ranges
from pipeline.kafka.source import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPOOL = bytes(range(16))


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and topics `t` and `empty` of two partitions."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2), ("empty", 2)]) as running:
        yield running


def produce(kafka: EmbeddedKafka, count: int, *, partition: int = 0) -> None:
    """Records with ids 0, 1, 2, ..."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for i in range(count):
        stamp = SPOOL + i.to_bytes(8, "big")
        producer.produce(
            "t", b"%d" % i, partition=partition, timestamp=1000 + i, headers=[("bruce-id", stamp)]
        )
    assert producer.flush(30) == 0


def properties(kafka: EmbeddedKafka) -> dict[str, str]:
    """The properties that a consumer needs."""
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.mark.spark
def test_rows_are_the_records(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    """Each row is one record; what is not stamped, or stamped with something else, has no spool."""
    producer = Producer(properties(kafka))
    last = (1 << 63) - 1
    for partition, key, value, headers in [
        (0, b"k", b"stamped", [("bruce-id", SPOOL + last.to_bytes(8, "big"))]),
        (0, None, b"", [("other", b"x"), ("bruce-id", SPOOL + bytes(8))]),
        (1, b"", None, None),
        (1, b"k", b"short", [("bruce-id", SPOOL)]),
    ]:
        producer.produce("t", value, key, partition, timestamp=1234, headers=headers)
        assert producer.flush(30) == 0
    frame = spark.read.format("bruce-kafka").options(**properties(kafka)).option("topics", "t,empty,absent")
    rows = frame.load().orderBy("partition", "offset").collect()
    assert [tuple(row) for row in rows] == [
        ("t", 0, 0, 1234, b"k", b"stamped", SPOOL.hex(), last),
        ("t", 0, 1, 1234, None, b"", SPOOL.hex(), 0),
        ("t", 1, 0, 1234, b"", None, None, None),
        ("t", 1, 1, 1234, b"k", b"short", None, None),
    ]


def test_ranges_cover_each_offset_once(kafka: EmbeddedKafka) -> None:
    """A partition is cut into ranges that meet, and reading them gives each record once."""
    produce(kafka, 25)
    ranges = plan_ranges(properties(kafka), ["t", "empty"], most=10)
    assert ranges == [Range("t", 0, 0, 10), Range("t", 0, 10, 20), Range("t", 0, 20, 25)]
    values = []
    for wanted in ranges:
        consumer = open_consumer(properties(kafka))
        values += [m.value() for messages in read_range(consumer, wanted) for m in messages]
        consumer.close()
    assert values == [b"%d" % i for i in range(25)]


def test_a_range_ends_with_the_partition(kafka: EmbeddedKafka) -> None:
    """If the last offsets hold no message, as behind a transaction, the partition's end ends the range."""
    produce(kafka, 5)
    consumer = open_consumer(properties(kafka))
    assert sum(map(len, read_range(consumer, Range("t", 0, 0, 7)))) == 5
    consumer.close()


def test_what_kafka_dropped_is_counted(kafka: EmbeddedKafka) -> None:
    """Offsets below the first that a partition still has are counted by topic; a whole topic has none."""
    producer = Producer(properties(kafka))
    for _ in range(60):
        producer.produce("t", bytes(100_000), partition=1)
        producer.flush(30)
    dropped = count_dropped(properties(kafka), ["t", "empty", "absent"])
    assert dropped.keys() == {"t"}
    assert dropped["t"] + sum(r.end - r.start for r in plan_ranges(properties(kafka), ["t"])) == 60


def test_nobody_answers() -> None:
    """A Kafka that is away, or a property that librdkafka does not know, is one sentence."""
    why = r"no broker can be reached \(127\.0\.0\.1:1: .*Connection refused\): start Kafka"
    with pytest.raises(Unreachable, match=rf"Kafka at 127\.0\.0\.1:1 does not answer: {why}"):
        plan_ranges({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.3)
    with pytest.raises(BadProperty, match=r"no\.such\.property"):
        plan_ranges({"no.such.property": "1"})
