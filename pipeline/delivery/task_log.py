"""The messages that a Spark task has under way, as a log that the router reads.

A batch stays in memory until every message of it is settled. The router reads it once to send it, and again
for what could not go then. Outcomes are columns beside the batch; the task takes them from here (`settled`)
and writes them to its outcome files. The contents of dead letters are encoded again from the columns, which
have all that was in the datagram.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.source.columns import NOWHERE
from pipeline.source.segments import topic_bytes
from router.outcomes.rejects import Found
from router.outcomes.trace import Trace
from spool.format.batch import Batch, Topics
from spool.format.wire import SIZE_BYTES
from spool.read.reader import Damage, Unread

if TYPE_CHECKING:  # it brings the marks along
    from router.outcomes.acks import SegmentBits

OPEN, TAKEN, DONE = range(3)
"""A message that is to be sent, is in flight or rejected, or is settled."""

Flats = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Sequences = npt.NDArray[np.int64]


class Settled(NamedTuple):
    """The outcomes of messages; columns of one length, each message once."""

    sequences: Sequences
    reasons: npt.NDArray[np.int32]
    """0: Kafka has it; else a spool.format.wire.Reason for which it never will."""


NOTHING = Settled(np.empty(0, np.int64), np.empty(0, np.int32))


class Load:
    """A batch under way."""

    def __init__(self, batch: Batch, flat: Flats, start: int) -> None:
        """`flat`: by row, its partition's flat number, or NOWHERE. `start`: bytes in all batches before."""
        self.batch, self.flat, self.start = batch, flat, start
        self.last = int(batch.sequence[-1])
        self.state = np.where(flat == NOWHERE, TAKEN, OPEN).astype(np.uint8)
        """By row: open, taken, or done. No reader reaches those without a partition."""
        self.left = len(batch)
        """Rows that are not settled."""
        self.topics = frozenset(batch.topics.names.of(np.unique(batch.topic)))
        """The names of its topics."""

    def rows(self, sequences: Sequences) -> npt.NDArray[np.int64]:
        """The rows of these, one at least."""
        first, count = int(np.searchsorted(self.batch.sequence, sequences[0])), len(sequences)
        # Most often they are neighbours.
        if np.array_equal(self.batch.sequence[first : first + count], sequences):
            return np.arange(first, first + count)
        return np.searchsorted(self.batch.sequence, sequences)


class TaskLog:
    """The batches under way, in order: the router's `Log`."""

    eviction = open_counts = None

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.loads: list[Load] = []
        self.settled: list[Settled] = []
        """Since the task last took them."""
        self._end = self._bytes = 0
        self.live, self.catch_up = TaskReader(self), TaskReader(self)

    def append(self, batch: Batch, flat: Flats) -> Load:
        """Add a batch, of one message at least, which are behind all before; `flat` as in Load."""
        load = Load(batch, flat, self._bytes)
        self.loads.append(load)
        self._end, self._bytes = load.last + 1, self._bytes + batch.data.nbytes
        return load

    @property
    def end(self) -> int:
        """After the last message's sequence."""
        return self._end

    @property
    def low_watermark(self) -> int:
        """Every message below it is settled."""
        return int(self.loads[0].batch.sequence[0]) if self.loads else self._end

    def nbytes(self) -> int:
        """Bytes of all batches that are not settled."""
        return self._bytes - self.loads[0].start if self.loads else 0

    def committed(self) -> tuple[int, int]:
        """Up to where it may be read: 0, and bytes since the beginning."""
        return 0, self._bytes

    def contents(self) -> TaskContents:
        """Makes datagrams of messages again."""
        return TaskContents(self)

    def probe(self) -> TaskReader:
        """A reader; no range is ever unreadable."""
        return TaskReader(self)

    def number(self, sequence: int) -> int:
        """The place in `loads` of the one that has this message, or the next behind it."""
        return bisect_left(self.loads, sequence, key=lambda load: load.last)

    def position(self, sequence: int) -> tuple[int, int]:
        """That of the batch with this message, as `committed`."""
        number = self.number(sequence)
        return 0, self.loads[number].start if number < len(self.loads) else self._bytes

    def parts(self, sequences: Sequences) -> Iterator[tuple[Load, npt.NDArray[np.int64], Mask | slice]]:
        """(load, its rows, which of `sequences`) for these messages, which are under way, in any order."""
        if len(sequences) == 0:
            return
        first, last = self.number(int(sequences.min())), self.number(int(sequences.max()))
        if first == last:
            load = self.loads[first]
            yield load, load.rows(sequences), slice(None)
            return
        ends = np.array([load.last for load in self.loads[first : last + 1]], np.int64)
        which = np.searchsorted(ends, sequences)
        for number, load in enumerate(self.loads[first : last + 1]):
            if (mine := which == number).any():
                yield load, load.rows(sequences[mine]), mine

    def up_to(self, state: int, sequences: Sequences) -> Mask:
        """Which messages are in this state, or one before it."""
        out = np.zeros(len(sequences), np.bool_)
        # Of those below, the batches are gone.
        there = np.flatnonzero(sequences >= self.low_watermark)
        for load, rows, which in self.parts(sequences[there]):
            out[there[which]] = load.state[rows] <= state
        return out

    def note(self, sequences: Sequences, state: int) -> None:
        """Mark messages as open, or taken, unless they are settled."""
        # Another attempt may have settled what this one has in flight.
        for load, rows, _ in self.parts(sequences[sequences >= self.low_watermark]):
            load.state[rows[load.state[rows] != DONE]] = state

    def settle(self, sequences: Sequences, reason: int) -> int:
        """Settle messages for a reason, 0: Kafka has them; how many were not settled before."""
        count = 0
        for load, rows, _ in self.parts(sequences[sequences >= self.low_watermark]):
            fresh = rows[load.state[rows] != DONE]
            load.state[fresh] = DONE
            load.left -= len(fresh)
            count += len(fresh)
            self.settled.append(Settled(load.batch.sequence[fresh], np.full(len(fresh), reason, np.int32)))
        while self.loads and not self.loads[0].left:
            del self.loads[0]
        return count


class TaskReader:
    """A position in a task's log."""

    def __init__(self, log: TaskLog) -> None:
        self._log, self.topics = log, log.topics
        self.sequence = 0

    @property
    def position(self) -> tuple[int, int]:
        """That of the batch it reads next, as `TaskLog.committed`."""
        return self._log.position(self.sequence)

    def take_damage(self) -> list[Damage]:
        """None: the batches are in memory."""
        return []

    def take_unread(self) -> list[Unread]:
        """None, likewise."""
        return []

    def allow(self, number: int, position: int) -> None:
        pass

    def seek(self, sequence: int) -> None:
        """Go to a message, or to the first behind it."""
        self.sequence = sequence

    def next(self) -> Batch | None:
        """Messages from `sequence` on, of one batch; it passes over batches with nothing open."""
        log = self._log
        for load in log.loads[log.number(self.sequence) :]:
            if (load.state == OPEN).any():
                first = int(np.searchsorted(load.batch.sequence, self.sequence))
                self.sequence = load.last + 1
                return load.batch.after(first)
        self.sequence = max(self.sequence, log.end)
        return None

    def pass_over(self, topics: Collection[bytes]) -> bool:
        """Skip the rest of a batch that holds nothing but these topics; whether it did."""
        number = self._log.number(self.sequence)
        if number == len(self._log.loads) or not self._log.loads[number].topics.issubset(topics):
            return False
        self.sequence = self._log.loads[number].last + 1
        return True

    def close(self) -> None:
        pass


class TaskOutcomes:
    """The outcomes of a task's messages: the router's `OutcomeTable`.

    Nothing is durable before the task has written its outcome files.
    """

    marks_first = False

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self.discarded: list[bytes] = []
        self.partitions: dict[bytes, list[tuple[int, int]]] = {}

    @property
    def low_watermark(self) -> int:
        """Every message below it is settled."""
        return self._log.low_watermark

    def history_of(self, topic: bytes) -> list[tuple[int, int]]:
        """The entry of a topic in `partitions`; empty when there is none."""
        return self.partitions.get(topic, [])

    def note_partitions(self, topic: bytes, history: list[tuple[int, int]]) -> None:
        """A topic has another number of partitions; the task's messages have theirs already."""
        self.partitions[topic] = history

    def bits_of(self, first: int, last: int) -> None:
        """A task has a state for each message, and no bits."""

    def open(self, sequences: Sequences) -> Mask:
        """Which messages are neither settled nor taken."""
        return self._log.up_to(OPEN, sequences)

    def unresolved(self, sequences: Sequences) -> Mask:
        """Which messages are not settled."""
        return self._log.up_to(TAKEN, sequences)

    def take(self, sequences: Sequences) -> None:
        """These were handed over, or rejected."""
        self._log.note(sequences, TAKEN)

    def give_back(self, sequences: Sequences) -> None:
        """These are to be sent again."""
        self._log.note(sequences, OPEN)

    def mark_ahead(self, sequences: Sequences) -> bool:
        """Never called: `marks_first` is false."""
        raise NotImplementedError

    def unmark(self, sequences: Sequences) -> None:
        pass

    def resolve(self, sequences: Sequences, received_ns: Sequences | None = None) -> None:  # noqa: ARG002
        """Kafka has these."""
        self._log.settle(sequences, 0)

    def resolve_reports(self, reports: npt.NDArray[Any]) -> bool:  # noqa: ARG002
        """Each by itself."""
        return False

    def discard(self, sequences: Sequences, reason: int, topic: bytes | Mapping[bytes, int]) -> int:  # noqa: ARG002
        """Kafka never takes these; how many were not settled before."""
        return self._log.settle(sequences, reason)

    def keep_sample(self, sequence: int, reason: int, topic: bytes, datagram: bytes) -> None:
        """The daemon keeps samples when it takes the outcomes over."""

    def due(self) -> bool:
        """Never."""
        return False

    def write_down(self, offsets: dict[int, int]) -> None:
        pass

    def wait(self) -> int:
        """Nothing is being written."""
        return self.low_watermark

    def follow(self, trace: Trace | None) -> None:
        pass


class TaskContents:
    """The contents of messages that are given up."""

    def __init__(self, log: TaskLog) -> None:
        self._log, self.topics = log, log.topics

    def read(self, wanted: Sequences, most: int) -> Found:
        """Of the first `most`, which ascend, those of one batch, or those that are settled."""
        chosen = wanted[:most]
        gone = chosen[chosen < self._log.low_watermark]
        if len(gone):
            return Found(gone, None, np.zeros(len(gone), np.int64))
        load, rows, which = next(self._log.parts(chosen))
        return Found(chosen[which], _original(load.batch, rows), np.arange(len(rows)))

    def close(self) -> None:
        """The log is the task's."""


class SetPartitions:
    """The router's `Chooser` for messages whose partition is known."""

    def __init__(self, log: TaskLog) -> None:
        self._log = log

    def assign(
        self,
        batch: Batch,
        wanted: Mask,
        partitions_of: Flats,  # noqa: ARG002
        flats: Flats,  # noqa: ARG002
        available: Mask,  # noqa: ARG002
    ) -> Flats:
        """The flat number of each wanted row's partition; -1 for others."""
        out = np.full(len(batch), -1, np.int32)
        for load, rows, which in self._log.parts(batch.sequence[wanted]):
            out[np.flatnonzero(wanted)[which]] = load.flat[rows]
        return out

    def place(
        self,
        batch: Batch,
        bits: SegmentBits | None,  # noqa: ARG002
        partitions_of: Flats,
        flats: Flats,
        available: Mask,
    ) -> Flats | None:
        """Assign the open rows, and take them; None, and nothing changes, if one has no partition."""
        wanted = self._log.up_to(OPEN, batch.sequence)
        flat = self.assign(batch, wanted, partitions_of, flats, available)
        if not np.array_equal(flat >= 0, wanted):
            return None
        self._log.note(batch.sequence[wanted], TAKEN)
        return flat

    def free(self, batch: Batch) -> Mask:
        """None may go anywhere else."""
        return np.zeros(len(batch), np.bool_)

    def sentence(self) -> str:
        """It refuses none."""
        return ""


def topic_of(batch: Batch, row: int) -> bytes:
    """The name of a message's topic, as it was sent."""
    return topic_bytes(batch.topics.names[batch.topic[row]].decode())


def _original(batch: Batch, rows: npt.NDArray[np.int64]) -> Batch:
    """Messages as they were received."""
    datagrams = [batch.encode(row, topic_of(batch, row)) for row in rows.tolist()]
    lengths = np.array([len(one) for one in datagrams], np.int64)
    ends = np.cumsum(lengths)
    values, keys = batch.value_bytes[rows], batch.key_bytes[rows]
    headers = batch.datagram_at[rows] + batch.datagram_bytes[rows] - batch.value_at[rows] - values
    value_at = ends - headers - values
    wide = (
        batch.sequence[rows],
        batch.timestamp[rows],
        value_at - SIZE_BYTES - keys,
        value_at,
        ends - lengths,
        batch.received_ns[rows],
    )
    narrow = batch.topic[rows], batch.traits[rows], batch.number[rows], keys, values, lengths
    return Batch.of(np.frombuffer(b"".join(datagrams), np.uint8), batch.topics, wide, narrow)
