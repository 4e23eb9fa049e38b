"""The outcome table: the router reads and adds outcomes of messages here, wherever they are kept.

`router.outcomes.acks` keeps them in the marks of a spool, and `pipeline.delivery.task_log` beside the batches
of a Spark task.

`Eviction` gives up the oldest messages of a full spool, if `when_full = "discard_oldest"`. The keeper says up
to which sequence (spool.log.keeper). Every open message below it is read, counted as discarded by topic, and
resolved: the low watermark moves, and the keeper removes the segments as it removes delivered ones. That
works without Kafka, when the two readers of the router stand still.

Messages in flight are waited for: they may be in Kafka. After RECALL_S the producer is given up and another
one takes its place; messages without a report are open again, and discarded like the rest. While messages are
being discarded the router hands nothing over, or it would hand over what is to go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from router.outcomes.counts import DiscardNames, OpenCounts
from router.outcomes.trace import Trace
from router.timing import RECALL_S
from spool.format.wire import Reason, reason_name
from spool.read.reader import Reader
from spool.words import counted, reason_in_words

if TYPE_CHECKING:
    from router.outcomes.acks import SegmentBits

Mask = npt.NDArray[np.bool_]
Sequences = npt.NDArray[np.int64]

_log = logging.getLogger("bruce.router")


class OutcomeTable(Protocol):
    """The state of each message: open, taken (handed over, not reported) or resolved. For one thread."""

    @property
    def marks_first(self) -> bool:
        """Whether messages are marked before they are sent, so that a crash never has them sent twice."""

    @property
    def low_watermark(self) -> int:
        """Every message below it is resolved."""

    @property
    def discarded(self) -> list[bytes]:
        """Topics that discards were counted under before, in order."""

    @property
    def partitions(self) -> dict[bytes, list[tuple[int, int]]]:
        """Topic -> (from sequence, partitions), in order: how many there were for which messages."""

    def history_of(self, topic: bytes) -> list[tuple[int, int]]:
        """The entry of a topic in `partitions`; empty when there is none."""

    def note_partitions(self, topic: bytes, history: list[tuple[int, int]]) -> None:
        """A topic has another number of partitions: as in `partitions`."""

    def bits_of(self, first: int, last: int) -> SegmentBits | None:
        """The bits of messages [first, last], for compiled loops; None if they are not of one bitmap."""

    def open(self, sequences: Sequences) -> Mask:
        """Which messages are neither resolved nor taken."""

    def unresolved(self, sequences: Sequences) -> Mask:
        """Which messages are not resolved."""

    def take(self, sequences: Sequences) -> None:
        """These were handed over."""

    def give_back(self, sequences: Sequences) -> None:
        """These failed, and are to be sent again."""

    def mark_ahead(self, sequences: Sequences) -> bool:
        """With `marks_first`: mark these durably before they are sent; False when it cannot be done."""

    def unmark(self, sequences: Sequences) -> None:
        """These were marked, and then not sent after all."""

    def resolve(self, sequences: Sequences, received_ns: Sequences | None = None) -> None:
        """These are delivered; with when they were received, ns since the epoch, if that was just now."""

    def resolve_reports(self, reports: npt.NDArray[Any]) -> bool:
        """Resolve what these (dispatch.records.ROW[n]) say is delivered.

        False, and nothing changes, if one has an error, or they are not of one bitmap.
        """

    def discard(self, sequences: Sequences, reason: int, topic: bytes | Mapping[bytes, int]) -> int:
        """These are resolved, undelivered, for a reason; how many were not resolved before.

        `topic`: of all of them, or how many by topic, and then none may be resolved.
        """

    def keep_sample(self, sequence: int, reason: int, topic: bytes, datagram: bytes) -> None:
        """Keep the first bytes of a discarded message beside its count."""

    def due(self) -> bool:
        """Whether it is time to write down what has changed."""

    def write_down(self, offsets: dict[int, int]) -> None:
        """Begin to write what has changed, and the offset of each broker id."""

    def wait(self) -> int:
        """Wait for what is being written; the low watermark that is durable."""

    def follow(self, trace: Trace | None) -> None:
        """Tell this trace what is discarded."""


class InFlight(Protocol):
    """Knows the messages that are handed over and not reported."""

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        """The lowest sequence numbers."""


class Eviction:
    """Gives up the oldest messages, for the router's thread."""

    def __init__(
        self,
        reader: Reader,
        committed: Callable[[], tuple[int, int]],
        limit: Callable[[], int],
        *,
        open_counts: OpenCounts | None = None,
        recall_s: float = RECALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: below which sequence messages are to be given up. `reader` is for this alone.

        `recall_s`: how long reports of messages in flight are waited for.
        """
        self._recall_s = recall_s
        self._reader, self._committed, self._limit, self._clock = reader, committed, limit, clock
        self._open_counts, self._names = open_counts, DiscardNames()
        self._done = self._target = self._discarded = 0
        self._waits_since: float | None = None
        self._emptied = False
        """Nothing below the target was in flight when it was last read from its beginning."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be given up."""
        return self._limit() <= self._done

    def close(self) -> None:
        """Let go of the segment that was read last."""
        self._reader.close()

    def step(self, acks: OutcomeTable, pool: InFlight, read_position: int) -> bool:
        """Discard some; whether nothing may be handed over meanwhile. `read_position`: of the live reader."""
        if self.is_idle:
            return False
        limit = self._limit()
        if limit <= acks.low_watermark:
            # All that was in flight was delivered after all.
            self._finish(limit)
            return False
        if limit != self._target:
            self._begin(limit, acks, pool)
        if self._reader.sequence < self._target and self._discard(acks, read_position):
            return True
        if self._emptied:
            self._finish(limit)
        elif self._in_flight(pool):
            self._waits_since = self._waits_since or self._clock()
            return False
        else:
            self._begin(limit, acks, pool)
        return True

    def recalls(self) -> bool:
        """Whether what is in flight was waited for in vain; asked once, it is waited for again."""
        since = self._waits_since
        if since is None or self._clock() - since < self._recall_s:
            return False
        self._waits_since = None
        return True

    @property
    def done(self) -> int:
        """Every message below is resolved: no reader needs to look there."""
        return self._done

    def _begin(self, limit: int, acks: OutcomeTable, pool: InFlight) -> None:
        """Read from the low watermark to the limit."""
        self._target, self._waits_since = limit, None
        self._emptied = not self._in_flight(pool)
        self._reader.seek(acks.low_watermark)

    def _in_flight(self, pool: InFlight) -> bool:
        """Whether anything below the target is in flight."""
        lowest = pool.lowest_in_flight()
        return len(lowest) > 0 and int(lowest.min()) < self._target

    def _discard(self, acks: OutcomeTable, read_position: int) -> bool:
        """Discard what is open in the next batch; False at the end of the log."""
        self._reader.allow(*self._committed())
        batch = self._reader.next()
        for damage in self._reader.take_damage():
            lost = np.arange(damage.first, min(damage.end, self._target), dtype=np.int64)
            self._discarded += acks.discard(lost, Reason.DAMAGED, b"")
        for span in self._reader.take_unread():
            # The topics of these are unknown: the disk does not give them.
            unread = np.arange(span.first, min(span.end, self._target), dtype=np.int64)
            self._discarded += acks.discard(unread, Reason.EVICTED, b"")
        if batch is None:
            return False
        # With nothing in flight, what is taken waits for a dead-letter topic or a file: it would wait on.
        is_open = acks.unresolved(batch.sequence) if self._emptied else acks.open(batch.sequence)
        rows = (batch.sequence < self._target) & is_open
        sequences, topics = batch.sequence[rows], batch.topic[rows]
        names = self._names.count(self._names.numbers(batch, np.flatnonzero(rows)))
        self._discarded += acks.discard(sequences, Reason.EVICTED, names)
        if self._open_counts:
            self._open_counts.note_resolved(topics[sequences < read_position])
        return True

    def _finish(self, limit: int) -> None:
        """Everything below the limit is resolved."""
        if self._discarded:
            words = reason_in_words(reason_name(Reason.EVICTED))
            _log.error("%s below %d discarded: %s", counted(self._discarded, "message"), limit, words)
        self._done, self._discarded, self._waits_since = limit, 0, None
        self._reader.close()
