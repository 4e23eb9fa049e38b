"""Stopping the intake of a daemon that lives, for as long as somebody wants that and is alive to say so.

Who holds the intake has the flock on SPOOL/hold, and writes into the shared page until when nothing is to be
received; it renews that every RENEW_S. The ingest worker looks before each burst, and says in the page by
which hold it waits. Senders wait in the socket meanwhile, as they do for a spool with when_full = "block".
So the intake goes on by itself when the holder ends, is killed, or stands still: HOLD_NS later at the latest.

Rejected: a signal to the supervisor (it cannot say who wants it, nor that he died), a file that the worker
would have to look for (it waits for no disk), and refusing senders: a socket that was shut down for reading
stays so, and one that is made anew loses what was in its queue.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ingest.errors import IngestError
from spool.layout import Layout
from spool.lock import Lock
from spool.own import believed
from spool.page import HOLD_NS, Field, Page, read_page

RENEW_S = 0.5
_HELD_S = 0.01


def held_until(page: Page) -> int:
    """Until when nothing is to be received, in ns of CLOCK_MONOTONIC; 0 without a hold."""
    until, now = int(page.words[Field.HOLD]), time.monotonic_ns()
    return until if now < until <= now + HOLD_NS else 0


class StreamHold:
    """What the stream worker knows of holds: whether one lasts, and what time has passed without."""

    def __init__(self, page: Page) -> None:
        self._page, self._away_s = page, 0.0

    def lasts(self) -> bool:
        """Whether nothing is to be received, which the page then says; a while is over then."""
        until = held_until(self._page)
        self._page.words[Field.STREAMS_HELD] = until or 1
        if until:
            before = time.monotonic()
            time.sleep(_HELD_S)
            self._away_s += time.monotonic() - before
        return until > 0

    def now(self) -> float:
        """Seconds in which something could be received."""
        return time.monotonic() - self._away_s


class Hold:
    """A hold on the intake of one daemon; a context manager."""

    def __init__(self, layout: Layout, page: Path) -> None:
        """`page`: that of the spool, in this boot. Raises SpoolBusy when another process has a hold.

        Raises IngestError when the daemon's page may not be written.
        """
        self._path, self._since, self._owners = page, 0, believed(layout.directory)
        self._page: Page | None = None
        self._lock = Lock(layout.hold, "stopping the intake", patience_s=0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hold", daemon=True)
        try:
            self._renew()
        except PermissionError:
            self._lock.release()
            raise IngestError(
                f"{page} may not be written: only bruce's own user, or root, can stop its intake"
            ) from None
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._page is not None:
            self._page.words[Field.HOLD] = 0
        self._lock.release()

    def stands(self) -> bool:
        """Whether the daemon has received nothing since this was last false, or not yet known."""
        page, since = self._page, self._since
        if page is None or not since or not self._is_current():
            return False
        datagrams, streams = page.words[[Field.HELD, Field.STREAMS_HELD]].tolist()
        return since <= datagrams and (not streams or since <= streams)

    def _is_current(self) -> bool:
        """Whether the page is still the daemon's: another one has a page of its own, made anew."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _run(self) -> None:
        while not self._ended.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        now = time.monotonic_ns()
        if self._page is None or not self._is_current():
            self._since = 0
            if read_page(self._path, self._owners) is None:
                # The daemon is being started again.
                return
            self._inode = os.stat(self._path).st_ino
            self._page = Page(self._path, self._owners)
        words = self._page.words
        # A hold that ran out meanwhile was none: what came since then is not known.
        if not self._since or now >= int(words[Field.HOLD]):
            self._since = now + HOLD_NS
        words[Field.HOLD] = now + HOLD_NS
