"""Records that are no messages of the log: dead letters, and the progress records of transactions.

Dead letters have headers of their own. They go through the same producer and the same windows as all
messages, and their reports come with all others, under the sequence number of the message that they are
about. Their arguments are laid out as one table, which a compiled loop (`post`) hands over.

A progress record goes by one call from Python (`produce`). No window counts it, and its report is skipped.

Delivery reports are gathered here: the loop over librdkafka's event queue. One event carries many reports,
each an `rd_kafka_message_t`; of that we read the error (int32 at 0), the offset (int64 at 56) and the opaque
(at 64), which is the message's row in flight. An event that does not fit into the output stays open and is
read on from there at the next call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import Code
from dispatch.handover import Producer, charge, may_send, offer
from dispatch.librdkafka import COPY_MESSAGE, Event, Library, Vtype
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, call, load_i32, load_i64

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
_KINDS = (
    Vtype.RKT,
    Vtype.PARTITION,
    Vtype.MSGFLAGS,
    Vtype.TIMESTAMP,
    Vtype.OPAQUE,
    Vtype.VALUE,
    Vtype.KEY,
)
_WORDS = 9
"""sizeof(rd_kafka_vu_t) / 8: the kind, then a union."""
_TOPIC, _PARTITION, _MSGFLAGS, _TIMESTAMP, _OPAQUE, _VALUE, _KEY, _HEADERS = range(len(_KINDS) + 1)
"""Rows of a dead letter's arguments, each an `rd_kafka_vu_t`."""
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


@kernel
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


class DeadLetter(NamedTuple):
    """One record for the dead-letter topic."""

    sequence: int
    """Of the message that it is about; its report has this number."""
    timestamp: int
    """Of the record: milliseconds since the epoch, above 0."""
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[bytes, bytes]]
    reason: int
    """Why the message is here, a spool.format.wire.Reason; with `topic`, its own, for the progress record."""
    topic: bytes

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value)


class Arguments(NamedTuple):
    """Of some dead letters."""

    table: npt.NDArray[np.int64]
    """int64[letters, arguments, _WORDS]."""
    data: npt.NDArray[np.uint8]
    """The bytes that the arguments point to."""


def lay_out(letters: Sequence[DeadLetter], partitions: npt.NDArray[Any]) -> Arguments:
    """The arguments of dead letters, one at least, all with headers of the same names.

    `partitions`: dispatch.tables.PARTITION_ROW[letters].
    """
    names = [name for name, _ in letters[0].headers]
    parts = [
        part
        for letter in letters
        for part in (letter.value, letter.key or b"", *(value for _, value in letter.headers))
    ]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    # The names end with a zero each, as C has it.
    data = np.frombuffer(b"".join([*parts, *(name + b"\0" for name in names)]) + b"\0", np.uint8)
    ends = np.cumsum(lengths)
    at = (address_of(data) + ends - lengths).reshape(len(letters), -1)
    lengths = lengths.reshape(at.shape)
    table = np.zeros((len(letters), len(_KINDS) + len(names), _WORDS), np.int64)
    table[:, :, 0] = [*_KINDS, *[Vtype.HEADER] * len(names)]
    table[:, _TOPIC, 1], table[:, _PARTITION, 1] = partitions["handle"], partitions["partition"]
    table[:, _MSGFLAGS, 1] = COPY_MESSAGE
    table[:, _TIMESTAMP, 1] = [letter.timestamp for letter in letters]
    table[:, [_VALUE, _KEY], 1], table[:, [_VALUE, _KEY], 2] = at[:, :2], lengths[:, :2]
    # A key without bytes is none.
    table[:, _KEY, 1] *= lengths[:, 1] > 0
    name_bytes = np.array([len(name) + 1 for name in names], np.int64)
    table[:, _HEADERS:, 1] = address_of(data) + int(ends[-1]) + np.cumsum(name_bytes) - name_bytes
    table[:, _HEADERS:, 2], table[:, _HEADERS:, 3] = at[:, 2:], lengths[:, 2:]
    return Arguments(table, data)


@kernel
def post(
    producer: Producer,
    table: npt.NDArray[np.int64],
    table_at: Address,
    sequences: npt.NDArray[np.int64],
    flats: npt.NDArray[np.int32],
    partitions: npt.NDArray[Any],
    brokers: npt.NDArray[Any],
    flight: npt.NDArray[Any],
    free: npt.NDArray[np.int32],
    free_count: npt.NDArray[np.int64],
    window: tuple[int, int],
    now_ns: int,
    codes: npt.NDArray[np.int32],
) -> None:
    """Hand over dead letters, whose arguments are in `table`, as far as windows allow.

    `table` int64[letters, arguments, _WORDS] is at address `table_at`; `sequences` int64[letters]: of the
    messages that they are about; `flats` int32[letters]: to which partitions. The other tables are those of
    `dispatch.handover`, with room in flight for all. Fills `codes` int32[letters]: 0, or why librdkafka, or
    the window, does not take it.
    """
    bytes_each = 8 * table.shape[1] * table.shape[2]
    for i in range(len(sequences)):
        partition = partitions[flats[i]]
        size = table[i, _VALUE, 2] + table[i, _KEY, 2]
        if not may_send(partition.leader, size, brokers, window):
            codes[i] = _QUEUE_FULL
            continue
        number = free[free_count[0] - 1]
        table[i, _OPAQUE, 1] = number
        codes[i] = offer(producer, Address(table_at + i * bytes_each), table.shape[1])
        if codes[i] == 0:
            free_count[0] -= 1
            # The record is not the message itself.
            flight[number].received_ns = 0
            charge(flight[number], flats[i], sequences[i], size, partition, brokers, now_ns)


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
