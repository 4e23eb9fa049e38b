"""The supervisor: owns the sockets, forks the workers, waits for them, and does nothing else.

It reads no message and so has nothing to crash on. It is the zygote too: it has imported and compiled
everything once, and starts no thread, so that a worker is one fork away and shares its pages. A dead
worker is reaped before its successor starts; the sockets never close.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from spool.page import Field, Page

log = logging.getLogger("bruce.supervisor")

PR_SET_PDEATHSIG = 1
BACKOFF_S = (0.0, 0.0, 0.05, 0.2, 1.0, 5.0)
"""Pauses before the next start, by how many starts before it ended within STEADY_S."""
STEADY_S = 2.0
ASK_S = 0.1
_STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Role:
    """One worker process: its name, and what it runs. `run` returns when told to stop by SIGTERM."""

    name: str
    run: Callable[[], None]
    pid: int = 0
    restarts: int = 0
    started: float = 0.0
    hasty: int = 0
    due: float = 0.0


class Supervisor:
    """Keeps one process a role alive until told to stop."""

    def __init__(self, roles: list[Role], page: Page, *, stop_s: float = 30.0) -> None:
        """`roles` are started in order, and stopped in that order, each given `stop_s` to finish."""
        self.roles, self.page, self.stop_s = roles, page, stop_s
        self.stopping = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT; then stop the workers, one after the other."""
        self.page.words[Field.WORKERS : Field.WORKERS + 2] = (os.getpid(), 0)
        wake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _STOPS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake)
        # What is there now stays: a collection that looked at it would copy its pages into every worker.
        gc.freeze()
        while not self.stopping:
            self._start_due()
            self._sleep(wake)
            self._reap()
        for role in self.roles:
            self._end(role)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _sleep(self, wake: int) -> None:
        """Until a signal, or until the next start is due."""
        waiting = [role.due - time.monotonic() for role in self.roles if not role.pid]
        select.select([wake], [], [], max(0.0, min(waiting)) if waiting else None)
        try:
            os.read(wake, 512)
        except BlockingIOError:
            return

    def _start_due(self) -> None:
        now = time.monotonic()
        for row, role in enumerate(self.roles, 1):
            if not role.pid and role.due <= now:
                self._fork(role)
                at = Field.WORKERS + 8 * row
                self.page.words[at : at + 2] = (role.pid, role.restarts)

    def _fork(self, role: Role) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        role.started = time.monotonic()
        # A signal between fork and the worker's own handlers would be taken by ours, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        role.pid = os.fork()
        if role.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            return
        try:
            _become_worker(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            role.run()
            os._exit(0)
        except BaseException:
            log.exception("%s ended by an error", role.name)
            os._exit(1)

    def _reap(self) -> None:
        for role in self.roles:
            if not role.pid:
                continue
            pid, status = os.waitpid(role.pid, os.WNOHANG)
            if pid:
                self._schedule(role, status)

    def _schedule(self, role: Role, status: int) -> None:
        """Plan the successor of a worker that ended by itself."""
        lived = time.monotonic() - role.started
        role.hasty = role.hasty + 1 if lived < STEADY_S else 0
        pause = BACKOFF_S[min(role.hasty, len(BACKOFF_S) - 1)]
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        log.warning(
            "%s (%d) %s after %.1f s; started again in %.2f s", role.name, role.pid, how, lived, pause
        )
        role.pid, role.due = 0, time.monotonic() + pause
        role.restarts += 1

    def _end(self, role: Role) -> None:
        """Ask a worker to finish; insist after stop_s."""
        if not role.pid:
            return
        started, asked, deadline = time.monotonic(), 0, self.stop_s
        while os.waitpid(role.pid, os.WNOHANG)[0] == 0:
            waited = time.monotonic() - started
            if waited > deadline:
                log.warning("%s (%d) did not finish in %.0f s; killed", role.name, role.pid, self.stop_s)
                os.kill(role.pid, signal.SIGKILL)
                deadline = math.inf
            elif waited >= asked * ASK_S:
                # Again and again: one that has just been forked does not hear it yet.
                os.kill(role.pid, signal.SIGTERM)
                asked += 1
            time.sleep(0.005)


def _become_worker(parent: int) -> None:
    """Die with the supervisor, and take signals as a process of its own."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    # Until it has said how it ends in order; it will be asked again.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A terminal's Ctrl-C goes to the whole group; only the supervisor acts on it, and in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
