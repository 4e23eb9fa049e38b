"""Records that are no messages of the log: dead letters, and the progress records of transactions.

Dead letters are messages as they were received, with headers of their own. They go through the same producer
and the same windows as all messages, and their reports come with all others, under the sequence number of the
message that they are about. A compiled loop (`post`) hands them over.

A progress record goes by one call from Python (`produce`). No window counts it, and its report is skipped.

Delivery reports are gathered here: the loop over librdkafka's event queue. One event carries many reports,
each an `rd_kafka_message_t`; of that we read the error (int32 at 0), the offset (int64 at 56) and the opaque
(at 64), which is the message's row in flight. An event that does not fit into the output stays open and is
read on from there at the next call.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import Code
from dispatch.handover import Envelope, Producer, address, charge, enclose, enclose_header, may_send
from dispatch.handover import produce as hand_to
from dispatch.librdkafka import COPY_MESSAGE, Event, Library, Vtype
from spool.format.batch import (
    DATAGRAM_AT,
    DATAGRAM_BYTES,
    KEY_AT,
    KEY_BYTES,
    NULL_KEY,
    SEQUENCE,
    TRAITS,
    Batch,
    Narrow,
    Wide,
)
from spool.format.wire import TOPIC_SIZE_BYTES, Reason, load_be16, reason_name, topic_at
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call, load_i32, load_i64, store_u8

_DELIVERY = int(Event.DELIVERY)
_OFFSET_AT = 56
_OPAQUE_AT = 64
UNLISTED = -1
"""The opaque of a record without a message."""
ROW = np.dtype(
    (
        np.record,
        [
            ("sequence", np.int64),
            ("code", np.int32),  # 0, or an error
            ("flat_number", np.int32),  # of its partition
            ("offset", np.int64),  # there; -1 when it is not known
            ("received_ns", np.int64),  # since the epoch; 0: a record of our own
        ],
    )
)
"""The outcome of one message."""
_WORDS = 9
"""sizeof(rd_kafka_vu_t) / 8: the kind, then a union."""
LETTER_HEADERS = (b"bruce-reason", b"bruce-topic", b"bruce-first-attempt", b"bruce-last-attempt")
"""Of a dead letter: why it is there, its own topic, and its attempts, in ms since the epoch, in digits."""
_DIGITS = 40
"""Room for both numbers: an int64 has 19 digits at most."""
_QUEUE_FULL = int(Code.QUEUE_FULL)


class Reader(NamedTuple):
    """The functions to call."""

    queue: int
    """rd_kafka_queue_t"""
    queue_poll: int
    event_type: int
    event_message_next: int
    event_destroy: int
    open_event: npt.NDArray[np.int64]
    """int64[1]: the event whose reports were not all read; 0 for none."""
    unlisted: npt.NDArray[np.int64]
    """int64[1]: the offset of the last UNLISTED record that was acknowledged."""


def reader(library: Library, queue: int, open_event: npt.NDArray[np.int64]) -> Reader:
    """All that `collect` needs of one client."""
    return Reader(
        queue,
        library.address("queue_poll"),
        library.address("event_type"),
        library.address("event_message_next"),
        library.address("event_destroy"),
        open_event,
        np.full(1, -1, np.int64),
    )


@kernel
def collect(
    source: Reader,
    partitions: npt.NDArray[Any],
    brokers: npt.NDArray[Any],
    flight: npt.NDArray[Any],
    free: npt.NDArray[np.int32],
    free_count: npt.NDArray[np.int64],
    reports: npt.NDArray[Any],
    first: int,
    now_ns: int,
) -> tuple[int, int]:
    """Read reports into `reports` ROW[n] from entry `first` on, without waiting; take them out of flight.

    The tables are those of `dispatch.tables`: `partitions` PARTITION_ROW[capacity], `brokers`
    BROKER_ROW[count], `flight` FLIGHT_ROW[capacity], `free` int32[capacity], `free_count` int64[1].
    Returns the number of entries that are filled, and the address of an event that is no delivery report
    (which the caller frees), or 0 when the queue is empty or `reports` full.
    """
    filled = first
    open_event = source.open_event
    while filled < len(reports):
        event = open_event[0]
        if event == 0:
            event = call(source.queue_poll, source.queue, 0)
            if event == 0:
                break
            if call(source.event_type, event) & 0xFFFFFFFF != _DELIVERY:
                return filled, event
            open_event[0] = event
        message = call(source.event_message_next, event)
        if message == 0:
            call(source.event_destroy, event)
            open_event[0] = 0
            continue
        number = load_i64(message + _OPAQUE_AT)
        if number == UNLISTED:
            if load_i32(message) == 0:
                source.unlisted[0] = load_i64(message + _OFFSET_AT)
            continue
        row = flight[number]
        report = reports[filled]
        report.sequence = row.sequence
        report.code = load_i32(message)
        report.flat_number = row.flat_number
        # With acks = 0 librdkafka says -1001.
        report.offset, report.received_ns = max(-1, load_i64(message + _OFFSET_AT)), row.received_ns
        filled += 1
        discharge(row, report.code, partitions, brokers, now_ns)
        free[free_count[0]] = number
        free_count[0] += 1
    return filled, 0


@subkernel
def discharge(
    row: Any, code: int, partitions: npt.NDArray[Any], brokers: npt.NDArray[Any], now_ns: int
) -> None:
    """Take a FLIGHT_ROW out of its partition and its broker, and mark it free.

    `partitions` PARTITION_ROW[capacity], `brokers` BROKER_ROW[count].
    """
    partition = partitions[row.flat_number]
    partition.messages -= 1
    partition.bytes -= row.bytes
    broker = brokers[partition.charged]
    broker.messages -= 1
    broker.bytes -= row.bytes
    broker.progress_ns = now_ns
    if code == 0:
        broker.acked += 1
    else:
        broker.failed += 1
    row.flat_number = -1


class Letters(NamedTuple):
    """Records for the dead-letter topic: messages as they were received, and why they are there."""

    batch: Batch
    rows: npt.NDArray[np.int64]
    """int64[letters]: of the messages, in the batch. The report of a letter has its message's sequence."""
    reasons: npt.NDArray[np.int32]
    """int32[letters]: spool.format.wire.Reason."""
    first_ms: npt.NDArray[np.int64]
    """int64[letters]: of the first attempt, in ms since the epoch."""
    last_ms: npt.NDArray[np.int64]
    """int64[letters]: of the last one."""


class LetterEnvelope(Envelope):
    """The argument array of dead letters, and the texts of their headers."""

    def __init__(self, library: Library, handle: int, spool_uuid: bytes, *, stamp: bool) -> None:
        super().__init__(
            library, handle, spool_uuid, stamp=stamp, headers=[(name, b"") for name in LETTER_HEADERS]
        )
        self._names = [ctypes.create_string_buffer(reason_name(n).encode()) for n in range(max(Reason) + 1)]
        self.names = np.array([(ctypes.addressof(one), len(one) - 1) for one in self._names], np.int64)
        """int64[reasons, 2]: address and length of each reason's name."""
        self.digits = np.zeros(_DIGITS, np.uint8)


@kernel
def post(
    producer: Producer,
    data_at: Address,
    wide: Wide,
    narrow: Narrow,
    rows: npt.NDArray[np.int64],
    reasons: npt.NDArray[np.int32],
    first_ms: npt.NDArray[np.int64],
    last_ms: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    digits: npt.NDArray[np.uint8],
    flats: npt.NDArray[np.int32],
    partitions: npt.NDArray[Any],
    brokers: npt.NDArray[Any],
    flight: npt.NDArray[Any],
    free: npt.NDArray[np.int32],
    free_count: npt.NDArray[np.int64],
    window: tuple[int, int],
    now_ns: int,
    now_ms: int,
    codes: npt.NDArray[np.int32],
) -> None:
    """Hand over dead letters (`Letters`), as far as windows allow, with LETTER_HEADERS.

    `data_at`, `wide` and `narrow` are the batch's; `flats` int32[letters]: to which partitions. `names` and
    `digits` (uint8[_DIGITS], written on the way) are the envelope's. The other tables are those of
    `dispatch.handover`, with room in flight for all. `now_ms` is the timestamp of the records. Fills `codes`
    int32[letters]: 0, or why librdkafka, or the window, does not take it.
    """
    digits_at = Address(digits.ctypes.data)
    for i in range(len(rows)):
        row, partition = rows[i], partitions[flats[i]]
        size = narrow[DATAGRAM_BYTES, row] + narrow[KEY_BYTES, row]
        if not may_send(partition.leader, size, brokers, window):
            codes[i] = _QUEUE_FULL
            continue
        number, sequence = free[free_count[0] - 1], wide[SEQUENCE, row]
        datagram = Address(data_at + wide[DATAGRAM_AT, row])
        key = Address(0) if narrow[TRAITS, row] & NULL_KEY else Address(data_at + wide[KEY_AT, row])
        address(producer, partition, number, now_ms, sequence)
        enclose(producer, datagram, narrow[DATAGRAM_BYTES, row], key, narrow[KEY_BYTES, row])
        topic = topic_at(datagram)
        enclose_header(producer, 0, Address(names[reasons[i], 0]), names[reasons[i], 1])
        enclose_header(producer, 1, Address(topic + TOPIC_SIZE_BYTES), load_be16(topic))
        first = store_decimal(digits_at, first_ms[i])
        enclose_header(producer, 2, digits_at, first)
        last_at = Address(digits_at + first)
        enclose_header(producer, 3, last_at, store_decimal(last_at, last_ms[i]))
        codes[i] = hand_to(producer, 0)
        if codes[i] == 0:
            free_count[0] -= 1
            # The record is not the message itself.
            flight[number].received_ns = 0
            charge(flight[number], flats[i], sequence, size, partition, brokers, now_ns)


@subkernel
def store_decimal(at: Address, number: int) -> int:
    """Write the digits of a number, 0 for one below, and return how many they are."""
    left = max(number, 0)
    length, rest = 1, left // 10
    while rest > 0:
        length, rest = length + 1, rest // 10
    for place in range(length - 1, -1, -1):
        store_u8(at + place, 48 + left % 10)
        left //= 10
    return length


def produce(library: Library, handle: int, topic: int, partition: int, key: bytes, value: bytes) -> int:
    """Hand over one record, whose report will be skipped; librdkafka's error code, 0 when taken.

    `handle`: rd_kafka_t; `topic`: rd_kafka_topic_t.
    """
    arguments = [
        (Vtype.RKT, topic),
        (Vtype.PARTITION, partition),
        (Vtype.MSGFLAGS, COPY_MESSAGE),
        (Vtype.KEY, *_address_and_length(key)),
        (Vtype.VALUE, *_address_and_length(value)),
        (Vtype.OPAQUE, UNLISTED),
    ]
    table = np.zeros((len(arguments), _WORDS), np.int64)
    for row, words in enumerate(arguments):
        table[row, : len(words)] = words
    error: int | None = library.produceva(handle, address_of(table), len(table))
    if not error:
        return 0
    code = int(library.error_code(error))
    library.error_destroy(error)
    return code


def _address_and_length(data: bytes) -> tuple[int, int]:
    """(address, length) of the bytes of an object; they are valid until it is freed."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data)
