"""The hash of a message's content is the same in the spool, in Kafka, and by Spark's own functions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import xxhash
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from pipeline.embedded.dataset import SpoolDataset
from pipeline.kafka.ranges import Range
from pipeline.kafka.records import read_range, to_arrow
from pipeline.source.content_hash import hash_contents
from pipeline.source.fields import CONTENT, to_schema
from spool.format.message_hash import SEED
from spool.format.wire import encode_message
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Pairs = list[tuple[str, bytes | None]]
Row = tuple[str, bytes | None, bytes | None, Pairs]
BYTES = st.none() | st.binary(max_size=40)
NAMES = st.sampled_from(["a", "b", "bruce-id", "bruce-replay", "\u00e9"])
ROWS = st.tuples(
    st.sampled_from(["t", "orders", "\u00fc"]), BYTES, BYTES, st.lists(st.tuples(NAMES, BYTES), max_size=3)
)
OF = to_schema(("topic", "key", "value", "headers"))


def table_of(rows: list[Row]) -> pa.Table:
    """The columns of these messages."""
    pairs = [[{"key": name, "value": value} for name, value in headers] for *_, headers in rows]
    columns = [*([row[at] for row in rows] for at in range(3)), pairs]
    return pa.table(list(map(pa.array, columns, OF.types)), OF)


def hashed(rows: list[Row]) -> list[int]:
    """By the loop."""
    found: list[int] = hash_contents(*(one.combine_chunks() for one in table_of(rows).columns)).to_pylist()
    return found


def by_hand(row: Row) -> int:
    """The formula of the module's docstring, with the wheel's own interface."""
    topic, key, value, headers = row

    def chain(*fields: bytes | None, seed: int = SEED) -> int:
        for one in fields:
            seed = seed if one is None else xxhash.xxh64_intdigest(one, seed)
        return seed

    def length(one: bytes | None) -> bytes:
        return (-1 if one is None else len(one)).to_bytes(4, "little", signed=True)

    own = [pair for pair in headers if pair[0] != "bruce-replay"]
    of_headers = chain(*(length(one) for _, one in own))
    of_headers = chain(*(part for name, one in own for part in (name.encode(), one)), seed=of_headers)
    more = [of_headers.to_bytes(8, "little")] if own else []
    found = chain(topic.encode(), length(key), length(value), key, value, *more)
    return found - (1 << 64) if found >> 63 else found


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_the_formula(rows: list[Row]) -> None:
    """Each row has its own, wherever it is in the column; a replay's header changes nothing."""
    found = hashed(rows)
    assert found == list(map(by_hand, rows))
    whole = table_of(rows)
    for at in range(len(rows)):
        cut = [one.combine_chunks().slice(at) for one in whole.columns]
        assert hash_contents(*cut).to_pylist() == found[at:]
    again = [(topic, key, value, [("bruce-replay", b"5"), *headers]) for topic, key, value, headers in rows]
    assert hashed(again) == found


def test_nothing_that_differs_is_alike() -> None:
    """Bytes that move from one field to another, nulls that become empty, headers in another order."""
    rows: list[Row] = [
        ("t", b"", b"", []),
        ("t", None, b"", []),
        ("t", b"", None, []),
        ("t", b"x", b"", []),
        ("t", b"", b"x", []),
        ("t", b"", b"", [("a", b"")]),
        ("t", b"", b"", [("a", None)]),
        ("t", b"", b"", [("a", b"b")]),
        ("t", b"", b"", [("ab", b"")]),
        ("t", b"", b"", [("a", b""), ("b", b"")]),
        ("t", b"", b"", [("b", b""), ("a", b"")]),
        ("tx", b"", b"", []),
    ]
    assert len(set(hashed(rows))) == len(rows)


@pytest.mark.spark
def test_spark_has_the_same(spark: SparkSession) -> None:
    """By the expression that the audit makes of records which Spark's own connector reads."""
    from pipeline.audit import _STAMPED, _content

    rng = random.Random(5)

    def some(most: int = 40) -> Any:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(most))

    names = ["a", "bruce-replay", "bruce-id", "long name"]
    rows: list[Row] = [
        (
            rng.choice(["t", "orders"]),
            some(),
            some(200),
            [(rng.choice(names), some()) for _ in range(rng.randrange(4))],
        )
        for _ in range(500)
    ]
    frame = spark.createDataFrame(table_of(rows)).select(_content(_STAMPED).alias("hash"))
    assert [row[0] for row in frame.collect()] == hashed(rows)


def test_a_message_and_its_record(spool: SpoolFixture) -> None:
    """Both sources give the same, of all that a sender may send; a record of other bytes has another."""
    sent: list[tuple[bytes | None, bytes | None, Pairs]] = [
        (b"k", b"v", []),
        (None, None, [("trace", b"1"), ("null", None), ("bruce-id", b"theirs")]),
        (b"", b"", [("a", b"")]),
    ]
    spool.append(
        [encode_message(b"t", value, key=key, headers=headers, timestamp=1) for key, value, headers in sent]
    )
    spool.step()
    spool.crash()
    stored = SpoolDataset([str(spool.options.directory)], [CONTENT[0]]).scanner().to_table()
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        producer = Producer(properties)
        for number, (key, value, headers) in enumerate(sent):
            ours = [("bruce-id", spool.identity.spool + number.to_bytes(8, "big")), ("bruce-replay", b"7")]
            producer.produce("t", value, key, headers=[*ours, *headers])
        producer.produce("t", b"w", b"k")
        assert producer.flush(30) == 0
        consumer, wanted = open_consumer(properties), Range("t", 0, 0, 4)
        (messages,) = read_range(consumer, wanted)
        consumer.close()
        found = to_arrow(messages, wanted, to_schema(["content_hash", "replayed"]))
    assert found["content_hash"].to_pylist()[:3] == stored["content_hash"].to_pylist()
    assert len(set(found["content_hash"].to_pylist())) == 4
    assert found["replayed"].to_pylist() == [True, True, True, False]
