"""`format("bruce-kafka")` gives what Kafka holds, up to the offsets taken when it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable
from pipeline.kafka import source
from pipeline.kafka.reader import Range, plan_ranges
from pipeline.kafka.source import read_range
from pipeline.source.schema import KAFKA_SCHEMA, to_arrow_schema
from tests.dispatch.fixture import produce_bytes

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
    stamp = ("bruce-id", SPOOL + last.to_bytes(8, "big"))
    for partition, key, value, headers in [
        (0, b"k", b"stamped", [stamp]),
        (0, None, b"", [("other", b"x"), ("bruce-id", SPOOL + bytes(8)), ("null", None), ("", b""), stamp]),
        (1, b"", None, None),
        (1, b"k", b"short", [("bruce-id", SPOOL), stamp]),
    ]:
        producer.produce("t", value, key, partition, timestamp=1234, headers=headers)
        assert producer.flush(30) == 0
    frame = spark.read.format("bruce-kafka").options(**properties(kafka)).option("topics", "t,empty,absent")
    rows = frame.load().orderBy("partition", "offset").collect()
    own = [("other", b"x"), ("null", None), ("", b""), stamp]
    assert [tuple(row) for row in rows] == [
        ("t", 0, 0, 1234, b"k", b"stamped", [], SPOOL.hex(), last),
        ("t", 0, 1, 1234, None, b"", own, SPOOL.hex(), 0),
        ("t", 1, 0, 1234, b"", None, [], None, None),
        ("t", 1, 1, 1234, b"k", b"short", [("bruce-id", SPOOL), stamp], None, None),
    ]
    some = frame.schema("headers array<struct<key:string,value:binary>>, offset long").load().collect()
    assert sorted(some) == sorted((row.headers, row.offset) for row in rows)


@pytest.mark.spark
def test_a_name_of_any_bytes(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    """A record of another program's ends no query: the name is a mark, and the record has its id."""
    id_ = SPOOL + (7).to_bytes(8, "big")
    produce_bytes(kafka.bootstrap_servers, "t", [(b"\xff\xfe", b"1"), (b"bruce-id", id_), (b"n", b"2")])
    (row,) = (
        spark.read.format("bruce-kafka").options(**properties(kafka)).option("topics", "t").load().collect()
    )
    assert (row.headers, row.bruce_sequence) == ([("\ufffd", b"1"), ("n", b"2")], 7)


def test_only_the_columns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, kafka: EmbeddedKafka) -> None:
    """Headers are not looked at for the others."""
    produce(kafka, 3)
    consumer = open_consumer(properties(kafka))
    wanted = Range("t", 0, 0, 3)
    (messages,) = read_range(consumer, wanted)
    consumer.close()
    asked: list[object] = []
    monkeypatch.setattr(source, "read_headers", lambda message: asked.append(message) or ())
    names = ["value", "offset"]
    schema = to_arrow_schema(KAFKA_SCHEMA)
    few = source.to_arrow(messages, wanted, pa.schema([schema.field(name) for name in names]))
    assert (few.schema.names, few.column("value").to_pylist()) == (names, [b"0", b"1", b"2"])
    assert not asked


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


def test_nobody_answers() -> None:
    """A Kafka that is away, or a property that librdkafka does not know, is one sentence."""
    why = r"no broker can be reached \(127\.0\.0\.1:1: .*Connection refused\): start Kafka"
    with pytest.raises(Unreachable, match=rf"Kafka at 127\.0\.0\.1:1 does not answer: {why}"):
        plan_ranges({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.3)
    with pytest.raises(BadProperty, match=r"no\.such\.property"):
        plan_ranges({"no.such.property": "1"})
