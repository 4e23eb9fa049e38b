"""The records of Kafka as Arrow batches, by librdkafka's consumer: the columns of `fields.RECORDS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Message, TopicPartition

from dispatch.consumer import Headers, find_id, read_headers
from dispatch.header_names import HEADER_BYTES, REPLAY_NAME
from pipeline.errors import JobFailed
from pipeline.kafka.ranges import Range
from pipeline.source.content_hash import hash_contents
from pipeline.source.fields import ARROW_HEADERS

CONNECTOR, OURS = "kafka", "bruce-kafka"
"""The names of Spark's format, and of ours, which reads by this module."""
BATCH = 20_000
POLL_S = 0.2
SILENCE_S = 60.0
"""How long a partition may be silent before the job fails."""

_OF_OWN = {"headers", "content_hash"}
_OF_HEADERS = {*_OF_OWN, "bruce_spool", "bruce_sequence", "replayed"}
"""Columns that are made of a record's headers; the first, of those without the id."""
_REPLAY = REPLAY_NAME.decode()
_NO_ID = bytes(HEADER_BYTES)
_ID = np.dtype([("spool", "V16"), ("sequence", ">i8")])


def read_range(consumer: Consumer, wanted: Range, silence_s: float = SILENCE_S) -> Iterator[list[Message]]:
    """The messages of a range, in batches. Raises JobFailed when they stop coming before its end.

    A range may end in offsets that hold no message (of transactions, of compaction): then it ends with
    the first message behind it, or at the end of the partition.
    """
    consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
    offset, heard = wanted.start, time.monotonic()
    while offset < wanted.end:
        # No more than are left: a larger request would wait for the whole POLL_S after the last one.
        polled = consumer.consume(min(BATCH, wanted.end - offset), POLL_S)
        if any(map(Message.error, polled)):
            at_end = _has_ended(polled, wanted)
            polled = [message for message in polled if not message.error()]
        else:
            at_end = False
        if polled:
            heard, offset = time.monotonic(), _offset(polled[-1]) + 1
            yield [m for m in polled if _offset(m) < wanted.end] if offset > wanted.end else polled
        if at_end:
            return
        if time.monotonic() - heard > silence_s:
            raise JobFailed(
                f"Kafka gave nothing of {wanted.topic} [{wanted.partition}] for {silence_s:.0f} s; "
                f"read up to offset {offset} of {wanted.end}"
            )


def _offset(message: Message) -> int:
    """The offset of a message that was consumed, and so has one."""
    return cast(int, message.offset())


def _has_ended(polled: Sequence[Message], wanted: Range) -> bool:
    """Whether the end of the partition is among these. Raises JobFailed for a permanent error."""
    ended = False
    for error in filter(None, map(Message.error, polled)):
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  (librdkafka's local codes begin so)
            ended = True
        elif not (error.retriable() or error.code() < 0):
            # Local codes, below zero, are about connections: librdkafka goes on trying, until SILENCE_S.
            raise JobFailed(f"Kafka refuses {wanted.topic} [{wanted.partition}]: {error.str()}")
    return ended


def to_arrow(messages: Sequence[Message], wanted: Range, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that `schema` names, out of `fields.RECORDS`, CONTENT and REPLAYED."""
    made: dict[str, pa.Array] = {}
    if not _OF_HEADERS.isdisjoint(schema.names):
        headers = [read_headers(message) for message in messages]
        ids = [find_id(one) for one in headers]
        made["bruce_spool"], made["bruce_sequence"] = _stamps(headers, ids)
        if not _OF_OWN.isdisjoint(schema.names):
            made["headers"] = _own(headers, ids)
        if "replayed" in schema.names:
            made["replayed"] = pa.array([any(name == _REPLAY for name, _ in one) for one in headers])
        if "content_hash" in schema.names:
            topics, keys, values = (_COLUMNS[name](messages, wanted) for name in ("topic", "key", "value"))
            made["content_hash"] = hash_contents(topics, keys, values, made["headers"])
    arrays = [made[name] if name in made else _COLUMNS[name](messages, wanted) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stamps(headers: Sequence[Headers], ids: Sequence[int | None]) -> list[pa.Array]:
    """[spool, sequence] of each message; null without an id. `ids`: by `find_id`."""
    found = [_NO_ID if at is None else one[at][1] or _NO_ID for one, at in zip(headers, ids, strict=True)]
    rows = np.frombuffer(b"".join(found), _ID)
    missing = np.fromiter((at is None for at in ids), np.bool_, len(ids))
    spools = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(found), [None, pa.py_buffer(np.ascontiguousarray(rows["spool"]))]
    ).dictionary_encode()
    names = pa.array([uuid.hex() for uuid in spools.dictionary.to_pylist()], pa.string())
    numbers = pa.array(np.asarray(spools.indices), mask=missing)
    return [names.take(numbers), pa.array(rows["sequence"].astype(np.int64), mask=missing)]


def _own(headers: Sequence[Headers], ids: Sequence[int | None]) -> pa.Array:
    """Of each message the headers without its id."""
    ends, pairs = [0], []
    for one, at in zip(headers, ids, strict=True):
        # Most have nothing else.
        if len(one) > (at is not None):
            pairs += [pair for number, pair in enumerate(one) if number != at]
        ends.append(len(pairs))
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    both = pa.StructArray.from_arrays([names, values], fields=list(ARROW_HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), both, type=ARROW_HEADERS)


def _timestamps(messages: Sequence[Message], wanted: Range) -> pa.Array:  # noqa: ARG001
    pairs = np.array([message.timestamp() for message in messages], np.int64).reshape(-1, 2)
    return pa.array(pairs[:, 1], mask=pairs[:, 0] != TIMESTAMP_CREATE_TIME)


_COLUMNS: dict[str, Callable[[Sequence[Message], Range], pa.Array]] = {
    "topic": lambda messages, wanted: pa.repeat(pa.scalar(wanted.topic), len(messages)),
    "partition": lambda messages, wanted: pa.repeat(pa.scalar(wanted.partition, pa.int32()), len(messages)),
    "offset": lambda messages, _: pa.array(np.fromiter((m.offset() for m in messages), np.int64)),
    "timestamp_ms": _timestamps,
    "key": lambda messages, _: pa.array([m.key() for m in messages], pa.binary()),
    "value": lambda messages, _: pa.array([m.value() for m in messages], pa.binary()),
}
