"""The intake pause: an operator stops the intake of a running daemon, while the operator's process lives.

That process has the flock on SPOOL/hold, and writes into the shared state the time until which nothing is to
be received; it renews that every RENEW_S. The ingest worker looks before each burst, and writes into the
shared state which pause it obeys. Senders wait in the socket meanwhile, as they do for a spool with when_full
= "block". So the intake goes on by itself when that process ends, is killed, or is stopped: after PAUSE_NS at
the latest.

Rejected: a signal to the supervisor (it does not tell which process wants the pause, nor that it died), a
file that the worker would have to look for (it waits for no disk), and refusing senders: a socket that was
shut down for reading stays so, and a new one loses the messages in its queue.
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
from spool.shared.state import PAUSE_NS, Field, SharedState, read_shared_state
from spool.storage.lock import Lock
from spool.storage.ownership import believed

RENEW_S = 0.5
_PAUSED_S = 0.01


def paused_until(shared: SharedState) -> int:
    """Until when nothing is to be received, in ns of CLOCK_MONOTONIC; 0 without a pause."""
    until, now = int(shared.words[Field.PAUSE]), time.monotonic_ns()
    return until if now < until <= now + PAUSE_NS else 0


class StreamPause:
    """The side of a worker with connections: whether the intake is paused, and a clock that halts then."""

    def __init__(self, shared: SharedState, word: Field = Field.STREAMS_PAUSED) -> None:
        """`word`: in which this worker says what it obeys."""
        self._shared, self._word, self._away_s = shared, word, 0.0

    def is_paused(self) -> bool:
        """Whether nothing is to be received, which the shared state then says; a while is over then."""
        until = paused_until(self._shared)
        self._shared.words[self._word] = until or 1
        if until:
            before = time.monotonic()
            time.sleep(_PAUSED_S)
            self._away_s += time.monotonic() - before
        return until > 0

    def now(self) -> float:
        """Seconds in which something could be received."""
        return time.monotonic() - self._away_s


class IntakePause:
    """Pauses the intake of one daemon; a context manager."""

    def __init__(self, layout: Layout, shared: Path, *, renew_s: float = RENEW_S) -> None:
        """`shared`: that of the spool, in this boot. Raises SpoolBusy when another process pauses it.

        Raises IngestError when the daemon's page may not be written.
        """
        self._renew_s = renew_s
        self._path, self._since, self._owners = shared, 0, believed(layout.directory)
        self._shared: SharedState | None = None
        self._lock = Lock(layout.hold, "stopping the intake", patience_s=0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hold", daemon=True)
        try:
            self._renew()
        except PermissionError:
            self._lock.release()
            raise IngestError(
                f"{shared} may not be written: only bruce's own user, or root, can stop its intake"
            ) from None
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._shared is not None:
            self._shared.words[Field.PAUSE] = 0
        self._lock.release()

    def in_force(self) -> bool:
        """Whether the daemon has received nothing since this was last false, or not yet known."""
        shared, since = self._shared, self._since
        if shared is None or not since or not self._is_current():
            return False
        datagrams, *others = shared.words[[Field.PAUSED, Field.STREAMS_PAUSED, Field.KAFKA_PAUSED]].tolist()
        return since <= datagrams and all(not other or since <= other for other in others)

    def _is_current(self) -> bool:
        """Whether the shared state is still the daemon's: another daemon makes a new one."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _run(self) -> None:
        while not self._ended.wait(self._renew_s):
            self._renew()

    def _renew(self) -> None:
        now = time.monotonic_ns()
        if self._shared is None or not self._is_current():
            self._since = 0
            if read_shared_state(self._path, self._owners) is None:
                # The daemon is being started again.
                return
            self._inode = os.stat(self._path).st_ino
            self._shared = SharedState(self._path, self._owners)
        words = self._shared.words
        # A pause that ran out meanwhile was none: messages may have come since then.
        if not self._since or now >= int(words[Field.PAUSE]):
            self._since = now + PAUSE_NS
        words[Field.PAUSE] = now + PAUSE_NS
