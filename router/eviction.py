"""Giving up the oldest messages, when the spool is full and asks for it: `when_full = "discard_oldest"`.

The keeper says up to which sequence (spool.provision). What is open below it is read, counted as discarded by
topic, and resolved: the floor moves, and the keeper removes the segments as it removes delivered ones. That
works without Kafka, when the two readers of the router stand still.

What is in flight is waited for: it may be in Kafka. After RECALL_S the producer is given up and another one
takes its place; what had no report is open again, and is discarded like the rest. While messages are being
discarded the router hands nothing over, or it would hand over what is to go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from router.acks import Acks
from router.discard_names import DiscardNames
from router.open_counts import OpenCounts
from spool.reader import Reader
from spool.wire import Reason

_log = logging.getLogger("bruce.router")

RECALL_S = 5.0
"""How long the reports of what is in flight are waited for."""


class InFlight(Protocol):
    """What is handed over and not reported, by broker."""

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        """The lowest sequence numbers."""


class Eviction:
    """What is left to be given up. For the router's thread."""

    def __init__(
        self,
        reader: Reader,
        committed: Callable[[], tuple[int, int]],
        limit: Callable[[], int],
        *,
        shares: OpenCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: below which sequence messages are to be given up. `reader` is for this alone."""
        self._reader, self._committed, self._limit, self._clock = reader, committed, limit, clock
        self._shares, self._names = shares, DiscardNames()
        self._done = self._target = self._discarded = 0
        self._waits_since: float | None = None
        self._emptied = False
        """Nothing below the target was in flight when it was last read from its beginning."""

    def step(self, acks: Acks, pool: InFlight, frontier: int) -> bool:
        """Discard some; whether nothing may be handed over meanwhile. `frontier`: the live reader's place."""
        limit = self._limit()
        if limit <= self._done:
            return False
        if limit <= acks.floor:
            # What was in flight was delivered after all.
            self._finish(limit)
            return False
        if limit != self._target:
            self._begin(limit, acks, pool)
        if self._reader.sequence < self._target and self._discard(acks, frontier):
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
        if since is None or self._clock() - since < RECALL_S:
            return False
        self._waits_since = None
        return True

    @property
    def done(self) -> int:
        """Every message below is resolved: no reader needs to look there."""
        return self._done

    def _begin(self, limit: int, acks: Acks, pool: InFlight) -> None:
        """Read from the floor to the limit."""
        self._target, self._waits_since = limit, None
        self._emptied = not self._in_flight(pool)
        self._reader.seek(acks.floor)

    def _in_flight(self, pool: InFlight) -> bool:
        """Whether anything below the target is in flight."""
        lowest = pool.lowest_in_flight()
        return len(lowest) > 0 and int(lowest.min()) < self._target

    def _discard(self, acks: Acks, frontier: int) -> bool:
        """Discard what is open in the next batch; False at the end of the log."""
        self._reader.allow(*self._committed())
        batch = self._reader.next()
        for damage in self._reader.damage:
            lost = np.arange(damage.first, min(damage.end, self._target), dtype=np.int64)
            self._discarded += acks.discard(lost, Reason.DAMAGED, b"")
        self._reader.damage.clear()
        for gap in self._reader.unread.values():
            # Of which topics they are the disk keeps to itself.
            unread = np.arange(gap.first, min(gap.end, self._target), dtype=np.int64)
            self._discarded += acks.discard(unread, Reason.EVICTED, b"")
        self._reader.unread.clear()
        if batch is None:
            return False
        rows = (batch.sequence < self._target) & acks.open(batch.sequence)
        sequences, topics = batch.sequence[rows], batch.topic[rows]
        names = self._names.count(self._names.numbers(batch, np.flatnonzero(rows)))
        self._discarded += acks.discard(sequences, Reason.EVICTED, names)
        if self._shares:
            self._shares.note_resolved(topics[sequences < frontier])
        return True

    def _finish(self, limit: int) -> None:
        """Everything below the limit is resolved."""
        if self._discarded:
            _log.error("%d messages below %d discarded: evicted", self._discarded, limit)
        self._done, self._discarded, self._waits_since = limit, 0, None
        self._reader.close()
