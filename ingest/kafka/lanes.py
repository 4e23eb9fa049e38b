"""Lanes: memory that the Kafka worker writes messages into, and the ingest worker stores them from.

A lane is a connection buffer (ingest.buffers.connection_buffer) of kind KAFKA, of which one side is in use:
it begins with the OUTCOMEs of its run (ingest.buffers.messages), and the Batches are behind them. While a
client's request is stored it has one lane, whose runs the log gets in their order.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from os import eventfd_write
from typing import NamedTuple

from ingest.access import NO_ID
from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffer import COUNT, FROM, KAFKA, OFFERED, RUN_BYTES, RUNS
from ingest.buffers.connection_buffers import OUTCOMES_BYTES, ConnectionBuffers
from ingest.buffers.messages import IS_STORED, OUTCOME_BYTES
from ingest.kafka.record_batch import Source, write_records
from spool.format.wire import BATCH_HEAD_BYTES, MAX_BATCH
from spool.native.memory import Address, load_acquire, load_u32

MOST_LANES = 64
SMALL_BYTES = 256 << 10
"""Of a lane while its requests are small."""
_SIZE = struct.Struct(">i")
_OUTCOME = struct.Struct("<3q")


class Frame(NamedTuple):
    """A Batch of a run that was taken."""

    messages: int
    follows: bool
    reason: int
    """The Reason that it was refused for; 0: it is stored."""
    sequence: int
    """Of its first message, if it is stored."""


class Lane:
    """One of them. `messages`: how many each Batch has of the run that this process wrote."""

    __slots__ = ("_buffers", "_reserved", "_room", "_used", "head", "messages", "number", "side")

    def __init__(self, buffers: ConnectionBuffers, number: int) -> None:
        self._buffers, self.number = buffers, number
        self.head, self.side = buffers.head(number), buffers.side(number, 0)
        self.messages: list[int] = []
        self._used = self._room = self._reserved = 0

    @property
    def run(self) -> int:
        """The number of the run that was offered last."""
        return int(load_acquire(Address(self.head + OFFERED)))

    @property
    def waits(self) -> bool:
        """Whether it is not taken yet."""
        return bool(connection_buffer.waits(self.head))

    def reserve(self) -> bool:
        """Have memory for a small run; False when there is none now."""
        if not self._reserved:
            small = min(SMALL_BYTES, self._buffers.side_bytes)
            if not self._buffers.reserve(self.number, 0, 0, small):
                return False
            self._reserved = small
            self._buffers.use(self.number)
        connection_buffer.open_buffer(self.head, KAFKA, NO_ID, NO_ID, NO_ID)
        return True

    @property
    def bytes(self) -> int:
        """Of the run that this process wrote."""
        return self._used - OUTCOMES_BYTES

    def begin(self, *, large: bool) -> None:
        """Write another run; a `large` one gets all memory that a lane may have, if there is any."""
        most = self._buffers.side_bytes
        if large and self._reserved < most and self._buffers.reserve(self.number, 0, 0, most):
            self._reserved = most
        self.messages = []
        self._used = OUTCOMES_BYTES
        self._room = min(self._reserved - OUTCOMES_BYTES, self._buffers.room)

    def write(self, source: Source, at: int, left: int) -> tuple[int, int]:
        """Write so many records from offset `at` on, or as many as there is room for: (how many, offset)."""
        behind, offset, used, frames, self._room = write_records(
            source, at, left, Address(self.side + self._used), self._room, self.side, len(self.messages)
        )
        self._used += used
        written = left - behind
        full = [MAX_BATCH] * (frames - 1)
        self.messages += [*full, written - sum(full)] if frames else []
        return written, offset

    def offer(self) -> None:
        """Have the ingest worker store what was written."""
        connection_buffer.offer(self.head, OUTCOMES_BYTES, self._used, len(self.messages), 0, 0)
        eventfd_write(self._buffers.bells.offered, 1)

    def outcome(self, number: int) -> tuple[int, int]:
        """(the Reason that a Batch of the run that was taken is refused for, or 0; its first sequence)."""
        _follows, verdict, first = self._outcome(number)
        return (0 if verdict == IS_STORED else -verdict), first

    def _outcome(self, number: int) -> tuple[int, ...]:
        """(FOLLOWS, VERDICT, FIRST); they are there when the run is taken, as `waits` says."""
        return _OUTCOME.unpack(ctypes.string_at(self.side + number * OUTCOME_BYTES, OUTCOME_BYTES))

    def frames(self) -> Iterator[Frame]:
        """The Batches of a run that a predecessor has written, and that is taken."""
        run = self.head + RUNS + (self.run & 1) * RUN_BYTES
        at = self.side + load_u32(Address(run + FROM))
        for number in range(load_u32(Address(run + COUNT))):
            (size,) = _SIZE.unpack(ctypes.string_at(at, _SIZE.size))
            follows, *_ = self._outcome(number)
            yield Frame(_count(ctypes.string_at(at, size)), follows != 0, *self.outcome(number))
            at += size

    def close(self) -> None:
        """Need it no more."""
        connection_buffer.free_buffer(self.head)
        if self._reserved > SMALL_BYTES:
            self._buffers.give_back(self.number, 0, SMALL_BYTES)
            self._reserved = SMALL_BYTES


def _count(batch: bytes) -> int:
    """How many messages a Batch has, that was written by a worker of this release."""
    at, count = BATCH_HEAD_BYTES, 0
    while at < len(batch):
        at += int(_SIZE.unpack_from(batch, at)[0])
        count += 1
    return count
