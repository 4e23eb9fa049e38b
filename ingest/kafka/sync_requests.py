"""Syncs that the Kafka worker asks the keeper for, before the interval ends: clients wait for them.

A client that sends its next request when it is answered would have one for each interval. So a commit begins
early (`Field.SYNC_SOON`) while any answer waits, and at once (`Field.SYNC_WANTED`) where much was written, or
a client has as many requests on their way as it may.

Other inputs have the log synced all the time, which wakes the worker only while an answer waits.
"""

from __future__ import annotations

import contextlib
import os
import select

from spool.shared.state import Field, SharedState

SYNC_BYTES = 64 << 10
IN_FLIGHT = 5
"""Requests that an idempotent client has on their way, at most: then it waits for an answer."""


class SyncRequests:
    """Those of one Kafka worker."""

    def __init__(self, shared: SharedState, keeper_bell: int, bell: int, poll: select.epoll) -> None:
        """`keeper_bell`: an eventfd that the keeper hears. `bell`: one that each commit rings, for `poll`."""
        self._words, self._keeper_bell, self._unsynced = shared.words, keeper_bell, 0
        self.bell, self._poll, self._hears = bell, poll, True
        poll.register(bell, select.EPOLLIN)

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
            os.eventfd_write(self._keeper_bell, 1)

    def wait(self) -> None:
        """Be woken by the next commit, also by one that has just been."""
        self._listen(wanted=True)

    def hear(self, *, waits: bool) -> None:
        """The bell has rung. `waits`: an answer waits for another commit."""
        hush(self.bell)
        self._listen(wanted=waits)

    def _listen(self, *, wanted: bool) -> None:
        if wanted != self._hears:
            self._hears = wanted
            self._poll.modify(self.bell, select.EPOLLIN if wanted else 0)


def hush(bell: int) -> None:
    """Have an eventfd ring no more."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)
