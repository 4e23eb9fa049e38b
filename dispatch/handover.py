"""Messages to librdkafka: the loop over `rd_kafka_produceva`.

One message is an array of `rd_kafka_vu_t`, 72 bytes each: the kind as int32 at 0, a union at 8. The array
is filled once and only its changing words are written for each message:

    word    0     1            2       3
    RKT           topic
    PARTITION     partition
    MSGFLAGS      COPY
    VALUE         address, 0   bytes               0: null
    KEY           address, 0   bytes               0: null
    TIMESTAMP     ms
    OPAQUE        row in flight
    HEADER        name         value   bytes       left out when records are not stamped
    HEADER        name         value   bytes       of messages that are replayed; of dead letters, several
    HEADER        name         value   bytes       the message's own

A message that cannot go now holds its partition: from it on, nothing of the partition goes until the
router has caught up. That alone keeps order; see `hand_over`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import Code
from dispatch.header_names import HEADER_BYTES, HEADER_NAME
from dispatch.librdkafka import COPY_MESSAGE, Library, Vtype
from dispatch.tables import BACKING_OFF, order_by_partition
from spool.format.batch import (
    DATAGRAM_AT,
    DATAGRAM_BYTES,
    KEY_AT,
    KEY_BYTES,
    NULL_KEY,
    NULL_VALUE,
    RECEIVED_NS,
    SEQUENCE,
    TIMESTAMP,
    TRAITS,
    VALUE_AT,
    VALUE_BYTES,
    Narrow,
    Wide,
)
from spool.format.wire import (
    MAX_HEADERS,
    MAX_NAME_BYTES,
    NAME_SIZE_BYTES,
    SIZE_BYTES,
    load_be16,
    load_be32,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call, copy, store_i64, store_u8

HEADER_MEMORY = 96
"""About so many bytes librdkafka keeps of a header, beside its name and value: a window counts them, or
25,000 small messages with 256 headers each would be half a gigabyte."""
Headers = Sequence[tuple[bytes, bytes]]
"""The name and the value of each."""

_KINDS = (
    Vtype.RKT,
    Vtype.PARTITION,
    Vtype.MSGFLAGS,
    Vtype.VALUE,
    Vtype.KEY,
    Vtype.TIMESTAMP,
    Vtype.OPAQUE,
    Vtype.HEADER,
)
_WORDS = 9
"""sizeof(rd_kafka_vu_t) / 8"""
_RKT, _PARTITION, _MSGFLAGS, _VALUE, _KEY, _TIMESTAMP, _OPAQUE, _HEADER = (
    8 * (_WORDS * row + 1) for row in range(len(_KINDS))
)
"""The offset in the array, in bytes, of the first word of each union."""
_HEADER_STEP = 8 * _WORDS
"""Bytes from a header's union to that of the next."""
_TOO_LARGE = int(Code.MSG_SIZE_TOO_LARGE)
_FATAL = int(Code.FATAL)
_NO_ROOM = 1 << 30
"""Not offered to librdkafka: no leader, or no room in its window. No error code has this value."""


class Producer(NamedTuple):
    """The functions to call, and the memory that is written on the way."""

    handle: int
    """rd_kafka_t"""
    produceva: int
    """Addresses of the functions."""
    error_code: int
    error_is_fatal: int
    error_destroy: int
    arguments_at: Address
    """Address of the array above."""
    arguments: int
    """Its length, without the message's own headers."""
    stamp_at: Address
    """Address of the header's sequence; 0: no header."""
    headers_at: Address
    """Address of the first word of the union of the first header behind that one."""
    own_at: Address
    """The same of the first one that is the message's own."""
    names_at: Address
    """Address of room for the names of those, each with a zero byte behind it."""


class Envelope:
    """The argument array of one kind of record, and the memory that it points into."""

    def __init__(
        self, library: Library, handle: int, spool_uuid: bytes, *, stamp: bool, headers: Headers = ()
    ) -> None:
        """`headers`: those behind the stamp."""
        self._name = ctypes.create_string_buffer(HEADER_NAME)
        self._own_names = np.zeros(MAX_HEADERS * (MAX_NAME_BYTES + 1), np.uint8)
        self._header = np.zeros(HEADER_BYTES, np.uint8)
        self._header[:16] = np.frombuffer(spool_uuid, np.uint8, 16)
        fixed = len(_KINDS) - 1 + stamp + len(headers)
        kinds = [*_KINDS[:-1], *[Vtype.HEADER] * (fixed + MAX_HEADERS - len(_KINDS) + 1)]
        self._arguments = np.zeros((len(kinds), _WORDS), np.int64)
        self._arguments[:, 0] = kinds
        self._set(_MSGFLAGS, COPY_MESSAGE)
        if stamp:
            self._set(_HEADER, ctypes.addressof(self._name), address_of(self._header), HEADER_BYTES)
        self._texts = [tuple(map(ctypes.create_string_buffer, header)) for header in headers]
        own_at = _HEADER + _HEADER_STEP * stamp
        for at, (name, value) in enumerate(self._texts):
            words = ctypes.addressof(name), ctypes.addressof(value), len(value) - 1
            self._set(own_at + _HEADER_STEP * at, *words)
        self.producer = Producer(
            handle,
            library.address("produceva"),
            library.address("error_code"),
            library.address("error_is_fatal"),
            library.address("error_destroy"),
            address_of(self._arguments),
            fixed,
            address_of(self._header[16:]) if stamp else Address(0),
            Address(address_of(self._arguments) + own_at),
            Address(address_of(self._arguments) + own_at + _HEADER_STEP * len(headers)),
            address_of(self._own_names),
        )

    def _set(self, at: int, *words: int) -> None:
        self._arguments.flat[at // 8 : at // 8 + len(words)] = words


@kernel
def hand_over(
    producer: Producer,
    data_at: Address,
    wide: Wide,
    narrow: Narrow,
    flats: npt.NDArray[np.int32],
    partitions: npt.NDArray[Any],
    brokers: npt.NDArray[Any],
    flight: npt.NDArray[Any],
    free: npt.NDArray[np.int32],
    free_count: npt.NDArray[np.int64],
    window: tuple[int, int],
    refused: npt.NDArray[Any],
    now_ns: int,
    catching_up: bool,
) -> tuple[int, int, int, int]:
    """Send the messages that have a partition, by partition and in log order, as far as they may go.

    `data_at`, `wide` and `narrow` are a Batch's; `flats` int32[messages], negative for those without one.

    On the live path (`catching_up` false) a partition that is held is skipped, and the first message that
    cannot go holds it. When catching up the partition is held and stays so, its `held_from` moving along:
    earlier rows were sent before and are skipped, and the first that cannot go is where to continue.

    The tables are those of `dispatch.tables`, with room in flight for all: `partitions`
    PARTITION_ROW[capacity], `brokers` BROKER_ROW[count], `flight` FLIGHT_ROW[capacity], `free`
    int32[capacity], `free_count` int64[1]. `window`: messages and bytes a broker may have in flight.

    Returns how many rows were sent, held back, and refused for good (they are in `refused`,
    dispatch.records.ROW[at least those of `order`]), and the last error that held a partition back, or 0.
    """
    sent = held = refusals = error = 0
    blocked = -1
    # Once for all rows: taking one out of a table counts a reference.
    sequences, timestamps, received_ns = wide[SEQUENCE], wide[TIMESTAMP], wide[RECEIVED_NS]
    key_at, value_at, datagram_at = wide[KEY_AT], wide[VALUE_AT], wide[DATAGRAM_AT]
    key_bytes, value_bytes, datagram_bytes = narrow[KEY_BYTES], narrow[VALUE_BYTES], narrow[DATAGRAM_BYTES]
    traits = narrow[TRAITS]
    order = np.empty(len(flats), np.int32)
    count = order_by_partition(flats, np.empty(len(partitions) + 1, np.int64), order)
    for row in order[:count]:
        flat, sequence = flats[row], sequences[row]
        partition = partitions[flat]
        start = partition.held_from
        if catching_up and sequence < start:
            continue
        if flat == blocked or (start >= 0 and not catching_up):
            held += 1
            continue
        code = _NO_ROOM
        behind, end = value_at[row] + value_bytes[row], datagram_at[row] + datagram_bytes[row]
        size, own = key_bytes[row] + value_bytes[row] + end - behind, 0
        if behind < end:
            own = enclose_own(producer, Address(data_at + behind), Address(data_at + end))
            size += own * HEADER_MEMORY
        if may_send(partition.leader, size, brokers, window):
            number = free[free_count[0] - 1]
            address(producer, partition, number, timestamps[row], sequence)
            value = Address(0) if traits[row] & NULL_VALUE else Address(data_at + value_at[row])
            key = Address(0) if traits[row] & NULL_KEY else Address(data_at + key_at[row])
            enclose(producer, value, value_bytes[row], key, key_bytes[row])
            code = produce(producer, own)
        if code == 0:
            free_count[0] -= 1
            flight[number].received_ns = received_ns[row]
            charge(flight[number], flat, sequence, size, partition, brokers, now_ns)
            sent += 1
        elif code == _TOO_LARGE:
            refusal = refused[refusals]
            refusal.sequence, refusal.code, refusal.flat_number = sequence, code, flat
            refusal.offset, refusal.received_ns = -1, received_ns[row]
            refusals += 1
        else:
            partition.held_from = sequence
            blocked = flat
            held += 1
            error = error if code == _NO_ROOM else code
            continue
        if start >= 0:
            partition.held_from = sequence + 1
    return sent, held, refusals, error


@subkernel
def may_send(broker: int, size: int, brokers: npt.NDArray[Any], window: tuple[int, int]) -> bool:
    """Whether a broker's window takes a message of `size` bytes; an empty one takes any.

    `brokers` BROKER_ROW[count]; `window`: messages and bytes that a broker may have in flight.
    """
    if broker < 0:
        return False
    row = brokers[broker]
    if row.state == BACKING_OFF:
        return False
    return bool(row.messages == 0 or (row.messages < window[0] and row.bytes + size <= window[1]))


@subkernel
def address(producer: Producer, partition: Any, number: int, timestamp: int, sequence: int) -> None:
    """Write all of the arguments but key and value."""
    arguments_at = producer.arguments_at
    store_i64(arguments_at + _RKT, partition.handle)
    store_i64(arguments_at + _PARTITION, partition.partition)
    # librdkafka would read 0 as "now".
    store_i64(arguments_at + _TIMESTAMP, timestamp or 1)
    store_i64(arguments_at + _OPAQUE, number)
    if producer.stamp_at:
        for byte in range(8):
            store_u8(producer.stamp_at + byte, (sequence >> (56 - 8 * byte)) & 255)


@subkernel
def enclose(producer: Producer, value: Address, value_bytes: int, key: Address, key_bytes: int) -> None:
    """Write value and key into the arguments; address 0: null."""
    at = producer.arguments_at
    store_i64(at + _VALUE, value)
    store_i64(at + _VALUE + 8, value_bytes)
    store_i64(at + _KEY, key)
    store_i64(at + _KEY + 8, key_bytes)


@subkernel
def enclose_own(producer: Producer, at: Address, end: Address) -> int:
    """Write a message's own headers, which were checked, behind the others; how many there was room for."""
    count, name_at = 0, producer.names_at
    while at < end and count < MAX_HEADERS:
        name = load_be16(at)
        if name < 0 or name > MAX_NAME_BYTES:
            break
        at = Address(at + NAME_SIZE_BYTES)
        copy(name_at, at, name)
        store_u8(name_at + name, 0)
        at = Address(at + name)
        value = load_be32(at)
        at = Address(at + SIZE_BYTES)
        union = producer.own_at + _HEADER_STEP * count
        store_i64(union, name_at)
        store_i64(union + 8, at if value >= 0 else 0)
        store_i64(union + 16, max(value, 0))
        at = Address(at + max(value, 0))
        name_at = Address(name_at + name + 1)
        count += 1
    return count


@subkernel
def enclose_header(producer: Producer, number: int, value: Address, value_bytes: int) -> None:
    """Write the value of a header behind the stamp into the arguments; the first is 0."""
    at = producer.headers_at + _HEADER_STEP * number
    store_i64(at + 8, value)
    store_i64(at + 16, value_bytes)


@subkernel
def produce(producer: Producer, own: int) -> int:
    """Hand one message with `own` headers to librdkafka; returns its error code, 0 when taken."""
    error = call(producer.produceva, producer.handle, producer.arguments_at, producer.arguments + own)
    if error == 0:
        return 0
    code = call(producer.error_code, error) & 0xFFFFFFFF
    # A finished producer gives the code that finished it, which for this message means nothing.
    fatal = call(producer.error_is_fatal, error) & 0xFFFFFFFF
    call(producer.error_destroy, error)
    return _FATAL if fatal else code - ((code >> 31) << 32)


@subkernel
def charge(
    row: Any, flat: int, sequence: int, size: int, partition: Any, brokers: npt.NDArray[Any], now_ns: int
) -> None:
    """Note a message as in flight: in its FLIGHT_ROW, its PARTITION_ROW, and the row of its broker.

    `brokers` BROKER_ROW[count].
    """
    row.sequence, row.flat_number, row.bytes = sequence, flat, size
    partition.messages += 1
    partition.bytes += size
    broker = brokers[partition.charged]
    if broker.messages == 0:
        broker.progress_ns = now_ns
    broker.messages += 1
    broker.bytes += size
