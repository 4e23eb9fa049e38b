"""Messages as columns, as they travel through bruce; and the compiled loop that parses stored bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.format.frame import FRAME_AT, FRAME_COUNT, LEAST_DATAGRAM_BYTES, ROW, Frames
from spool.format.segment_format import (
    BODY_BYTES_AT,
    COUNT_AT,
    DISCARD_BYTES_AT,
    FLAGS_AT,
    HEAD_BYTES,
    PIDS,
    RECEIVED_AT,
    SEQUENCE_AT,
    UIDS,
)
from spool.format.topic_table import Topics, enter, refuse, topic_number
from spool.format.wire import (
    KEYED_AT,
    PARTITION_KEY_AT,
    PARTITION_KEY_BYTES,
    REST_BYTES,
    SIZE_BYTES,
    TIMESTAMP_BYTES,
    TOPIC_AT,
    TOPIC_SIZE_BYTES,
    load_be16,
    load_be32,
    load_be64,
)
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, load_i64, load_u8, load_u16, load_u32

__all__ = ["Batch", "Topics", "by_topic", "decode"]
_NARROW = 6
_TOPIC, _KEYED, _PARTITION_KEY, _KEY_BYTES, _VALUE_BYTES, _DATAGRAM_BYTES = range(_NARROW)
"""int32 columns that `_fill` writes."""
_WIDE = 6
_SEQUENCE, _TIMESTAMP, _KEY_AT, _VALUE_AT, _DATAGRAM_AT, _RECEIVED_NS = range(_WIDE)
"""int64 columns that `_fill` writes."""
_UID, _PID = range(2)
"""uint32 columns that `_fill` writes where a frame has them."""
_START = 4
_FRAME, _MESSAGE, _ROW, _DATAGRAM = range(_START)
"""The state of `_fill`: frame and message in it, row of the columns, offset of the datagram."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in log order, as columns over the bytes they were read from.

    Offsets count from the start of `data`. All columns have the same length.
    """

    data: npt.NDArray[np.uint8]
    topics: Topics
    sequence: npt.NDArray[np.int64]
    topic: npt.NDArray[np.int32]
    """Number in `topics`."""
    keyed: npt.NDArray[np.bool_]
    """True for PartitionKey messages."""
    partition_key: npt.NDArray[np.int32]
    timestamp: npt.NDArray[np.int64]
    """As sent: milliseconds since the epoch."""
    key_at: npt.NDArray[np.int64]
    key_bytes: npt.NDArray[np.int32]
    value_at: npt.NDArray[np.int64]
    value_bytes: npt.NDArray[np.int32]
    datagram_at: npt.NDArray[np.int64]
    datagram_bytes: npt.NDArray[np.int32]
    received_ns: npt.NDArray[np.int64]
    uid: npt.NDArray[np.uint32]
    pid: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.sequence)

    def key(self, row: int) -> bytes | None:
        """The key of one message; None when it is empty."""
        at = int(self.key_at[row])
        return self.data[at : at + int(self.key_bytes[row])].tobytes() or None

    def value(self, row: int) -> bytes:
        """The value of one message."""
        at = int(self.value_at[row])
        return self.data[at : at + int(self.value_bytes[row])].tobytes()

    def topic_name(self, row: int) -> bytes:
        """The topic of one message, even if it has no number of its own."""
        at = int(self.datagram_at[row]) + TOPIC_AT + PARTITION_KEY_BYTES * int(self.keyed[row])
        name = at + TOPIC_SIZE_BYTES
        length = int.from_bytes(self.data[at:name].tobytes(), "big")
        return self.data[name : name + length].tobytes()

    def datagram(self, row: int) -> bytes:
        """One message as it was received."""
        at = int(self.datagram_at[row])
        return self.data[at : at + int(self.datagram_bytes[row])].tobytes()

    def kept(self) -> Batch:
        """The same, over a copy of its bytes: the buffer that it was read from may be used again."""
        end = int(self.datagram_at[-1] + self.datagram_bytes[-1]) if len(self) else 0
        return replace(self, data=self.data[:end].copy())

    def after(self, rows: int) -> Batch:
        """The same without its first `rows` messages."""
        return self._cut(slice(rows, None)) if rows else self

    def before(self, rows: int) -> Batch:
        """The first `rows` messages of it."""
        return self._cut(slice(rows))

    def _cut(self, part: slice) -> Batch:
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: value[part] for name, value in cut.items() if name not in ("data", "topics")}
        return Batch(data=self.data, topics=self.topics, **columns)


def by_topic(topics: npt.NDArray[np.int32]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(number of a topic, its rows in order) of each topic in a column."""
    order = np.argsort(topics, kind="stable")
    starts = np.flatnonzero(np.diff(topics[order], prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=False):
        yield int(topics[order[start]]), order[start:end]


@kernel
def _fill(
    base: Address,
    frames: Frames,
    start: npt.NDArray[np.int64],
    wide: npt.NDArray[np.int64],
    narrow: npt.NDArray[np.int32],
    senders: npt.NDArray[np.uint32],
    digest: int,
    slots: npt.NDArray[np.int64],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: Address,
    welcome: npt.NDArray[np.int64],
) -> bool:
    """Parse from `start` int64[_START] on; a topic that is new is entered.

    `frames` int64[n, ROW]. Writes `wide` int64[_WIDE, messages], `narrow` int32[_NARROW, messages] and
    `senders` uint32[2, messages], with room for all messages of the frames. Offsets count from `base`.

    Returns False if the topic table has no room (arguments behind `digest`: spool.format.topic_table.Table).
    `start` has moved by then: the caller makes room and calls again. A right digest proves that a frame is as
    it was written, not who wrote it: a frame gets no rows when its datagrams claim more bytes than it has.
    """
    row = start[_ROW]
    for f in range(start[_FRAME], frames.shape[0]):
        head = frames[f, FRAME_AT]
        at = base + head
        flags, count = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT)
        lengths = at + HEAD_BYTES
        columns = 1 + (flags & UIDS) + ((flags & PIDS) >> 1)
        room = head + HEAD_BYTES + load_u32(at + BODY_BYTES_AT) - load_u32(at + DISCARD_BYTES_AT)
        if start[_MESSAGE] == 0:
            start[_DATAGRAM] = head + HEAD_BYTES + 4 * count * columns
        for i in range(start[_MESSAGE], count):
            datagram = start[_DATAGRAM]
            length = load_u32(lengths + 4 * i)
            end = datagram + length
            if length < LEAST_DATAGRAM_BYTES or end > room:
                row -= i
                break
            keyed = load_u8(base + datagram + KEYED_AT)
            topic = datagram + TOPIC_AT + PARTITION_KEY_BYTES * (keyed & 1)
            topic_bytes = load_be16(Address(base + topic))
            field = topic + TOPIC_SIZE_BYTES + topic_bytes
            if keyed > 1 or topic_bytes < 1 or field + REST_BYTES > end:
                row -= i
                break
            key_bytes = load_be32(Address(base + field + TIMESTAMP_BYTES))
            if key_bytes < 0 or field + REST_BYTES + key_bytes > end:
                row -= i
                break
            key = field + TIMESTAMP_BYTES + SIZE_BYTES
            value_bytes = load_be32(Address(base + key + key_bytes))
            if field + REST_BYTES + key_bytes + value_bytes != end:
                row -= i
                break
            name = Address(base + topic + TOPIC_SIZE_BYTES)
            # Most names are in the table, and each array that is passed on costs a reference count.
            number = topic_number(name, topic_bytes, slots, seed, digest)
            if number < 0:
                number = refuse(words)
            if number < 0:
                number = enter(name, topic_bytes, digest, slots, seed, words, names, arena, arena_at, welcome)
            if number < 0:
                start[_FRAME], start[_MESSAGE], start[_ROW] = f, i, row
                return False
            wide[_SEQUENCE, row] = load_i64(at + SEQUENCE_AT) + i
            wide[_TIMESTAMP, row] = load_be64(Address(base + field))
            wide[_KEY_AT, row] = key
            wide[_VALUE_AT, row] = field + REST_BYTES + key_bytes
            wide[_DATAGRAM_AT, row] = datagram
            wide[_RECEIVED_NS, row] = load_i64(at + RECEIVED_AT)
            narrow[_TOPIC, row] = number
            narrow[_KEYED, row] = keyed
            narrow[_PARTITION_KEY, row] = (
                load_be32(Address(base + datagram + PARTITION_KEY_AT)) if keyed else 0
            )
            narrow[_KEY_BYTES, row] = key_bytes
            narrow[_VALUE_BYTES, row] = value_bytes
            narrow[_DATAGRAM_BYTES, row] = length
            if flags & UIDS:
                senders[_UID, row] = load_u32(lengths + 4 * (count + i))
            if flags & PIDS:
                senders[_PID, row] = load_u32(lengths + 4 * (count * (columns - 1) + i))
            start[_DATAGRAM] = end
            row += 1
        start[_MESSAGE] = 0
    start[_ROW] = row
    return True


def decode(
    data: npt.NDArray[np.uint8], offset: int, frames: npt.NDArray[Any], topics: Topics, digest: int
) -> Batch:
    """The messages of `frames` (int64[n, ROW], as `walk` left them), whose bytes are in `data`.

    `offset` is that of `data` in the segment. `digest` is the digest function's address.
    Offsets in the result count from the start of `data`. The frames must have been verified; one that holds
    anything but whole datagrams has no messages in the result.
    """
    total = int(frames[:, FRAME_COUNT].sum())
    wide, narrow = np.empty((_WIDE, total), np.int64), np.empty((_NARROW, total), np.int32)
    senders = np.zeros((2, total), np.uint32)
    rows = np.ascontiguousarray(frames).reshape(-1, ROW).copy()
    rows[:, FRAME_AT] -= offset
    start = np.zeros(_START, np.int64)
    while not _fill(address_of(data), rows, start, wide, narrow, senders, digest, *topics.table):
        topics.make_room()
    parsed = int(start[_ROW])
    wide, narrow, senders = wide[:, :parsed], narrow[:, :parsed], senders[:, :parsed]
    return Batch(
        data=data,
        topics=topics,
        sequence=wide[_SEQUENCE],
        topic=narrow[_TOPIC],
        keyed=narrow[_KEYED].astype(np.bool_),
        partition_key=narrow[_PARTITION_KEY],
        timestamp=wide[_TIMESTAMP],
        key_at=wide[_KEY_AT],
        key_bytes=narrow[_KEY_BYTES],
        value_at=wide[_VALUE_AT],
        value_bytes=narrow[_VALUE_BYTES],
        datagram_at=wide[_DATAGRAM_AT],
        datagram_bytes=narrow[_DATAGRAM_BYTES],
        received_ns=wide[_RECEIVED_NS],
        uid=senders[_UID],
        pid=senders[_PID],
    )
