"""The columns of spools and of Kafka's records, by name, as Arrow has them.

`format("bruce")` has STORED: one row for each stored message, and one for each damaged range. UNREAD is there
only if a query names it: else a read error of the disk ends the query. `format("bruce-kafka")` has RECORDS,
and an archive ARCHIVED.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

TIMES = pa.timestamp("us", "UTC")
ARROW_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""The type of headers: all may be null, as Spark's own source of Kafka has them."""

STORED: list[tuple[str, pa.DataType, str]] = [
    (
        "host",
        pa.string(),
        "The spool's host: the option `host`; else its host's name when a daemon opened it last, "
        "by its file `identity`; else null. Of a spool without it that was in use since this host started, "
        "this host's name.",
    ),
    ("spool", pa.string(), "The uuid of the spool, 32 hexadecimal digits."),
    ("segment", pa.int64(), "Number of the segment, from 1."),
    ("frame_offset", pa.int64(), "Offset of the message's frame in its segment, in bytes."),
    ("sequence", pa.int64(), "The message's number in its spool."),
    ("received_at", TIMES, "When its burst was taken from the socket."),
    (
        "created_at",
        TIMES,
        "The sender's timestamp; null outside of the years 1 to 9999, where `timestamp_ms` still has it.",
    ),
    ("timestamp_ms", pa.int64(), "The sender's timestamp as sent: ms since the epoch, any 64-bit number."),
    ("kind", pa.string(), "`any` (AnyPartition), `key` (PartitionKey) or `message` (Message)."),
    ("topic", pa.string(), "Its topic; backslashes, and bytes that are not UTF-8, are written as \\xNN."),
    ("partition_key", pa.int32(), "Its partition key; null without one."),
    ("to_partition", pa.int32(), "The partition that its sender names; null when it names none."),
    (
        "key",
        pa.binary(),
        "The key, or null. An empty one is null, but of the kind `message`.",
    ),
    ("value", pa.binary(), "The value; null only of the kind `message`."),
    ("headers", ARROW_HEADERS, "Its headers in order; empty without any."),
    ("uid", pa.int64(), "The sender's user id; null when the socket did not tell."),
    ("pid", pa.int64(), "The sender's process id; null when the socket did not tell."),
    (
        "delivered",
        pa.bool_(),
        "Whether Kafka had acknowledged it, and that was on disk, when the query was planned; false of what "
        "was discarded. Null where the spool's marks are not there or cannot be read.",
    ),
    (
        "damaged",
        pa.bool_(),
        "True of a range of the segment that holds no good frame: one row, with host, spool, segment and "
        "frame_offset, and without a message. False of messages.",
    ),
    ("damaged_bytes", pa.int64(), "Of a damaged range, how long it is; null of messages."),
]
"""(name, type, meaning)"""

UNREAD = (
    "unread",
    pa.string(),
    "Of a range that the disk gives an error for: the file and the error, in a row with host, spool, segment "
    "and frame_offset, and without a message. Null of all else.",
)

CONTENT = (
    "content_hash",
    pa.int64(),
    "Only if a query names it: a hash of topic, key, value and headers, but for `bruce-replay` "
    "(pipeline.source.content_hash). A message and its record have the same.",
)
REPLAYED = ("replayed", pa.bool_(), "Only if a query names it: whether it has the header `bruce-replay`.")

RECORDS: list[tuple[str, pa.DataType, str]] = [
    ("topic", pa.string(), "The topic."),
    ("partition", pa.int32(), "The partition."),
    ("offset", pa.int64(), "The record's offset there."),
    ("timestamp_ms", pa.int64(), "The producer's timestamp; null where the broker wrote its own."),
    ("key", pa.binary(), "The key; null when there is none."),
    ("value", pa.binary(), "The value; null when there is none."),
    (
        "headers",
        ARROW_HEADERS,
        "Its headers in order, without the `bruce-id` that the next two columns are from: those of "
        "the message, behind `bruce-replay` where it was replayed. Empty without any. A name that is "
        "not UTF-8 is U+FFFD.",
    ),
    (
        "bruce_spool",
        pa.string(),
        "From the first header `bruce-id`: the uuid of the spool, as above.",
    ),
    ("bruce_sequence", pa.int64(), "From the same: the message's number in that spool."),
]
"""One row for each record. Unstamped ones have two nulls."""

TAKEN_OVER = (
    "host",
    "spool",
    "sequence",
    "received_at",
    "created_at",
    "timestamp_ms",
    "kind",
    "partition_key",
    "to_partition",
    "key",
    "value",
    "headers",
    "uid",
    "pid",
)
"""The columns of an archive that are a spool's."""
PARTITIONS = ("topic", "date")
"""The folders of an archive."""
NO_TOPIC = "~"
"""The topic of messages whose own name Kafka could not have."""
_BY_NAME = {name: (name, kind, meaning) for name, kind, meaning in STORED}
ARCHIVED: list[tuple[str, pa.DataType, str]] = [
    *(_BY_NAME[name] for name in TAKEN_OVER),
    ("bad_topic", pa.string(), "A topic that Kafka could not have."),
    _BY_NAME["topic"],
    ("date", pa.date32(), "When it was received: the day in UTC."),
]

DAMAGE = ("damaged", "damaged_bytes")
"""Columns that a query has to name: the ranges that they tell of are rows then."""
_TYPES = {name: kind for name, kind, _ in (*STORED, UNREAD, CONTENT, *RECORDS, REPLAYED, *ARCHIVED)}


def to_schema(names: Iterable[str]) -> pa.Schema:
    """The Arrow types of these columns."""
    return pa.schema([(name, _TYPES[name]) for name in names])
