"""The columns of `format("bruce")`: one row for each stored message, and one for each damaged range.

A reader that wants fewer names them: `spark.read.format("bruce").schema("sequence long, topic string")`.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

ARROW_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""The type of headers in Arrow."""
_ARROW = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<struct<key:string,value:binary>>": ARROW_HEADERS,
}
"""By Spark's name of a type; Spark's own function takes other arguments in each release."""

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""As Spark's own source of Kafka has them, and as a schema in SQL can name them: all may be null."""

_COLUMNS: list[tuple[str, DataType, str]] = [
    (
        "host",
        StringType(),
        "The spool's host: the option `host`; else its host's name when a daemon opened it last, "
        "by its file `identity`; else null. Of a spool without it that was in use since this host started, "
        "this host's name.",
    ),
    ("spool", StringType(), "The uuid of the spool, 32 hexadecimal digits."),
    ("segment", LongType(), "Number of the segment, from 1."),
    ("frame_offset", LongType(), "Offset of the message's frame in its segment, in bytes."),
    ("sequence", LongType(), "The message's number in its spool."),
    ("received_at", TimestampType(), "When its burst was taken from the socket."),
    (
        "created_at",
        TimestampType(),
        "The sender's timestamp; null outside of the years 1 to 9999, where `timestamp_ms` still has it.",
    ),
    ("timestamp_ms", LongType(), "The sender's timestamp as sent: ms since the epoch, any 64-bit number."),
    ("kind", StringType(), "`any` (AnyPartition), `key` (PartitionKey) or `message` (Message)."),
    ("topic", StringType(), "Its topic; backslashes, and bytes that are not UTF-8, are written as \\xNN."),
    ("partition_key", IntegerType(), "Its partition key; null without one."),
    ("to_partition", IntegerType(), "The partition that its sender names; null when it names none."),
    (
        "key",
        BinaryType(),
        "The key, or null. An empty one is null, but of the kind `message`.",
    ),
    ("value", BinaryType(), "The value; null only of the kind `message`."),
    ("headers", HEADERS, "Its headers in order; empty without any."),
    ("uid", LongType(), "The sender's user id; null when the socket did not tell."),
    ("pid", LongType(), "The sender's process id; null when the socket did not tell."),
    (
        "delivered",
        BooleanType(),
        "Whether Kafka had acknowledged it, and that was on disk, when the query was planned; false of what "
        "was discarded. Null where the spool's marks are not there or cannot be read.",
    ),
    (
        "damaged",
        BooleanType(),
        "True of a range of the segment that holds no good frame: one row, with host, spool, segment and "
        "frame_offset, and without a message. False of messages.",
    ),
    ("damaged_bytes", LongType(), "Of a damaged range, how long it is; null of messages."),
]

SCHEMA = StructType([StructField(name, kind, True, {"comment": text}) for name, kind, text in _COLUMNS])
UNREAD = StructField(
    "unread",
    StringType(),
    True,
    {
        "comment": "Of a range that the disk gives an error for: the file and the error, in a row with host, "
        "spool, segment and frame_offset, and without a message. Null of all else."
    },
)
"""Only if a schema names it: else such an error ends the query."""

KAFKA_SCHEMA = StructType(
    [
        StructField(name, kind, True, {"comment": text})
        for name, kind, text in [
            ("topic", StringType(), "The topic."),
            ("partition", IntegerType(), "The partition."),
            ("offset", LongType(), "The record's offset there."),
            ("timestamp_ms", LongType(), "The producer's timestamp; null where the broker wrote its own."),
            ("key", BinaryType(), "The key; null when there is none."),
            ("value", BinaryType(), "The value; null when there is none."),
            (
                "headers",
                HEADERS,
                "Its headers in order, without the `bruce-id` that the next two columns are from: those of "
                "the message, behind `bruce-replay` where it was replayed. Empty without any. A name that is "
                "not UTF-8 is U+FFFD.",
            ),
            (
                "bruce_spool",
                StringType(),
                "From the first header `bruce-id`: the uuid of the spool, as above.",
            ),
            ("bruce_sequence", LongType(), "From the same: the message's number in that spool."),
        ]
    ]
)
"""The columns of `format("bruce-kafka")`: one row for each record. Unstamped ones have two nulls."""


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types of these columns (of the schemas above), for rows handed to Spark."""
    return pa.schema([(field.name, _ARROW[field.dataType.simpleString()]) for field in schema.fields])
