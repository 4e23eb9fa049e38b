"""Ranges of records, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from pipeline.kafka import records
from pipeline.kafka.ranges import Range, plan_ranges
from pipeline.kafka.records import read_range
from pipeline.source.fields import to_schema

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


def test_only_the_columns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, kafka: EmbeddedKafka) -> None:
    """Headers are not looked at for the others."""
    produce(kafka, 3)
    consumer = open_consumer(properties(kafka))
    wanted = Range("t", 0, 0, 3)
    (messages,) = read_range(consumer, wanted)
    consumer.close()
    asked: list[object] = []
    monkeypatch.setattr(records, "read_headers", lambda message: asked.append(message) or ())
    names = ["value", "offset"]
    few = records.to_arrow(messages, wanted, to_schema(names))
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
