"""The watch: whether the workers make progress, and the reports to the service manager (sd_notify(3)).

Each worker writes the time of its last loop into the shared state. WATCHDOG=1 is sent only while all of them
did so lately; so a service manager that hears nothing has a supervisor that does not run, or a worker that
makes no progress, and does what a supervisor cannot: it restarts all of it. Exempt are:

    a worker between two lives     the supervisor starts its successor
    a worker that gives way        the supervisor has a deadline for that
    a worker that waits for I/O    a restart would wait, too
    the status worker              no message depends on it; the supervisor replaces it
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, MutableMapping

from ingest.role import PATIENCE, Role, waits_for_disk
from spool.shared.state import BEAT, WORKER_WORDS, Field, SharedState

log = logging.getLogger("bruce.supervisor")

_TIMEOUT_S = 1.0
"""For a manager whose queue is full; it gets the next report."""
LOOK_S = 5.0
"""Between two looks, at most, where a service manager listens."""
_SOON_S = 0.05
"""The same while something is waited for."""
_EXTEND_S = 30.0
"""At a stop: what the service manager is asked for beyond the present moment."""
_HUNG_S = 60.0
"""Without a watchdog: after how long a worker is said not to work."""


class Watch:
    """The supervisor's reports to the service manager."""

    def __init__(self, shared: SharedState, manager: ServiceManager, describe: Callable[[], str]) -> None:
        """`describe`: the state of the daemon, in one line."""
        self._shared, self._manager, self._describe = shared, manager, describe
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
        """Settings are read again; READY=1 follows when all workers use them."""
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
            if not (role.watched and role.needed and role.pid) or role.replaced_by:
                continue
            beat = self._beat(role)
            since, patience = (beat, self._patience_s) if beat else (role.started, PATIENCE.begin)
            silent = now - since
            if silent > patience and not waits_for_disk(role.pid):
                return f"the {role.name} worker ({role.pid}) has done nothing for {silent:.0f} s"
        return ""

    def _beat(self, role: Role) -> float:
        """When its loop last turned, s of CLOCK_MONOTONIC; 0.0 before it has."""
        return int(self._shared.words[Field.WORKERS + WORKER_WORDS * role.row + BEAT]) / 1e9


class ServiceManager:
    """The service manager that started us, if any. For one process, and not for its workers."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables of sd_notify(3) and sd_watchdog_enabled(3) out of `environ`."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        wanted, of = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = not of or of == str(os.getpid())
        self.watchdog_s = int(wanted) / 1e6 if self._address and ours and wanted.isdecimal() else 0.0
        """It restarts us after so long without WATCHDOG=1; 0: it does not look."""
        self._said = ""

    @property
    def listens(self) -> bool:
        """Whether there is a service manager."""
        return bool(self._address)

    def tell(self, *assignments: str) -> None:
        """Send assignments such as READY=1. A failure is logged once, and raises nothing."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_TIMEOUT_S)
                sender.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            if self._said != str(error):
                log.warning("cannot notify the service manager at %s: %s", self._address, error)
            self._said = str(error)

    def tell_reloading(self) -> None:
        """Settings are read again; READY=1 says when that is over."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
