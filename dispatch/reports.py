"""Delivery reports from librdkafka: the loop over its event queue.

One event carries many reports, each an `rd_kafka_message_t`; of that we read the error (int32 at 0), the
offset (int64 at 56) and the opaque (at 64), which is the message's row in flight. An event that does not fit
into the output stays open and is read on from there at the next call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.librdkafka import Event, Library
from spool.kernel import call, kernel, load_i32, load_i64

_DELIVERY = int(Event.DELIVERY)
_OFFSET_AT = 56
_OPAQUE_AT = 64
UNLISTED = -1
"""The opaque of a record that no message stands behind."""


class Reader(NamedTuple):
    """Where to call."""

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
"""What became of one message."""


def reader(library: Library, queue: int, open_event: npt.NDArray[np.int64]) -> Reader:
    """What `collect` needs of one client."""
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
    """Read reports into `reports` (ROWs) from entry `first` on, without waiting; take them out of flight.

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
        # Where brokers acknowledge nothing librdkafka says -1001.
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
    """Take a row out of its partition and its broker, and mark it free."""
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
