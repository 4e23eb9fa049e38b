"""Whether messages are delivered, for inputs whose answers wait for that: by the marks, not the deliverer."""

from __future__ import annotations

import time
from itertools import chain

import numpy as np

from ingest.kafka.errors import Code
from ingest.kafka.storing import Storing
from spool.format.wire import DEAD_LETTERED, Reason
from spool.layout import Layout
from spool.marks.outcomes import OPEN, UNTOLD, OutcomeReader, open_outcomes

LOOK_S = 0.05
"""Between two looks at the marks: whether they have changed, and then for each request."""
SHARE = 10
"""The looks for one request take this part of the time at most."""
_REFUSALS = {
    Reason.TOO_LARGE: (Code.MESSAGE_TOO_LARGE, "Kafka refused it as too large"),
    Reason.UNKNOWN_TOPIC: (Code.UNKNOWN_TOPIC_OR_PARTITION, "Kafka did not have the topic in time"),
    Reason.PARTITION: (Code.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not have the partition"),
}
_OTHERWISE = (Code.INVALID_RECORD, "it was not delivered: see `brucectl discards`")


class Delivered:
    """A reader of the marks that are there now: a deliverer that cannot read them begins others."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reader: OutcomeReader | None = None
        self._inode = 0
        self._look_at, self._generation = 0.0, (0, 0)

    def look(self, storing: Storing, now: float) -> bool:
        """Whether all that a request stored is resolved; discards are its answer then."""
        if not any(one.ranges for one in storing.parts):
            return True
        if now < storing.look_at:
            return False
        generation = self._generation_at(now)
        if self._reader is None or generation == storing.seen:
            storing.look_at = self._look_at
            return False
        storing.seen = generation
        begun = time.monotonic()
        ranges = [one.ranges for one in storing.parts]
        sequences = [np.arange(first, first + messages) for first, messages in chain.from_iterable(ranges)]
        found = self._reader.of(np.concatenate(sequences))
        ended = time.monotonic()
        storing.look_at = ended + max(LOOK_S, SHARE * (ended - begun))
        if (found == OPEN).any():
            return False
        bounds = np.cumsum([sum(one.messages for one in part) for part in ranges])
        for one, outcomes in zip(storing.parts, np.split(found, bounds[:-1]), strict=True):
            given_up = outcomes[(outcomes > 0) & (outcomes != UNTOLD)]
            if len(given_up) and not one.answer.error:
                reason = int(given_up[0]) & ~DEAD_LETTERED
                one.refuse(*_REFUSALS.get(Reason(reason), _OTHERWISE))
        return True

    def _generation_at(self, now: float) -> tuple[int, int]:
        """Of the marks, at the last look for all requests: (the file's inode, how often it was written)."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if self._open() and self._reader:
                self._generation = self._inode, self._reader.transactions
        return self._generation

    def _open(self) -> bool:
        try:
            inode = (self._layout.delivery / "data.mdb").stat().st_ino
        except FileNotFoundError:
            return False
        if self._reader and inode != self._inode:
            self._reader.close()
            self._reader = None
        if not self._reader:
            self._reader, self._inode = open_outcomes(self._layout), inode
        return self._reader is not None
