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
        if self._unsynced >= SYNC_BYTES or waiting >= IN_FLIGHT:
            self._unsynced = 0
            self._raise(Field.SYNC_WANTED, end)
        else:
            self._raise(Field.SYNC_SOON, end)

    def _raise(self, word: Field, end: int) -> None:
        """Note it, and ring unless the keeper knows already that something is wanted."""
        before = int(self._words[word])
        if end <= before:
            return
        self._words[word] = end
        # Read behind that store: a keeper that has synced `before` by now may not have seen `end`.
        if before <= int(self._words[Field.SYNCED_SEQUENCE]):
            os.eventfd_write(self._bell, 1)
