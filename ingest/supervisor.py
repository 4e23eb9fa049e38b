"""The supervisor: owns the sockets, forks the workers, waits for them, and does nothing else.

It reads no message and so has nothing to crash on. It is the zygote too: it has imported and compiled
everything once, and starts no thread, so that a worker is one fork away and shares its pages. A dead
worker is reaped before its successor starts; the sockets never close.

Signals to the supervisor:

    SIGTERM, SIGINT    stop in order; the second one: at once
    SIGHUP             reload, and replace the workers whose settings have changed

Signals to a worker: END and GIVE_WAY. A worker ignores all others: a signal that a terminal or a service
manager sends to all processes of the daemon is for the supervisor, which knows the order in which they end.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType
from typing import Protocol

from ingest.errors import IngestError
from ingest.role import PATIENCE, Patience, Pulse, Role, die_with
from ingest.watch import Watch
from spool.errors import SpoolError
from spool.shared.state import BEAT, FORKED, WORKER_WORDS, Field, SharedState

log = logging.getLogger("bruce.supervisor")

END, GIVE_WAY = signal.SIGUSR1, signal.SIGUSR2
"""To a worker: end in order, for good; give way to a successor (a worker without a handler dies)."""
BACKOFF_S = (0.0, 0.0, 0.05, 0.2, 1.0, 5.0)
"""Pauses before the next start, by how many starts before it ended within STEADY_S."""
STEADY_S = 2.0
ASK_S = 0.1
NO_FORK_S = 1.0
"""Until the next try, where the system gives no process."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_STOPS, signal.SIGHUP)


class Stoppable(Protocol):
    """A worker that ends when its flag is set."""

    stopping: bool


class Worker(Stoppable, Protocol):
    """One that says when its loop has turned."""

    beat: Callable[[], None]


class Replaceable(Stoppable, Protocol):
    """One that can also leave all to a successor."""

    giving_way: bool


class Attended(Protocol):
    """Something that the supervisor attends to beside signals. Neither call may wait, or raise."""

    def fileno(self) -> int:
        """Readable when there is something to attend to."""

    def attend(self) -> None:
        """Do it."""


class Supervisor:
    """Keeps one process a role alive until it receives a signal to stop."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        roles: list[Role],
        shared: SharedState,
        *,
        reload: Callable[[], Collection[str]] = tuple,
        look: Callable[[], Collection[str]] = tuple,
        renew: Callable[[], Collection[str]] = tuple,
        beside: Attended | None = None,
        watch: Watch | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """`roles` are started in order, and stopped in that order, those with `ends_first` before all others.

        `reload` takes over new settings, and returns the names of the roles that are to be replaced. So do
        `look`, which is called every few seconds, and `renew`, which is called whenever a child has ended,
        among others. `beside` is attended to while workers run, and before each fork. `watch` reports to the
        service manager. `patience`: with workers that hang.
        """
        self._beside, self._watch = beside, watch
        self.roles, self.shared, self._reload, self._look, self._news = roles, shared, reload, look, renew
        self._pulse, self._look_s, self._look_at = Pulse(shared, patience), patience.look, 0.0
        for row, role in enumerate(roles, 1):
            role.row = role.row or row
        self._stops: list[float] = []
        """When signals to stop came."""
        self._told_by = 0
        self._hung_up = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT; then stop the workers, one after the other."""
        self.shared.words[Field.WORKERS : Field.DELIVERED] = 0
        self.shared.words[Field.WORKERS] = os.getpid()
        self.shared.words[Field.STARTED_NS] = time.time_ns()
        wake = self._listen()
        # Present objects stay: a collection that looked at them would copy their pages into every worker.
        gc.freeze()
        # A worker that gives way gets a successor before the end, since there may be work left for it.
        while not self._stops or (len(self._stops) == 1 and any(role.replaced_by for role in self.roles)):
            self._look_round()
            self._renew()
            self._start_due()
            self._replace()
            self._sleep(wake)
            self._reap()
        self._end_all()

    def _end_all(self) -> None:
        """Let each role do what it does at the end, one after the other; also those between two lives."""
        if self._watch:
            self._watch.stop()
        log.info(
            "received %s, shutting down; send it again to stop at once", signal.Signals(self._told_by).name
        )
        for role in self.roles:
            role.due = 0.0
        self._start_due()
        for role in sorted(self.roles, key=lambda role: not role.ends_first):
            self._end(role)

    def _listen(self) -> int:
        """Take signals from here on, those that were held back included; what becomes readable then."""
        wake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _STOPS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # Inherited, until a worker has said how it ends in order; it will be asked again.
        signal.signal(END, signal.SIG_IGN)
        signal.signal(GIVE_WAY, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        return wake

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._told_by = self._told_by or number
        self._stops.append(time.monotonic())

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def _sleep(self, wake: int) -> None:
        """Until a signal, or until the next start, question or look is due."""
        now = time.monotonic()
        waits = [self._look_at - now, *(role.due - now for role in self.roles if not role.pid)]
        waits += [role.asked + ASK_S - now for role in self.roles if role.pid and role.replaced_by]
        if self._watch:
            waits.append(self._watch.look(self.roles))
        heard: list[int | Attended] = [wake, self._beside] if self._beside else [wake]
        select.select(heard, [], [], max(0.0, min(waits)))
        self._attend()
        try:
            os.read(wake, 512)
        except BlockingIOError:
            return

    def _attend(self) -> None:
        if self._beside:
            self._beside.attend()

    def _renew(self) -> None:
        """Reload after SIGHUP, and replace the workers whose settings, or loops, changed."""
        names = self._news()
        if self._hung_up:
            self._hung_up = False
            if self._watch:
                self._watch.reload()
            try:
                names = [*names, *self._reload()]
            except Exception:
                log.exception("reloading failed; the settings stay as they were")
        self._have_replaced(names)

    def _look_round(self) -> None:
        """Now and then: have what fails mended, and end workers that hang."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._look_s
        if self._stops:
            return
        self.shared.beat(0)
        for role in self._pulse.look(self.roles):
            os.kill(role.pid, signal.SIGKILL)
        try:
            self._have_replaced(self._look())
        except Exception:
            log.exception("a look at the sockets failed")

    def _have_replaced(self, names: Collection[str]) -> None:
        for role in self.roles:
            if role.name in names and role.pid:
                role.replaced_by = time.monotonic() + role.stop_s

    def _replace(self) -> None:
        """Ask workers to give way that are to be replaced; kill those that take too long."""
        now = time.monotonic()
        for role in self.roles:
            if not role.pid or not role.replaced_by:
                continue
            if now > role.replaced_by:
                log.warning("%s (%d) did not give way in %.0f s; killed", role.name, role.pid, role.stop_s)
                os.kill(role.pid, signal.SIGKILL)
                role.replaced_by = math.inf
            elif now >= role.asked + ASK_S:
                os.kill(role.pid, GIVE_WAY)
                role.asked = now

    def _start_due(self) -> None:
        now = time.monotonic()
        for role in self.roles:
            if not role.pid and role.due <= now:
                at = Field.WORKERS + WORKER_WORDS * role.row
                # In this order: with no beat of its own, a worker is silent since its start.
                self.shared.words[at + FORKED] = time.monotonic_ns() if role.watched else 0
                self.shared.words[at + BEAT] = 0
                self._fork(role)
                self.shared.words[at : at + 2] = (role.pid, role.restarts)

    def _fork(self, role: Role) -> None:
        parent = os.getpid()
        self._attend()
        role.started = time.monotonic()
        # A signal between fork and the worker's own handlers would be taken by ours, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            pid = os.fork()
        except OSError as error:
            # No memory, or as many processes as there may be; with us the sockets would go.
            log.error("%s cannot be started: %s; it is tried again", role.name, error.strerror)
            pid, role.due = -1, role.started + NO_FORK_S
        if pid:
            role.pid = max(0, pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            return
        try:
            _become_worker(parent)
            _step_back(role.nice)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            role.run()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  (what a worker raises is no concern of ours)
            _log_end(role.name, error)
            os._exit(1)

    def _reap(self) -> None:
        for role in self.roles:
            if not role.pid:
                continue
            pid, status = os.waitpid(role.pid, os.WNOHANG)
            if pid:
                self._schedule(role, status)

    def _schedule(self, role: Role, status: int) -> None:
        """Plan the successor of a worker that has ended: by itself, or to give way."""
        if role.replaced_by:
            log.info("%s (%d) gave way to a successor", role.name, role.pid)
            role.pid, role.due, role.replaced_by, role.asked = 0, 0.0, 0.0, 0.0
            return
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
        """Ask a worker to finish; insist when its time is over."""
        if not role.pid:
            return
        started, asked, killed = time.monotonic(), 0, False
        while os.waitpid(role.pid, os.WNOHANG)[0] == 0:
            now = time.monotonic()
            if not killed and now >= self._latest(role, started):
                log.warning("%s (%d) did not finish in %.1f s; killed", role.name, role.pid, now - started)
                os.kill(role.pid, signal.SIGKILL)
                killed = True
            elif now - started >= asked * ASK_S:
                # Again and again: one that has just been forked does not hear it yet.
                os.kill(role.pid, END)
                asked += 1
            if self._watch:
                self._watch.wait()
            time.sleep(0.005)

    def _latest(self, role: Role, started: float) -> float:
        """When a worker that got END at `started` must have ended."""
        latest = started + role.stop_s
        if len(self._stops) > 1:
            latest = min(latest, max(started, self._stops[1]) + role.hasty_stop_s)
        return latest


def hold_signals() -> None:
    """Keep what comes from here on until a supervisor listens: the sockets' queues must not be dropped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def end_when_told(worker: Stoppable, bell: int = -1) -> None:
    """Let END set a worker's flag, and ring the eventfd that it sleeps on, if it has one."""

    def end(_number: int, _frame: FrameType | None) -> None:
        worker.stopping = True
        if bell >= 0:
            os.eventfd_write(bell, 1)

    signal.signal(END, end)


def give_way_when_told(worker: Replaceable) -> None:
    """Let GIVE_WAY set both flags of a worker."""

    def give_way(_number: int, _frame: FrameType | None) -> None:
        worker.giving_way = worker.stopping = True

    signal.signal(GIVE_WAY, give_way)


def _step_back(nice: int) -> None:
    """Raise our niceness; a sandbox may refuse it, and no worker depends on it."""
    if nice:
        with suppress(OSError):
            os.nice(nice)


def _log_end(name: str, error: BaseException) -> None:
    """Say why a worker ends: in a sentence, or for a defect with the traceback."""
    if isinstance(error, OSError) and error.filename is not None:
        log.error("%s cannot go on: %s: %s", name, os.fsdecode(error.filename), error.strerror)
    elif isinstance(error, (IngestError, SpoolError)):
        log.error("%s cannot go on: %s", name, error)
    else:
        log.error("%s ended by an error", name, exc_info=error)


def _become_worker(parent: int) -> None:
    """Die with the supervisor, and take signals as a process of its own."""
    die_with(parent)
    signal.set_wakeup_fd(-1)
    for number in _HEARD:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(GIVE_WAY, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
