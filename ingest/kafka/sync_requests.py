"""Syncs that the Kafka worker asks the keeper for, before the interval ends: clients wait for them.

A client that sends its next request when it is answered would have one for each interval. So a commit begins
early (`Field.SYNC_SOON`) while any answer waits, and at once (`Field.SYNC_WANTED`) where much was written, or
a client has as many requests on their way as it may.
"""

from __future__ import annotations

import os

from spool.shared.state import Field, SharedState

SYNC_BYTES = 64 << 10
IN_FLIGHT = 5
"""Requests that an idempotent client has on their way, at most: then it waits for an answer."""


class SyncRequests:
    """Those of one Kafka worker."""

    def __init__(self, shared: SharedState, bell: int) -> None:
        """`bell`: an eventfd that the keeper hears."""
        self._words, self._bell, self._unsynced = shared.words, bell, 0

    def count(self, written: int) -> None:
        """So many bytes are in the log."""
        self._unsynced += written

    def ask(self, end: int, waiting: int) -> None:
        """Have messages below sequence `end` synced, whose client has so many requests on their way."""
        at_once = self._unsynced >= SYNC_BYTES or waiting >= IN_FLIGHT
        word = Field.SYNC_WANTED if at_once else Field.SYNC_SOON
        before = int(self._words[word])
        if end <= before:
            return
        if at_once:
            self._unsynced = 0
        self._words[word] = end
        # A keeper that has not synced `before` looks again behind that, and so finds `end`. One that has may
        # sleep. If that is not seen here yet, it finds `end` after its slice.
        if before <= int(self._words[Field.SYNCED_SEQUENCE]):
            os.eventfd_write(self._bell, 1)
