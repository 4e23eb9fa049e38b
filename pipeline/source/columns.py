"""Messages to Arrow columns, and back: whole columns at a time, no Python object for a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.source.segments import DamagedFile, Part, Piece, topic_name
from spool.format.batch import Batch, Topics
from spool.format.frame import FRAME_AT, FRAME_COUNT, FRAME_FLAGS
from spool.format.segment_format import PIDS, UIDS
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, copy

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which is what SQL and Python call a timestamp."""

_UTC = pa.timestamp("us", tz="UTC")
_KINDS = pa.array(["any", "key"])


@kernel
def gather(
    base: Address,
    at: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int32],
    target: Address,
) -> None:
    """Copy `lengths[i]` bytes each from address `base + at[i]`, one after the other, to address `target`.

    `at` int64[n], `lengths` int32[n]. `offsets` int32[n + 1] receives where each begins, and where the last
    ends.
    """
    position = 0
    offsets[0] = 0
    for i in range(at.shape[0]):
        copy(target + position, base + at[i], lengths[i])
        position += lengths[i]
        offsets[i + 1] = position


def to_arrow(piece: Piece, part: Part, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that `schema` names, out of `pipeline.source.schema.SCHEMA`."""
    arrays = [COLUMNS[field.name](piece, part) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def damage_to_arrow(
    damaged: list[tuple[int, int]], part: Part | DamagedFile, schema: pa.Schema, unread: str = ""
) -> pa.RecordBatch:
    """A row for each damaged range [from, to) of a segment, with null in the columns of a message.

    `unread`: the ranges are not damaged; the disk cannot read them, for this reason.
    """
    ranges = np.array(damaged, np.int64)
    rows = len(ranges)
    known = {
        "host": pa.repeat(pa.scalar(part.host, pa.string()), rows),
        "spool": pa.repeat(pa.scalar(part.spool, pa.string()), rows),
        "segment": pa.repeat(pa.scalar(part.number, pa.int64()), rows),
        "frame_offset": pa.array(ranges[:, 0]),
    }
    if unread:
        known |= {"damaged": pa.repeat(False, rows), "unread": pa.repeat(unread, rows)}
    else:
        known |= {"damaged": pa.repeat(True, rows), "damaged_bytes": pa.array(ranges[:, 1] - ranges[:, 0])}
    arrays = [known.get(field.name, pa.nulls(rows, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _binary(
    batch: Batch, at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], *, empty_is_null: bool
) -> pa.Array:
    rows = len(batch)
    offsets = np.empty(rows + 1, np.int32)
    # A chunk is some MiB, 64 at most: its bytes cannot outgrow these offsets.
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    gather(address_of(batch.data), at, lengths, offsets, address_of(data))
    present = pa.py_buffer(np.packbits(lengths > 0, bitorder="little")) if empty_is_null else None
    buffers = [present, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _topic(piece: Piece, part: Part) -> pa.Array:  # noqa: ARG001
    numbers, places = np.unique(piece.batch.topic, return_inverse=True)
    names = list(map(topic_name, piece.batch.topics.names.of(numbers)))
    return pa.array(names, pa.string()).take(pa.array(places))


def _created_at(piece: Piece, part: Part) -> pa.Array:  # noqa: ARG001
    sent = piece.batch.timestamp
    outside = (sent < FIRST_MS) | (sent > LAST_MS)
    return pa.array(np.where(outside, 0, sent) * 1000, mask=outside).cast(_UTC)


def _delivered(piece: Piece, part: Part) -> pa.Array:
    rows, resolved = len(piece.batch), part.delivered
    if resolved is None or isinstance(resolved, bool):
        return pa.repeat(pa.scalar(resolved, pa.bool_()), rows)
    bits = np.frombuffer(resolved, np.uint8)
    at = piece.batch.sequence - part.first_sequence
    known = at < 8 * len(bits)
    at = np.where(known, at, 0)
    return pa.array(known & (bits[at >> 3] >> (at & 7) & 1 > 0))


def _per_frame(piece: Piece, column: int) -> npt.NDArray[np.int64]:
    """A field of each message's frame."""
    return np.repeat(piece.frames[:, column], piece.frames[:, FRAME_COUNT])


def _sender(piece: Piece, flag: int, column: npt.NDArray[np.uint32]) -> pa.Array:
    return pa.array(column.astype(np.int64), mask=_per_frame(piece, FRAME_FLAGS) & flag == 0)


def _same(value: Any, kind: pa.DataType) -> Callable[[Piece, Part], pa.Array]:
    return lambda piece, _: pa.repeat(pa.scalar(value, kind), len(piece.batch))


COLUMNS: dict[str, Callable[[Piece, Part], pa.Array]] = {
    "host": lambda piece, part: _same(part.host, pa.string())(piece, part),
    "spool": lambda piece, part: _same(part.spool, pa.string())(piece, part),
    "segment": lambda piece, part: _same(part.number, pa.int64())(piece, part),
    "frame_offset": lambda piece, _: pa.array(_per_frame(piece, FRAME_AT)),
    "sequence": lambda piece, _: pa.array(piece.batch.sequence),
    "received_at": lambda piece, _: pa.array(piece.batch.received_ns // 1000).cast(_UTC),
    "created_at": _created_at,
    "timestamp_ms": lambda piece, _: pa.array(piece.batch.timestamp),
    "kind": lambda piece, _: _KINDS.take(pa.array(piece.batch.keyed.astype(np.int8))),
    "topic": _topic,
    "partition_key": lambda piece, _: pa.array(piece.batch.partition_key, mask=~piece.batch.keyed),
    "key": lambda piece, _: _binary(
        piece.batch, piece.batch.key_at, piece.batch.key_bytes, empty_is_null=True
    ),
    "value": lambda piece, _: _binary(
        piece.batch, piece.batch.value_at, piece.batch.value_bytes, empty_is_null=False
    ),
    "uid": lambda piece, _: _sender(piece, UIDS, piece.batch.uid),
    "pid": lambda piece, _: _sender(piece, PIDS, piece.batch.pid),
    "delivered": _delivered,
    "damaged": _same(False, pa.bool_()),
    "damaged_bytes": _same(None, pa.int64()),
    "unread": _same(None, pa.string()),
}
"""How each column of the schema is made."""


NOWHERE = -1
"""The partition of a message whose topic has none."""
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


def to_batch(columns: dict[str, pa.Array], topics: Topics) -> Batch:
    """Messages from their columns, named as in `pipeline.source.schema`; names are added to `topics`.

    It needs sequence and topic, and uses partition_key, key, value and timestamp_ms if there are any. All
    else in the batch is zero.
    """
    rows = len(columns["sequence"])
    none = pa.nulls(rows, pa.binary())
    keys, key_at, key_bytes = _from_binary(columns.get("key", none))
    values, value_at, value_bytes = _from_binary(columns.get("value", none))
    partition_key = columns.get("partition_key", pa.nulls(rows, pa.int32()))
    zeros = np.zeros(rows, np.int64)
    sent = integers(columns["timestamp_ms"]) if "timestamp_ms" in columns else zeros
    topic = number_names(columns["topic"], topics)
    return Batch.of(
        np.concatenate([keys, values]),
        topics,
        [integers(columns["sequence"]), sent, key_at, value_at + len(keys), zeros, zeros],
        [
            topic,
            np.asarray(partition_key.is_valid()),
            integers(partition_key).astype(np.int32),
            key_bytes,
            value_bytes,
            zeros,
        ],
    )


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Numbers as int64, writable; nulls as 0."""
    return np.array(column.fill_null(0), np.int64)


def number_names(column: pa.Array, topics: Topics) -> npt.NDArray[np.int32]:
    """The number in `topics` of each row's name."""
    encoded: Any = column.dictionary_encode()
    numbers = [topics.add(name.encode()) for name in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int32)[np.asarray(encoded.indices)]


def _from_binary(column: pa.Array) -> tuple[Bytes, Offsets, Lengths]:
    """(bytes, where each row's begin, how many they are); a null has none."""
    if len(column) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int32)
    _, places, data = column.cast(pa.binary()).buffers()
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    held = np.empty(0, np.uint8) if last == first else np.frombuffer(data, np.uint8)[first:last]
    lengths = np.where(np.asarray(column.is_valid()), np.diff(offsets), 0).astype(np.int32)
    return held, offsets[:-1].astype(np.int64) - first, lengths
