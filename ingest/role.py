"""A worker process, as the supervisor knows it, and its pulse: for how long its loop has not turned.

Each watched worker writes the time of its last loop into the shared state. One that does nothing for 10 s
is named in the log, and by `status`, which reads the same words. One that does nothing for 60 s, because it
was stopped (SIGSTOP) or waits for what will not come, is killed for a successor: a SIGKILL loses nothing, and
comes through to a stopped process. One that computes all the while has 300 s. Before its first turn, a worker
has 300 s more for each of these: it may compile, and the keeper may have to read a spool whose index is gone.
These do not count:

    time in which a worker waits for its disk      a successor would wait, too
    time in which a debugger holds it
    time in which the supervisor did not run       the host was suspended, or the container frozen
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spool.shared.state import BEAT, WORKER_WORDS, Field, SharedState

PR_SET_PDEATHSIG = 1
log = logging.getLogger("bruce.supervisor")
LOOK_S = 5.0
"""Between two looks."""
_DISK, _STOPPED, _TRACED = "D", "T", "t"
_FUSE = b"request_wait_answer"
"""The place in the kernel at which a process waits for a filesystem of FUSE; its state is then S."""
_PROC = Path("/proc")
_COMPUTES = 0.05 * os.sysconf("SC_CLK_TCK")
"""Ticks a second, beyond what threads of librdkafka use that wait."""
_UTIME, _STIME = 11, 12
"""Fields of /proc/PID/stat behind the state, which is the first."""


@dataclass(slots=True)
class Role:
    """One worker process: its name, and its function. `run` returns after the signal END."""

    name: str
    run: Callable[[], None]
    stop_s: float = 30.0
    """Given to it to end in order, in seconds."""
    hasty_stop_s: float = 0.0
    """The same when the supervisor got two signals to stop."""
    row: int = 0
    """Of WORKERS in the shared state; 0: that of its place among the roles."""
    watched: bool = False
    """It says in the shared state when its loop has turned (ingest.watch)."""
    awaited: bool = False
    """The daemon is ready when this one works."""
    needed: bool = True
    """Messages depend on it: the service manager hears when it hangs."""
    nice: int = 0
    """Of its niceness, beyond the supervisor's: how far it stays behind others that want a processor."""
    ends_first: bool = False
    """It feeds the others: it ends before them, whenever it was started."""
    pid: int = 0
    restarts: int = 0
    started: float = 0.0
    hasty: int = 0
    due: float = 0.0
    asked: float = 0.0
    """When it was last asked to give way."""
    replaced_by: float = 0.0
    """When it must have given way; 0 while it is not asked to."""


def die_with(parent: int) -> None:
    """End this process by SIGKILL when the one that forked it has ended, or has already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Patience(NamedTuple):
    """Seconds without a turn."""

    look: float = LOOK_S
    """Between two looks. If half as much again has passed, the supervisor did not run."""
    silent: float = 10.0
    """Until a worker is named."""
    hung: float = 60.0
    """Until it is replaced."""
    busy: float = 300.0
    """The same while it computes: a processor may be slow, and shared with others."""
    begin: float = 300.0
    """Until a worker is named that has never turned; it is replaced when it hangs beyond that."""


PATIENCE = Patience()
_WHY = {
    _DISK: "it waits for the disk",
    _STOPPED: "it was stopped by a signal; it is replaced after {limit:.0f} s",
    _TRACED: "a debugger holds it",
}
_ELSE = "it is replaced if that lasts for {limit:.0f} s"


@dataclass(slots=True)
class Silence:
    """A worker whose loop has not turned since an earlier look."""

    pid: int
    beat: int
    cpu: int | None = None
    """Clock ticks that its threads had used at first."""
    seconds: float = 0.0
    hung: float = 0.0
    """The part of it that counts."""
    told: bool = False
    ended: bool = False


class Pulse:
    """The loops of all workers, as their supervisor sees them."""

    def __init__(self, shared: SharedState, patience: Patience = PATIENCE) -> None:
        self._words, self._patience = shared.words, patience
        self._silences: dict[str, Silence] = {}
        self._looked = time.monotonic()

    def look(self, roles: Iterable[Role]) -> list[Role]:
        """Look at all; those that are to be killed. Called every LOOK_S."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 1.5 * self._patience.look), now
        return [role for role in roles if role.watched and role.pid and self._is_hung(role, passed)]

    def _is_hung(self, role: Role, passed: float) -> bool:
        beat = int(self._words[Field.WORKERS + WORKER_WORDS * role.row + BEAT])
        known = self._silences.get(role.name)
        # The supervisor has a deadline of its own for one that gives way.
        if known is None or (known.pid, known.beat) != (role.pid, beat) or role.replaced_by:
            self._silences[role.name] = Silence(role.pid, beat)
            if known and known.told and known.pid == role.pid and known.beat != beat:
                does = "works again" if known.beat else "has begun"
                log.warning("%s (%d) %s, after %.0f s", role.name, role.pid, does, known.seconds)
            return False
        state, cpu = _look_at(role.pid)
        known.cpu = cpu if known.cpu is None else known.cpu
        known.seconds += passed
        known.hung += 0.0 if state in (_DISK, _TRACED) else passed
        begin, has = (0.0, "has done nothing") if beat else (self._patience.begin, "has not begun")
        if known.seconds >= (begin or self._patience.silent) and not known.told:
            known.told = True
            why = _WHY.get(state, _ELSE).format(limit=begin + self._patience.hung)
            log.warning("%s (%d) %s for %.0f s: %s", role.name, role.pid, has, known.seconds, why)
        computes = cpu - known.cpu > _COMPUTES * known.seconds and state != _STOPPED
        if known.ended or known.hung < begin + (self._patience.busy if computes else self._patience.hung):
            return False
        log.error(
            "%s (%d) %s for %.0f s: killed; its successor goes on with what is stored",
            role.name,
            role.pid,
            has,
            known.seconds,
        )
        known.ended = True
        return True


def waits_for_disk(pid: int, proc: Path = _PROC) -> bool:
    """Whether a thread of a process waits for a filesystem; `proc`: where procfs is."""
    return _look_at(pid, proc)[0] == _DISK


def _look_at(pid: int, proc: Path = _PROC) -> tuple[str, int]:
    """(state of the main thread as in proc(5), clock ticks of all); D if any waits for a filesystem."""
    state, ticks = "", 0
    # A thread, or all of it, may end meanwhile.
    with suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with suppress(OSError):
                fields = (task / "stat").read_bytes().rpartition(b") ")[2].split()
                ticks += int(fields[_UTIME]) + int(fields[_STIME])
                if fields[0] == b"D" or (task / "wchan").read_bytes() == _FUSE:
                    state = _DISK
                elif task.name == str(pid):
                    state = state or fields[0].decode()
    return state, ticks
