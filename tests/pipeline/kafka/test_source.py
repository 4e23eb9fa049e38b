"""`format("bruce-kafka")` gives what Kafka holds, up to the offsets taken when it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from tests.dispatch.fixture import produce_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPOOL = bytes(range(16))


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and topics `t` and `empty` of two partitions."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2), ("empty", 2)]) as running:
        yield running


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
