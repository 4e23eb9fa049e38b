"""A producer's record batch, and how its records become messages of the log. Compiled, no allocation.

Source: Kafka's documentation, section "Message Format", and KIP-98. Integers are big-endian; a varint is
zigzag, seven bits a byte, the lowest first.

    RecordBatch := base_offset:i64 length:i32 leader_epoch:i32 magic:i8=2 crc:u32 attributes:i16
                   last_offset_delta:i32 base_timestamp:i64 max_timestamp:i64
                   producer_id:i64 producer_epoch:i16 base_sequence:i32 count:i32 record[count]
    record      := length:varint attributes:i8 timestamp_delta:varint offset_delta:varint
                   key_size:varint key value_size:varint value header_count:varint header[header_count]
    header      := name_size:varint name value_size:varint value

`crc` is the CRC-32C of all behind it. Bits 0 to 2 of `attributes` are the codec that the records are
compressed with; bit 3: the timestamp is the broker's; bit 4: of a transaction; bit 5: of the broker's own. A
size of -1 is null.

Records become Messages (spool.format.wire) in Batches of up to MAX_BATCH. A batch is checked as a whole
before the first of its records is written: what the log does not take refuses all of them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np
from crc32c import crc32c

from ingest.buffers.messages import FOLLOWS, OUTCOME_BYTES, VERDICT
from spool.format.segment_format import COLUMNS_BYTES, MAX_BURST, ROW_BYTES
from spool.format.wire import (
    BATCH_HEAD_BYTES,
    BY_PARTITION,
    MAX_BATCH,
    MAX_HEADERS,
    MAX_NAME_BYTES,
    NAME_SIZE_BYTES,
    NULL,
    NUMBER_AT,
    NUMBER_BYTES,
    REST_BYTES,
    SIZE_BYTES,
    TIMESTAMP_BYTES,
    TOPIC_SIZE_BYTES,
    is_text,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, copy, load_u8, store_i64, store_u8

_HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = _HEAD.size
_LENGTH_FROM, _CRC_FROM = 12, 21
"""Offsets of the bytes that `length` counts, and of those that `crc` is of."""
_MAGIC = 2
_CODEC, _BROKERS_TIME, _TRANSACTION, _CONTROL = 7, 8, 16, 32
NO_PRODUCER = -1
NO_TIMESTAMP = -1
_NO_PARTITION = -1
_FIXED_BYTES = NUMBER_AT + NUMBER_BYTES + TOPIC_SIZE_BYTES + REST_BYTES
"""Of a Message without topic, key, value and headers."""
_MESSAGE, _BATCH = 258, 259
_MOST_VARINT_BITS = 63


class Wrong(IntEnum):
    """Why a record batch is not taken. Those of its records are found by `check_records`."""

    NOTHING = 0
    RECORDS = 1
    """A record runs past the end, or there are not as many as the head says."""
    HEADERS = 2
    """A record has too many headers, or a name that is too long or not text."""
    TOO_LARGE = 3
    """A record is larger than a message may be."""
    LENGTH = 4
    """Its length is not that of the bytes received."""
    MAGIC = 5
    """Of a format before 2."""
    CRC = 6
    CODEC = 7
    """Compressed with a codec that Kafka does not have."""
    TRANSACTION = 8
    CONTROL = 9
    """Of a kind that brokers alone write, or with the broker's timestamps."""
    UNPACKED = 10
    """Decompressed, its records are more bytes than a batch may have, or they are damaged."""


_RECORDS, _HEADERS, _TOO_LARGE = int(Wrong.RECORDS), int(Wrong.HEADERS), int(Wrong.TOO_LARGE)


class BadBatch(Exception):
    """A record batch that is not taken."""

    def __init__(self, wrong: Wrong, at: int = -1) -> None:
        """`at`: which record is wrong; -1: it is not one of them."""
        super().__init__(wrong.name)
        self.wrong, self.at = wrong, at


class Head(NamedTuple):
    """The head of a record batch whose bytes are those that it was sent with."""

    codec: int
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    timestamp: int
    """The base of its records' timestamps, ms since the epoch."""
    producer: int
    """NO_PRODUCER for one that is not idempotent."""
    epoch: int
    sequence: int
    """The producer's, of the first record."""
    records: int

    @classmethod
    def read(cls, batch: memoryview) -> Self:
        """The head of a batch, whose records are the bytes behind HEAD_BYTES. Raises BadBatch."""
        if len(batch) <= _LENGTH_FROM or len(batch) < HEAD_BYTES:
            raise BadBatch(Wrong.LENGTH)
        fields = _HEAD.unpack_from(batch)
        _, length, _, magic, crc, attributes, last, timestamp, _, producer, epoch, sequence, count = fields
        if magic != _MAGIC:
            raise BadBatch(Wrong.MAGIC)
        if length != len(batch) - _LENGTH_FROM:
            raise BadBatch(Wrong.LENGTH)
        if crc32c(batch[_CRC_FROM:]) != crc:
            raise BadBatch(Wrong.CRC)
        if attributes & _TRANSACTION:
            raise BadBatch(Wrong.TRANSACTION)
        if attributes & (_CONTROL | _BROKERS_TIME):
            raise BadBatch(Wrong.CONTROL)
        if count < 1 or last != count - 1 or (producer != NO_PRODUCER and (epoch < 0 or sequence < 0)):
            raise BadBatch(Wrong.RECORDS)
        return cls(attributes & _CODEC, timestamp, producer, epoch, sequence, count)


class Source(NamedTuple):
    """The records of a batch, for `write_records`."""

    records: Address
    end: Address
    timestamp: int
    """ms since the epoch; NO_TIMESTAMP: the records have none."""
    now: int
    """Instead of no timestamp."""
    partition: int
    """-1: what the topic's partitioner says."""
    topic: Address
    topic_bytes: int


@subkernel
def _varint(at: Address, end: Address) -> tuple[int, Address]:
    """(value, the address behind it) of a varint; address 0 if it runs past the end, or past 63 bits."""
    value = shift = 0
    while at < end and shift < _MOST_VARINT_BITS:
        byte = load_u8(at)
        value |= (byte & 127) << shift
        at = Address(at + 1)
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, Address(0)


@subkernel
def _sized(at: Address, end: Address) -> tuple[int, Address]:
    """(size, the address of its first byte) of a key or a value; -1: null. Address 0 if it is wrong."""
    size, at = _varint(at, end)
    if at == 0 or size < NULL or size > end - at:
        return 0, Address(0)
    return size, at


@subkernel
def _behind(at: Address, size: int) -> Address:
    return Address(at + max(size, 0))


@subkernel
def _record(at: Address, end: Address) -> tuple[Address, int, Address]:
    """(the address of its key's size, timestamp delta, its end) of the record at an address; end 0: wrong."""
    size, at = _varint(at, end)
    if at == 0 or size < 1 or size > end - at:
        return at, 0, Address(0)
    end = Address(at + size)
    timestamp, at = _varint(Address(at + 1), end)
    if at != 0:
        _, at = _varint(at, end)
    return at, timestamp, end if at != 0 else Address(0)


@subkernel
def _header_sizes(at: Address, end: Address) -> tuple[int, int]:
    """(the Wrong about the headers that begin at an address and end at `end`; their bytes in a Message)."""
    count, at = _varint(at, end)
    if at == 0 or count < 0:
        return _RECORDS, 0
    if count > MAX_HEADERS:
        return _HEADERS, 0
    total = 0
    for _ in range(count):
        name, at = _sized(at, end)
        if at == 0 or name < 0:
            return _RECORDS, 0
        if name > MAX_NAME_BYTES or not is_text(at, name):
            return _HEADERS, 0
        value, at = _sized(Address(at + name), end)
        if at == 0:
            return _RECORDS, 0
        at = _behind(at, value)
        total += NAME_SIZE_BYTES + name + SIZE_BYTES + max(value, 0)
    return (0 if at == end else _RECORDS), total


@kernel
def check_records(
    records: Address, end: Address, count: int, topic_bytes: int, limit: int
) -> tuple[int, int]:
    """(the Wrong about the `count` records between two addresses, which record that is); (0, count): none.

    `limit`: bytes of the Message that a record becomes, its size field not counted.
    """
    at = records
    for number in range(count):
        key_at, _, record_end = _record(at, end)
        if record_end == 0:
            return _RECORDS, number
        key, body = _sized(key_at, record_end)
        if body == 0:
            return _RECORDS, number
        value, body = _sized(_behind(body, key), record_end)
        if body == 0:
            return _RECORDS, number
        wrong, headers = _header_sizes(_behind(body, value), record_end)
        if wrong != 0:
            return wrong, number
        if _FIXED_BYTES + topic_bytes + max(key, 0) + max(value, 0) + headers - SIZE_BYTES > limit:
            return _TOO_LARGE, number
        at = record_end
    return (0, count) if at == end else (_RECORDS, count - 1)


@kernel
def skip_records(records: Address, end: Address, count: int) -> int:
    """The offset behind the first `count` records between two addresses, which were checked."""
    at = records
    for _ in range(count):
        _, _, at = _record(at, end)
    return at - records


@subkernel
def _store_be(at: Address, value: int, size: int) -> Address:
    """Store the `size` low bytes of a value, the highest first; the address behind them."""
    for i in range(size):
        store_u8(at + i, (value >> (8 * (size - 1 - i))) & 255)
    return Address(at + size)


@subkernel
def _copy_sized(target: Address, at: Address, end: Address) -> tuple[Address, Address]:
    """Write a key or a value behind its size: (the address behind it, the address behind the record's)."""
    size, at = _sized(at, end)
    target = _store_be(target, size, SIZE_BYTES)
    if size > 0:
        copy(target, at, size)
    return _behind(target, size), _behind(at, size)


@subkernel
def _write_message(target: Address, source: Source, at: Address) -> tuple[Address, Address]:
    """Write the record at an address, which is well formed, as a Message: (its end, the record's)."""
    begin = target
    at, delta, end = _record(at, source.end)
    target = _store_be(Address(target + SIZE_BYTES), _MESSAGE, 2)
    target = _store_be(target, 0, 2)
    target = _store_be(target, BY_PARTITION if source.partition >= 0 else 0, 2)
    target = _store_be(target, max(source.partition, 0), NUMBER_BYTES)
    target = _store_be(target, source.topic_bytes, TOPIC_SIZE_BYTES)
    copy(target, source.topic, source.topic_bytes)
    timestamp = source.now if source.timestamp == NO_TIMESTAMP else source.timestamp + delta
    target = _store_be(Address(target + source.topic_bytes), timestamp, TIMESTAMP_BYTES)
    target, at = _copy_sized(target, at, end)
    target, at = _copy_sized(target, at, end)
    count, at = _varint(at, end)
    for _ in range(count):
        name, at = _varint(at, end)
        target = _store_be(target, name, NAME_SIZE_BYTES)
        copy(target, at, name)
        target, at = _copy_sized(Address(target + name), Address(at + name), end)
    _store_be(begin, target - begin, SIZE_BYTES)
    return target, end


@subkernel
def _message_bytes(source: Source, at: Address) -> int:
    """Bytes that the record at an address, which is well formed, has as a Message."""
    at, _, end = _record(at, source.end)
    key, at = _sized(at, end)
    value, at = _sized(_behind(at, key), end)
    _, headers = _header_sizes(_behind(at, value), end)
    return _FIXED_BYTES + source.topic_bytes + max(key, 0) + max(value, 0) + headers


@kernel
def write_records(
    source: Source, at: int, left: int, target: Address, room: int, outcomes: Address, frame: int
) -> tuple[int, int, int, int, int]:
    """Write `left` records from offset `at` on as Batches to `target`, as many as `room` takes in a frame.

    The records were checked. `room`: bytes of the body of a frame of the log, with what each message takes
    beside itself. `outcomes`: the address of the run's OUTCOMEs, of which `frame` are in use: those of
    Batches behind the first follow it. Returns (records that are left, offset, bytes written, Batches
    written, room).
    """
    begin, first = target, frame
    while left > 0 and frame < MAX_BURST:
        head, count = target, 0
        one = Address(head + BATCH_HEAD_BYTES)
        more = room - BATCH_HEAD_BYTES - ROW_BYTES
        while left > 0 and count < MAX_BATCH:
            needs = COLUMNS_BYTES + _message_bytes(source, Address(source.records + at))
            if needs > more:
                break
            one, behind = _write_message(one, source, Address(source.records + at))
            at = behind - source.records
            more -= needs
            left -= 1
            count += 1
        if count == 0:
            break
        room, target = more, one
        one = _store_be(head, target - head, SIZE_BYTES)
        one = _store_be(one, _BATCH, 2)
        _store_be(_store_be(one, 0, 2), 0, 2)
        store_i64(outcomes + frame * OUTCOME_BYTES + FOLLOWS, 1 if frame > first else 0)
        store_i64(outcomes + frame * OUTCOME_BYTES + VERDICT, 0)
        frame += 1
    return left, at, target - begin, frame - first, room


def compile_kernels() -> None:
    """Compile."""
    nothing = np.zeros(1, np.uint8)
    at = Address(int(nothing.ctypes.data))
    write_records(Source(at, at, 0, 0, _NO_PARTITION, at, 0), 0, 0, at, 0, at, 0)
