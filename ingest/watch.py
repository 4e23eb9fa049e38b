"""The watch: whether the workers work, and what the service manager is told of it.

Each worker writes into the shared page when its loop has turned. WATCHDOG=1 is sent only while all of them
have done so lately; so a service manager that hears nothing has a supervisor that does not run, or a worker
that does not work, and does what a supervisor cannot: it starts all of it anew. Not waited for:

    who is between two lives    the supervisor starts its successor
    who gives way               the supervisor has a deadline for that
    who waits for the disk      a restart would wait for it, too (state D in proc(5))
    the status page             no message depends on it
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ingest.notify import ServiceManager
from ingest.role import Role
from spool.page import BEAT, WORKER_WORDS, Field, Page

LOOK_S = 5.0
"""Between two looks, at most, where a service manager listens."""
BEGIN_S = 300.0
"""For a worker's first turn: before it, the keeper may have to read a spool whose index is gone."""
_SOON_S = 0.05
"""The same while something is waited for."""
_EXTEND_S = 30.0
"""At a stop: what the service manager is asked for beyond the present moment."""
_HUNG_S = 60.0
"""Without a watchdog: after how long a worker is said not to work."""


class Watch:
    """What the supervisor does for the service manager."""

    def __init__(self, page: Page, manager: ServiceManager, describe: Callable[[], str]) -> None:
        """`describe`: how things stand, in one line."""
        self._page, self._manager, self._describe = page, manager, describe
        self._ready, self._reloading, self._status = False, False, ""
        watchdog = manager.watchdog_s
        # Half of it each: to notice, and to be heard of in time.
        self._patience_s = watchdog / 2 or _HUNG_S
        self._look_s = min(LOOK_S, watchdog / 4 or LOOK_S) if manager.listens else math.inf
        self._told = -math.inf

    def look(self, roles: Iterable[Role]) -> float:
        """Tell what is due; in how many seconds to look again."""
        if not self._manager.listens:
            return math.inf
        roles = list(roles)
        waits = self._tell_state(roles)
        if waits or time.monotonic() - self._told >= self._look_s:
            self._told = time.monotonic()
            self._tell_health(roles)
        return _SOON_S if waits else self._look_s

    def reload(self) -> None:
        """Settings are read again; the manager is told when everybody works with them."""
        self._reloading = True
        self._manager.tell_reloading()

    def stop(self) -> None:
        """The daemon comes to its end."""
        self._manager.tell("STOPPING=1", "STATUS=stopping")
        self._told = -math.inf

    def wait(self) -> None:
        """A worker takes its time to end; the supervisor has a deadline for it, whatever the manager's is."""
        if time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            self._manager.tell(f"EXTEND_TIMEOUT_USEC={int(1e6 * _EXTEND_S)}")

    def _tell_state(self, roles: list[Role]) -> bool:
        """Say what has been reached; whether something is still waited for."""
        if not self._ready:
            self._ready = all(role.pid and self._beat(role) for role in roles if role.awaited)
            if self._ready:
                self._manager.tell("READY=1")
        if self._ready and self._reloading and all(role.pid and not role.replaced_by for role in roles):
            self._reloading = False
            self._manager.tell("READY=1")
        return not self._ready or self._reloading

    def _tell_health(self, roles: list[Role]) -> None:
        hung = self.hung(roles)
        # In one line, whatever a broker has said: a second one would be another assignment.
        status = hung or " ".join(self._describe().split())
        if status != self._status:
            self._status = status
            self._manager.tell(f"STATUS={status}")
        if not hung and self._manager.watchdog_s:
            self._manager.tell("WATCHDOG=1")

    def hung(self, roles: Iterable[Role]) -> str:
        """Which worker does not work, in one sentence; empty when all do."""
        now = time.monotonic()
        for role in roles:
            if not (role.watched and role.pid) or role.replaced_by:
                continue
            beat = self._beat(role)
            silent, patience = (now - beat, self._patience_s) if beat else (now - role.started, BEGIN_S)
            if silent > patience and not _waits_for_disk(role.pid):
                return f"the {role.name} worker ({role.pid}) has done nothing for {silent:.0f} s"
        return ""

    def _beat(self, role: Role) -> float:
        """When its loop last turned, s of CLOCK_MONOTONIC; 0.0 before it has."""
        return int(self._page.words[Field.WORKERS + WORKER_WORDS * role.row + BEAT]) / 1e9


def _waits_for_disk(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"D")
    except OSError:
        return False
