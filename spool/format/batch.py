"""Messages as columns, as they travel through bruce; and the compiled loop that parses stored bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.format.frame import FRAME_AT, FRAME_COUNT, LEAST_DATAGRAM_BYTES, Frames
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
from spool.format.topic_table import Topics, enter_at, refuse, topic_number
from spool.format.wire import (
    BY_PARTITION,
    BY_PARTITION_KEY,
    KIND_AT,
    MESSAGE_FLAGS_AT,
    NAME_SIZE_BYTES,
    NULL,
    NUMBER_AT,
    NUMBER_BYTES,
    REST_BYTES,
    SIZE_BYTES,
    TIMESTAMP_BYTES,
    TOPIC_AT,
    TOPIC_SIZE_BYTES,
    Kind,
    check_headers,
    encode,
    encode_message,
    load_be16,
    load_be32,
    load_be64,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call, load_i64, load_u8, load_u16, load_u32

__all__ = ["Batch", "Topics", "by_topic", "decode"]
SEQUENCE, TIMESTAMP, KEY_AT, VALUE_AT, DATAGRAM_AT, RECEIVED_NS = range(6)
"""Rows of `Batch.wide`."""
TOPIC, TRAITS, NUMBER, KEY_BYTES, VALUE_BYTES, DATAGRAM_BYTES = range(6)
"""Rows of `Batch.narrow`."""
KEYED, NUMBERED, NULL_KEY, NULL_VALUE, LONG = 1, 2, 4, 8, 16
"""Bits of TRAITS: NUMBER is a partition key; NUMBER is a partition; the key is null; the value is; it is a
Message (spool.format.wire)."""
_LONG = int(Kind.MESSAGE)
WIDE, NARROW, SENDERS = 6, 6, 2
"""Rows of the tables of a Batch."""
_UID, _PID = range(SENDERS)
"""Rows of the senders' table, which are written where a frame has them."""
START = 4
_FRAME, _MESSAGE, PARSED, _DATAGRAM = range(START)
"""The state of `fill`: frame and message in it, row of the columns, offset of the datagram."""

Wide = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in log order, as columns over the bytes they were read from.

    Offsets count from the start of `data`. The columns are the rows of three tables, which compiled loops
    take whole; a column is made an object when it is asked for.
    """

    data: npt.NDArray[np.uint8]
    data_at: Address
    """Of its first byte."""
    topics: Topics
    wide: Wide
    """int64[6, messages]: SEQUENCE and so on; contiguous."""
    narrow: Narrow
    """int32[6, messages]: TOPIC and so on; contiguous."""
    senders: npt.NDArray[np.uint32]
    """uint32[2, messages]: uid and pid; contiguous."""

    @staticmethod
    def of(
        data: npt.NDArray[np.uint8],
        topics: Topics,
        wide: Sequence[npt.NDArray[Any]],
        narrow: Sequence[npt.NDArray[Any]],
    ) -> Batch:
        """A batch of columns in the order of the tables' rows, without senders."""
        tables = np.array(wide, np.int64), np.array(narrow, np.int32)
        return Batch(data, address_of(data), topics, *tables, np.zeros((SENDERS, len(wide[0])), np.uint32))

    @property
    def sequence(self) -> npt.NDArray[np.int64]:
        """int64[messages]: the number of each in the log."""
        return self.wide[SEQUENCE]

    @property
    def topic(self) -> npt.NDArray[np.int32]:
        """int32[messages]: number in `topics`."""
        return self.narrow[TOPIC]

    @property
    def traits(self) -> npt.NDArray[np.int32]:
        """int32[messages]: bits, KEYED and so on."""
        return self.narrow[TRAITS]

    @property
    def keyed(self) -> npt.NDArray[np.bool_]:
        """bool[messages]: true for messages with a partition key."""
        return (self.narrow[TRAITS] & KEYED) != 0

    @property
    def numbered(self) -> npt.NDArray[np.bool_]:
        """bool[messages]: true for messages that name their partition."""
        return (self.narrow[TRAITS] & NUMBERED) != 0

    @property
    def number(self) -> npt.NDArray[np.int32]:
        """int32[messages]: the partition key, or the partition; 0 without either."""
        return self.narrow[NUMBER]

    @property
    def timestamp(self) -> npt.NDArray[np.int64]:
        """int64[messages]: as sent, milliseconds since the epoch."""
        return self.wide[TIMESTAMP]

    @property
    def key_at(self) -> npt.NDArray[np.int64]:
        """int64[messages]: offsets of keys."""
        return self.wide[KEY_AT]

    @property
    def key_bytes(self) -> npt.NDArray[np.int32]:
        """int32[messages]: lengths of keys."""
        return self.narrow[KEY_BYTES]

    @property
    def value_at(self) -> npt.NDArray[np.int64]:
        """int64[messages]: offsets of values."""
        return self.wide[VALUE_AT]

    @property
    def value_bytes(self) -> npt.NDArray[np.int32]:
        """int32[messages]: lengths of values."""
        return self.narrow[VALUE_BYTES]

    @property
    def datagram_at(self) -> npt.NDArray[np.int64]:
        """int64[messages]: offsets of messages as they were received."""
        return self.wide[DATAGRAM_AT]

    @property
    def datagram_bytes(self) -> npt.NDArray[np.int32]:
        """int32[messages]: lengths of messages as they were received."""
        return self.narrow[DATAGRAM_BYTES]

    @property
    def received_ns(self) -> npt.NDArray[np.int64]:
        """int64[messages]: ns since the epoch."""
        return self.wide[RECEIVED_NS]

    @property
    def uid(self) -> npt.NDArray[np.uint32]:
        """uint32[messages]: of the senders; 0 where it is not known."""
        return self.senders[0]

    @property
    def pid(self) -> npt.NDArray[np.uint32]:
        """uint32[messages]: likewise."""
        return self.senders[1]

    def __len__(self) -> int:
        return int(self.wide.shape[1])

    def key(self, row: int) -> bytes | None:
        """The key of one message; None when it is null. An empty key is, but of a Message."""
        if self.narrow[TRAITS, row] & NULL_KEY:
            return None
        return self._bytes(self.wide[KEY_AT, row], self.narrow[KEY_BYTES, row])

    def value(self, row: int) -> bytes | None:
        """The value of one message; None when it is null."""
        if self.narrow[TRAITS, row] & NULL_VALUE:
            return None
        return self._bytes(self.wide[VALUE_AT, row], self.narrow[VALUE_BYTES, row])

    def headers(self, row: int) -> list[tuple[str, bytes | None]]:
        """The headers of one message, in order; a value may be null."""
        start = int(self.wide[VALUE_AT, row]) + int(self.narrow[VALUE_BYTES, row])
        end = int(self.wide[DATAGRAM_AT, row]) + int(self.narrow[DATAGRAM_BYTES, row])
        return split_headers(self._bytes(start, end - start))

    def topic_name(self, row: int) -> bytes:
        """The topic of one message, even if it has no number of its own."""
        at = int(self.wide[DATAGRAM_AT, row]) + TOPIC_AT
        at += NUMBER_BYTES if self.narrow[TRAITS, row] & (KEYED | LONG) else 0
        length = int.from_bytes(self._bytes(at, TOPIC_SIZE_BYTES), "big")
        return self._bytes(at + TOPIC_SIZE_BYTES, length)

    def encode(self, row: int, topic: bytes) -> bytes:
        """One message as its sender encoded it, from its columns: where its datagram is not at hand."""
        key, value, timestamp = self.key(row), self.value(row), int(self.timestamp[row])
        number, traits = int(self.number[row]), int(self.traits[row])
        partition_key = number if traits & KEYED else None
        if not traits & LONG:
            return encode(
                topic, value or b"", key=key or b"", timestamp=timestamp, partition_key=partition_key
            )
        return encode_message(
            topic,
            value,
            key=key,
            timestamp=timestamp,
            partition=number if traits & NUMBERED else None,
            partition_key=partition_key,
            headers=self.headers(row),
        )

    @property
    def payload_bytes(self) -> npt.NDArray[np.int32]:
        """int32[messages]: lengths of keys, values and headers together."""
        behind_value = self.datagram_at + self.datagram_bytes - self.value_at
        return (self.key_bytes + behind_value).astype(np.int32)

    def datagram(self, row: int) -> bytes:
        """One message as it was received."""
        return self._bytes(self.wide[DATAGRAM_AT, row], self.narrow[DATAGRAM_BYTES, row])

    def _bytes(self, at: Any, length: Any) -> bytes:
        start = int(at)
        return self.data[start : start + int(length)].tobytes()

    def kept(self) -> Batch:
        """The same, over a copy of its bytes: the buffer that it was read from may be used again."""
        end = int(self.datagram_at[-1] + self.datagram_bytes[-1]) if len(self) else 0
        data = self.data[:end].copy()
        return replace(self, data=data, data_at=address_of(data))

    def after(self, rows: int) -> Batch:
        """The same without its first `rows` messages."""
        return self._cut(slice(rows, None)) if rows else self

    def before(self, rows: int) -> Batch:
        """The first `rows` messages of it."""
        return self._cut(slice(rows))

    def of_topic(self, number: int) -> Batch:
        """The same, all of one topic."""
        narrow = self.narrow.copy()
        narrow[TOPIC] = number
        return replace(self, narrow=narrow)

    def _cut(self, part: slice) -> Batch:
        return replace(
            self,
            wide=np.ascontiguousarray(self.wide[:, part]),
            narrow=np.ascontiguousarray(self.narrow[:, part]),
            senders=np.ascontiguousarray(self.senders[:, part]),
        )


def split_headers(data: bytes) -> list[tuple[str, bytes | None]]:
    """The headers in the bytes behind the value of a message that was accepted; a value may be null."""
    found: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(data):
        name_at = at + NAME_SIZE_BYTES
        size_at = name_at + int.from_bytes(data[at:name_at], "big")
        at = size_at + SIZE_BYTES
        size = int.from_bytes(data[size_at:at], "big", signed=True)
        name = data[name_at:size_at].decode(errors="replace")
        found.append((name, None if size == NULL else data[at : at + size]))
        at += max(size, 0)
    return found


def by_topic(topics: npt.NDArray[np.int32]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(number of a topic, its rows in order) of each topic in a column."""
    order = np.argsort(topics, kind="stable")
    starts = np.flatnonzero(np.diff(topics[order], prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=False):
        yield int(topics[order[start]]), order[start:end]


@subkernel
def _lengths(at: Address, length: int) -> tuple[int, int, int, int]:
    """(Kind, bytes of the topic, of the key, of the value) of a message at address `at`; NULL: null.

    The topic has 0 if they do not fit into the `length` bytes, of which there are enough for the smallest.
    """
    kind = load_u8(at + KIND_AT)
    topic_at = TOPIC_AT + (NUMBER_BYTES if kind != 0 else 0)
    topic = load_be16(Address(at + topic_at))
    left = length - topic_at - TOPIC_SIZE_BYTES - REST_BYTES - topic
    if kind > _LONG or topic < 1 or left < 0:
        return kind, 0, 0, 0
    key_at = Address(at + topic_at + TOPIC_SIZE_BYTES + topic + TIMESTAMP_BYTES)
    least, key = NULL if kind == _LONG else 0, load_be32(key_at)
    if key < least or key > left:
        return kind, 0, 0, 0
    left -= max(key, 0)
    value = load_be32(Address(key_at + SIZE_BYTES + max(key, 0)))
    if value < least or value > left or (kind != _LONG and value != left):
        return kind, 0, 0, 0
    behind = Address(key_at + 2 * SIZE_BYTES + max(key, 0) + max(value, 0))
    if kind == _LONG and check_headers(behind, left - max(value, 0)) != 0:
        return kind, 0, 0, 0
    return kind, topic, key, value


@subkernel
def _traits(at: Address, kind: int, key_bytes: int, value_bytes: int) -> int:
    """The TRAITS of a message at address `at`, of this Kind and with these lengths; NULL: null."""
    if kind != _LONG:
        return (KEYED if kind != 0 else 0) | (NULL_KEY if key_bytes == 0 else 0)
    flags = load_be16(Address(at + MESSAGE_FLAGS_AT))
    traits = LONG | (KEYED if flags == BY_PARTITION_KEY else 0) | (NUMBERED if flags == BY_PARTITION else 0)
    return traits | (NULL_KEY if key_bytes < 0 else 0) | (NULL_VALUE if value_bytes < 0 else 0)


@kernel
def fill(
    base: Address,
    offset: int,
    frames: Frames,
    start: npt.NDArray[np.int64],
    wide: npt.NDArray[np.int64],
    narrow: npt.NDArray[np.int32],
    senders: npt.NDArray[np.uint32],
    digest: int,
    slots: npt.NDArray[np.int64],
    homes: npt.NDArray[np.uint8],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: Address,
    welcome: npt.NDArray[np.int64],
) -> bool:
    """Parse from `start` int64[START] on; a topic that is new is entered.

    `frames` int64[n, ROW]. Writes `wide` int64[WIDE, messages], `narrow` int32[NARROW, messages] and
    `senders` uint32[2, messages], with room for all messages of the frames. Offsets count from `base`.

    Returns False if the topic table has no room (arguments behind `digest`: spool.format.topic_table.Table).
    `start` has moved by then: the caller makes room and calls again. Offsets count from `base`, which has
    `offset` in the segment. A right digest proves that a frame is as it was written, not who wrote it: a
    frame gets no rows when its datagrams claim more bytes than it has.
    """
    row = start[PARSED]
    slots_at, homes_at = Address(slots.ctypes.data), Address(homes.ctypes.data)
    words_at, names_at = Address(words.ctypes.data), Address(names.ctypes.data)
    welcome_at = Address(welcome.ctypes.data)
    for f in range(start[_FRAME], frames.shape[0]):
        head = frames[f, FRAME_AT] - offset
        at = base + head
        flags, count = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT)
        lengths = at + HEAD_BYTES
        columns = 1 + (flags & UIDS) + ((flags & PIDS) >> 1)
        room = head + HEAD_BYTES + load_u32(at + BODY_BYTES_AT) - load_u32(at + DISCARD_BYTES_AT)
        sequence, received = load_i64(at + SEQUENCE_AT), load_i64(at + RECEIVED_AT)
        end = start[_DATAGRAM]
        if start[_MESSAGE] == 0:
            end = head + HEAD_BYTES + 4 * count * columns
        for i in range(start[_MESSAGE], count):
            datagram, length = end, load_u32(lengths + 4 * i)
            end = datagram + length
            found = LEAST_DATAGRAM_BYTES <= length <= room - datagram
            kind, topic_bytes, key_bytes, value_bytes = 0, 0, 0, 0
            if found:
                kind, topic_bytes, key_bytes, value_bytes = _lengths(Address(base + datagram), length)
            if topic_bytes < 1:
                row -= i
                break
            topic = datagram + TOPIC_AT + (NUMBER_BYTES if kind != 0 else 0)
            field = topic + TOPIC_SIZE_BYTES + topic_bytes
            key = field + TIMESTAMP_BYTES + SIZE_BYTES
            traits = _traits(Address(base + datagram), kind, key_bytes, value_bytes)
            key_bytes, value_bytes = max(key_bytes, 0), max(value_bytes, 0)
            name = Address(base + topic + TOPIC_SIZE_BYTES)
            hashed = call(digest, name, topic_bytes, seed)
            number = topic_number(hashed, slots_at, slots.shape[0], homes_at)
            if number < 0:
                number = refuse(words_at)
            if number < 0:
                number = enter_at(
                    name,
                    topic_bytes,
                    hashed,
                    slots_at,
                    slots.shape[0],
                    homes_at,
                    words_at,
                    names_at,
                    names.shape[0],
                    arena_at,
                    arena.shape[0],
                    welcome_at,
                    welcome.shape[0],
                )
            if number < 0:
                start[_FRAME], start[_MESSAGE], start[PARSED], start[_DATAGRAM] = f, i, row, datagram
                return False
            wide[SEQUENCE, row] = sequence + i
            wide[TIMESTAMP, row] = load_be64(Address(base + field))
            wide[KEY_AT, row] = key
            wide[VALUE_AT, row] = field + REST_BYTES + key_bytes
            wide[DATAGRAM_AT, row] = datagram
            wide[RECEIVED_NS, row] = received
            narrow[TOPIC, row] = number
            narrow[TRAITS, row] = traits
            has_number = traits & (KEYED | NUMBERED) != 0
            narrow[NUMBER, row] = load_be32(Address(base + datagram + NUMBER_AT)) if has_number else 0
            narrow[KEY_BYTES, row] = key_bytes
            narrow[VALUE_BYTES, row] = value_bytes
            narrow[DATAGRAM_BYTES, row] = length
            if flags & UIDS:
                senders[_UID, row] = load_u32(lengths + 4 * (count + i))
            if flags & PIDS:
                senders[_PID, row] = load_u32(lengths + 4 * (count * (columns - 1) + i))
            row += 1
        start[_MESSAGE] = 0
    start[PARSED] = row
    return True


def decode(
    data: npt.NDArray[np.uint8],
    offset: int,
    frames: npt.NDArray[Any],
    topics: Topics,
    digest: int,
    data_at: Address | None = None,
) -> Batch:
    """The messages of `frames` (int64[n, ROW], as `walk` left them), whose bytes are in `data`.

    `offset` is that of `data` in the segment. `digest` is the digest function's address. `data_at` is that of
    `data`, where it is known: to ask for it costs more than to parse a message. Offsets in the result count
    from the start of `data`. The frames must have been verified; one that holds anything but whole datagrams
    has no messages in the result.
    """
    total = int(frames[:, FRAME_COUNT].sum())
    wide, narrow = np.empty((WIDE, total), np.int64), np.empty((NARROW, total), np.int32)
    senders = np.zeros((SENDERS, total), np.uint32)
    frames = np.ascontiguousarray(frames)
    start, base = np.zeros(START, np.int64), data_at or address_of(data)
    while not fill(base, offset, frames, start, wide, narrow, senders, digest, *topics.table):
        topics.make_room()
    batch = Batch(data, base, topics, wide, narrow, senders)
    parsed = int(start[PARSED])
    return batch if parsed == total else batch.before(parsed)
