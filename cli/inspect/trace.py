"""Following single messages through a daemon that lives: asking for a trace, and reading what it tells."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from cli.status.snapshot import find_other_release, list_workers
from cli.terminal.errors import CliError, NobodyListens
from router.outcomes.trace_request import MOST_BYTES, TraceRequest, events_path, read_request, request_path
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.shared.runtime import runtime_of, shared_state_path
from spool.shared.state import read_shared_state
from spool.storage.disk import write_at
from spool.storage.ownership import Owners, believed, put_own, read_believed

ANSWER_S = 10.0
"""In which a delivery worker answers, one that is being started again included."""
LATE_S = 5.0
"""After the end of its time, until a trace counts as abandoned."""
LOOK_S = 0.1
_NOBODY = (
    "the delivery worker follows nothing: it is not running, or delivery is lent to a job on Spark; see "
    "brucectl status"
)


class Asking:
    """A trace that was asked for; a context manager, which stops it."""

    def __init__(self, spool: Path, ask: TraceRequest) -> None:
        """Ask the daemon of this spool for a trace. Raises NobodyListens, CliError when one runs, OSError."""
        self.shared, self.ask, self._owners = page_of(spool), ask, believed(spool)
        if other := find_other_release(Layout(spool), self.shared):
            raise NobodyListens(other.sentence)
        if not _daemon(self.shared, self._owners):
            raise NobodyListens(f"no daemon is running on {spool}; only one that lives can be followed")
        running = read_request(self.shared, self._owners)
        if running is not None and not running.is_over():
            left = (running.until_ns - time.monotonic_ns()) / 1e9
            raise CliError(
                f"another trace runs, for {left:.0f} s at most; `brucectl trace --stop` ends it sooner"
            )
        self._at = 0
        try:
            events_path(self.shared).unlink(missing_ok=True)
            self._put()
        except PermissionError:
            raise CliError(
                f"{self.shared.parent} may not be written: only bruce's own user, or root, can follow "
                "messages"
            ) from None

    def _put(self) -> None:
        """Put the ask where the worker looks, as a file of the worker's own user."""
        owner = self.shared.stat()

        def fill(fd: int) -> None:
            if owner.st_uid != os.geteuid():
                os.fchown(fd, owner.st_uid, owner.st_gid)
            write_at(fd, self.ask.encode(), 0)

        put_own(request_path(self.shared), fill, owners=self._owners)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(FileNotFoundError):
            if (now := read_request(self.shared, self._owners)) and now.token == self.ask.token:
                request_path(self.shared).unlink()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events, as they happen, up to the end of the trace. Raises NobodyListens."""
        deadline, began = time.monotonic() + ANSWER_S, False
        while True:
            for event in self._news():
                mine = event.get("token", self.ask.token) == self.ask.token
                began |= mine
                if mine:
                    yield event
                if mine and event["event"] == "ended":
                    return
            if not began and time.monotonic() > deadline:
                raise NobodyListens(_NOBODY)
            if not _daemon(self.shared, self._owners):
                raise NobodyListens("the daemon has ended, and the trace with it")
            if time.monotonic_ns() > self.ask.until_ns + LATE_S * 1e9:
                raise NobodyListens("the time is over, and no delivery worker is there to say so")
            time.sleep(LOOK_S)

    def _news(self) -> Iterator[dict[str, Any]]:
        try:
            data = read_believed(events_path(self.shared), MOST_BYTES, self._at, self._owners)
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


def stop(spool: Path) -> bool:
    """End the trace that runs; whether there was one. Raises OSError."""
    shared = page_of(spool)
    running = read_request(shared, believed(spool))
    request_path(shared).unlink(missing_ok=True)
    return running is not None and not running.is_over()


def page_of(spool: Path) -> Path:
    """The shared state of a spool, in this boot. Raises NoSpool."""
    identity, boot = read_identity(Layout(spool)), boot_id()
    return shared_state_path(runtime_of(spool, identity, boot), identity, boot)


def _daemon(shared: Path, owners: Owners) -> bool:
    words = read_shared_state(shared, owners)
    return words is not None and bool(list_workers(words))
