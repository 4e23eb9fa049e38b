"""A schema that a query names, and the columns of each row."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from spool.format.wire import encode, encode_message
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.pipeline.source.test_source import load

pytestmark = pytest.mark.spark


LARGEST, SMALLEST = (1 << 63) - 1, -(1 << 63)


@pytest.mark.oldest_spark
def test_rows_are_the_messages(spark: SparkSession, spool: SpoolFixture) -> None:
    """Each row is one message as it was sent, whatever its key, timestamp and kind."""
    sent: list[dict[str, Any]] = [
        {"value": b"one", "key": b"k", "timestamp": 1_700_000_000_123},
        {"value": b"", "timestamp": -1},
        {"value": b"\0\xff", "timestamp": LARGEST, "partition_key": -(1 << 31)},
        {"value": b"four", "timestamp": SMALLEST, "partition_key": 0},
        {"value": None, "key": b"", "timestamp": 7, "partition": 3, "headers": [("a", b"1"), ("a", None)]},
        {
            "value": b"",
            "timestamp": 7,
            "partition_key": -1,
            "headers": [("\u00e9", b"\xff" * 300), ("", b"")],
        },
        {"value": b"v", "timestamp": 7, "headers": []},
    ]
    received = 1_800_000_000_000_000_000
    spool.append(
        [(encode_message if "headers" in one else encode)(b"topic", **one) for one in sent],
        sender=(4_294_967_295, 77),
        received_ns=received,
    )
    spool.step()
    rows = load(spark, spool.options.directory).orderBy("sequence").collect()
    assert [row.asDict() | {"headers": [tuple(one) for one in row["headers"]]} for row in rows] == [
        {
            "host": socket.gethostname(),
            "spool": spool.identity.spool.hex(),
            "segment": 1,
            "frame_offset": 384,
            "sequence": number,
            "received_at": datetime.fromtimestamp(1_800_000_000, UTC).replace(tzinfo=None),
            "created_at": created,
            "timestamp_ms": message["timestamp"],
            "kind": "message" if "headers" in message else "key" if "partition_key" in message else "any",
            "topic": "topic",
            "partition_key": message.get("partition_key"),
            "to_partition": message.get("partition"),
            "key": message.get("key"),
            "value": message["value"],
            "headers": message.get("headers", []),
            "uid": 4_294_967_295,
            "pid": 77,
            "delivered": None,
            "damaged": False,
            "damaged_bytes": None,
        }
        for number, (message, created) in enumerate(
            zip(
                sent,
                [
                    datetime(2023, 11, 14, 22, 13, 20, 123_000),  # noqa: DTZ001  (Spark's are in the session's zone)
                    datetime(1969, 12, 31, 23, 59, 59, 999_000),  # noqa: DTZ001
                    None,
                    None,
                    *[datetime(1970, 1, 1, 0, 0, 0, 7_000)] * 3,  # noqa: DTZ001
                ],
                strict=True,
            )
        )
    ]


def test_fewer_columns(spark: SparkSession, spool: SpoolFixture) -> None:
    """A schema that names some columns gets those; for an unknown one the error lists the columns."""
    spool.fill(1)
    spool.step()
    reader = spark.read.format("bruce")
    rows = reader.schema("topic string, sequence long").load(str(spool.options.directory)).collect()
    assert sorted(map(tuple, rows)) == [("t0", 0), ("t0", 2), ("t1", 1)]
    with pytest.raises(Exception, match="there is no column 'wrong'; the columns are host, spool"):
        reader.schema("wrong string").load(str(spool.options.directory)).collect()
