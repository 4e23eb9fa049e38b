"""Messages to Arrow columns, and back: whole columns at a time, no Python object for a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import BadSchema
from pipeline.source.binary import Bytes, Lengths, Offsets, from_binary
from pipeline.source.content_hash import hash_contents
from pipeline.source.fields import ARROW_HEADERS
from pipeline.source.segments import DamagedFile, Part, Piece, topic_name
from spool.format.batch import KEYED, LONG, NULL_KEY, NULL_VALUE, NUMBERED, Batch, Topics
from spool.format.frame import FRAME_AT, FRAME_COUNT, FRAME_FLAGS
from spool.format.segment_format import PIDS, UIDS
from spool.format.wire import (
    MAX_HEADERS,
    MAX_NAME_BYTES,
    NAME_SIZE_BYTES,
    SIZE_BYTES,
    load_be16,
    load_be32,
)
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, copy, store_u8

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which is what SQL and Python call a timestamp."""

_UTC = pa.timestamp("us", tz="UTC")
_KINDS = pa.array(["any", "key", "message"])


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
        position += int(lengths[i])
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


def _binary(batch: Batch, at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], null: int) -> pa.Array:
    """Bytes of each message, null where it has the trait `null`."""
    rows = len(batch)
    offsets = np.empty(rows + 1, np.int32)
    # A chunk is some MiB, 64 at most: its bytes cannot outgrow these offsets.
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    gather(address_of(batch.data), at, lengths, offsets, address_of(data))
    present = pa.py_buffer(np.packbits(batch.traits & null == 0, bitorder="little"))
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


def _kinds(batch: Batch) -> npt.NDArray[np.int8]:
    """int8[messages]: the place of each one's kind in _KINDS."""
    return np.where(batch.traits & LONG > 0, 2, batch.keyed).astype(np.int8)


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
    "kind": lambda piece, _: _KINDS.take(pa.array(_kinds(piece.batch))),
    "topic": _topic,
    "to_partition": lambda piece, _: pa.array(piece.batch.number, mask=~piece.batch.numbered),
    "partition_key": lambda piece, _: pa.array(piece.batch.number, mask=~piece.batch.keyed),
    "key": lambda piece, _: _binary(piece.batch, piece.batch.key_at, piece.batch.key_bytes, NULL_KEY),
    "value": lambda piece, _: _binary(piece.batch, piece.batch.value_at, piece.batch.value_bytes, NULL_VALUE),
    "headers": lambda piece, _: to_headers(piece.batch),
    "uid": lambda piece, _: _sender(piece, UIDS, piece.batch.uid),
    "pid": lambda piece, _: _sender(piece, PIDS, piece.batch.pid),
    "delivered": _delivered,
    "damaged": _same(False, pa.bool_()),
    "damaged_bytes": _same(None, pa.int64()),
    "unread": _same(None, pa.string()),
    "content_hash": lambda piece, part: hash_contents(
        *(COLUMNS[name](piece, part) for name in ("topic", "key", "value", "headers"))
    ),
}
"""How each column of the schema is made."""


NOWHERE = -1
"""The partition of a message whose topic has none."""


def to_batch(columns: dict[str, pa.Array], topics: Topics) -> Batch:
    """Messages from their columns, named as in `pipeline.source.schema`; names are added to `topics`.

    It needs sequence and topic, and uses kind, partition_key, to_partition, key, value, headers and
    timestamp_ms if there are any. The `datagram` of a message is its value with its headers behind. All
    else in the batch is zero.
    """
    rows = len(columns["sequence"])
    none = pa.nulls(rows, pa.binary())
    key_column, value_column = columns.get("key", none), columns.get("value", none)
    keys, key_at, key_bytes = from_binary(key_column)
    values, value_at, value_bytes = _with_headers(value_column, columns.get("headers"))
    partition_key = columns.get("partition_key", pa.nulls(rows, pa.int32()))
    to_partition = columns.get("to_partition", pa.nulls(rows, pa.int32()))
    traits = _bits(partition_key.is_valid(), KEYED) | _bits(to_partition.is_valid(), NUMBERED)
    traits |= _bits(key_column.is_null(), NULL_KEY) | _bits(value_column.is_null(), NULL_VALUE)
    if "kind" in columns:
        traits |= _bits(pc.equal(columns["kind"], "message").fill_null(False), LONG)
    zeros = np.zeros(rows, np.int64)
    sent = integers(columns["timestamp_ms"]) if "timestamp_ms" in columns else zeros
    topic = number_names(columns["topic"], topics)
    value_at += len(keys)
    ends = np.append(value_at[1:], len(keys) + len(values)) if rows else zeros
    return Batch.of(
        np.concatenate([keys, values]),
        topics,
        [integers(columns["sequence"]), sent, key_at, value_at, value_at, zeros],
        [
            topic,
            traits,
            (integers(partition_key) + integers(to_partition)).astype(np.int32),
            key_bytes,
            value_bytes,
            ends - value_at,
        ],
    )


def _bits(column: pa.Array, trait: int) -> npt.NDArray[np.int32]:
    return np.asarray(column).astype(np.int32) * trait


def _with_headers(values: pa.Array, headers: pa.Array | None) -> tuple[Bytes, Offsets, Lengths]:
    """As `from_binary` of the values, with the bytes of each message's headers behind its value."""
    data, at, lengths = from_binary(values)
    # Of a slice they may not be one behind the other.
    tails, ends = encode_headers(headers) if headers is not None else (data, np.zeros(len(at) + 1, np.int64))
    joined, starts = np.empty(int(lengths.sum()) + int(ends[-1]), np.uint8), np.empty(len(at), np.int64)
    join(address_of(data), at, lengths, address_of(tails), ends, address_of(joined), starts)
    return joined, starts, lengths


@kernel
def join(  # noqa: PLR0913, PLR0917  (a kernel)
    values: Address,
    at: Offsets,
    lengths: Lengths,
    tails: Address,
    ends: Offsets,
    target: Address,
    starts: Offsets,
) -> None:
    """Copy each value and its tail to address `target`; `starts` int64[n] receives where each value begins.

    Values are at offsets `at` int64[n] from address `values`, tails between `ends` int64[n + 1] from `tails`.
    """
    position = 0
    for i in range(len(at)):
        starts[i] = position
        copy(Address(target + position), Address(values + at[i]), lengths[i])
        position += int(lengths[i])
        tail = ends[i + 1] - ends[i]
        copy(Address(target + position), Address(tails + ends[i]), tail)
        position += tail


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Numbers as int64, writable; nulls as 0."""
    return np.array(column.fill_null(0), np.int64)


def number_names(column: pa.Array, topics: Topics) -> npt.NDArray[np.int32]:
    """The number in `topics` of each row's name; a null is the empty name, which no topic has."""
    encoded: Any = column.fill_null("").dictionary_encode()
    numbers = [topics.add(name.encode()) for name in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int32)[np.asarray(encoded.indices)]


def to_headers(batch: Batch) -> pa.Array:
    """The headers of each message, of the type ARROW_HEADERS."""
    start = batch.value_at + batch.value_bytes
    end = batch.datagram_at + batch.datagram_bytes
    counts = measure(batch.data_at, start, end)
    lists = np.empty(len(batch) + 1, np.int32)
    names_at, values_at = (np.empty(counts[0] + 1, np.int32) for _ in range(2))
    names, values = (np.empty(size, np.uint8) for size in counts[1:])
    present = np.empty(counts[0], np.bool_)
    split(
        batch.data_at, start, end, lists, names_at, values_at, present, address_of(names), address_of(values)
    )
    bits = np.packbits(present, bitorder="little")
    name_buffers = [None, pa.py_buffer(names_at), pa.py_buffer(names)]
    text = pa.Array.from_buffers(pa.string(), counts[0], name_buffers)
    data = pa.Array.from_buffers(pa.binary(), counts[0], [*map(pa.py_buffer, (bits, values_at, values))])
    pairs = pa.StructArray.from_arrays([text, data], fields=list(ARROW_HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(lists), pairs, type=ARROW_HEADERS)


@kernel
def measure(base: Address, start: Offsets, end: Offsets) -> tuple[int, int, int]:
    """(headers, bytes of their names, bytes of their values) of messages; they are well-formed.

    `start`, `end` int64[messages]: from where to where the headers of each go, from address `base` on.
    """
    count = names = values = 0
    for row in range(len(start)):
        at = Address(base + start[row])
        while at < base + end[row]:
            name = load_be16(at)
            value = max(0, load_be32(Address(at + NAME_SIZE_BYTES + name)))
            at = Address(at + NAME_SIZE_BYTES + name + SIZE_BYTES + value)
            count, names, values = count + 1, names + name, values + value
    return count, names, values


@kernel
def split(  # noqa: PLR0913, PLR0917  (a kernel)
    base: Address,
    start: Offsets,
    end: Offsets,
    lists: Lengths,
    names_at: Lengths,
    values_at: Lengths,
    present: npt.NDArray[np.bool_],
    names: Address,
    values: Address,
) -> None:
    """Copy names and values, whose bytes `measure` has counted, to these addresses, one behind the other.

    `lists` int32[messages + 1] receives where the headers of each message begin; `names_at` and `values_at`
    int32[headers + 1] where each name and value begins, and where the last ends; `present` bool[headers]
    whether the value is not null.
    """
    count = name_at = value_at = 0
    for row in range(len(start)):
        lists[row] = count
        at = Address(base + start[row])
        while at < base + end[row]:
            name = load_be16(at)
            value = load_be32(Address(at + NAME_SIZE_BYTES + name))
            names_at[count], values_at[count], present[count] = name_at, value_at, value >= 0
            copy(Address(names + name_at), Address(at + NAME_SIZE_BYTES), name)
            at = Address(at + NAME_SIZE_BYTES + name + SIZE_BYTES)
            value = max(0, value)
            copy(Address(values + value_at), at, value)
            at = Address(at + value)
            count, name_at, value_at = count + 1, name_at + name, value_at + value
    lists[len(start)], names_at[count], values_at[count] = count, name_at, value_at


def encode_headers(column: pa.Array) -> tuple[Bytes, Offsets]:
    """Headers (ARROW_HEADERS) as a message has them: (bytes, int64[rows + 1] where those of a row begin).

    Raises BadSchema for what no message has.
    """
    rows = len(column)
    pairs = column.flatten()
    if len(pairs) == 0:
        return np.empty(0, np.uint8), np.zeros(rows + 1, np.int64)
    counts = np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)
    names, name_at, name_bytes = from_binary(pairs.field("key"))
    if counts.max() > MAX_HEADERS or name_bytes.max() > MAX_NAME_BYTES or not names.all():
        raise BadSchema(
            f"a message has up to {MAX_HEADERS} headers, with names of up to {MAX_NAME_BYTES} bytes and "
            "without a zero byte: leave out those that are no such ones"
        )
    values, value_at, value_bytes = from_binary(pairs.field("value"))
    present = np.asarray(pairs.field("value").is_valid())
    out = np.empty(len(pairs) * (NAME_SIZE_BYTES + SIZE_BYTES) + len(names) + len(values), np.uint8)
    ends = np.empty(rows + 1, np.int64)
    encode(
        counts,
        address_of(names),
        name_at,
        name_bytes,
        address_of(values),
        value_at,
        value_bytes,
        present,
        address_of(out),
        ends,
    )
    return out, ends


@kernel
def encode(  # noqa: PLR0913, PLR0917  (a kernel)
    counts: Offsets,
    names: Address,
    name_at: Offsets,
    name_bytes: Lengths,
    values: Address,
    value_at: Offsets,
    value_bytes: Lengths,
    present: npt.NDArray[np.bool_],
    target: Address,
    ends: Offsets,
) -> None:
    """Write headers to address `target`; `ends` int64[messages + 1] receives where those of each begin.

    `counts` int64[messages]: headers of each. Names and values are at offsets from their addresses:
    int64[headers], int32[headers]; `present` bool[headers] is false for a null value.
    """
    at, number = target, 0
    ends[0] = 0
    for row in range(len(counts)):
        for _ in range(counts[row]):
            name, value = name_bytes[number], value_bytes[number]
            store_u8(at, name >> 8)
            store_u8(at + 1, name & 255)
            copy(Address(at + NAME_SIZE_BYTES), Address(names + name_at[number]), name)
            at = Address(at + NAME_SIZE_BYTES + name)
            size = value if present[number] else -1
            for byte in range(SIZE_BYTES):
                store_u8(at + byte, (size >> (24 - 8 * byte)) & 255)
            copy(Address(at + SIZE_BYTES), Address(values + value_at[number]), value)
            at = Address(at + SIZE_BYTES + value)
            number += 1
        ends[row + 1] = at - target
