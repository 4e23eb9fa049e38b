"""The supervisor: one process a role, reaped before its successor starts, and a stop in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest.supervisor import BACKOFF_S, Role, Supervisor
from spool.page import Field, Page
from tests.ingest.processes import PATIENCE_S, await_end, fork


def until(claim: Callable[[], object], what: str) -> None:
    """Wait for what should be so in a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Household:
    """A supervisor in a process of its own, with two workers that write down what they do."""

    def __init__(self, directory: Path) -> None:
        self.page = Page(directory / "page")
        self.diary = directory / "diary"
        self.pid = fork(self._run)
        until(lambda: all(self.workers()), "the workers do not start")
        until(lambda: self.said("began") == 2, "the workers do not get ready")

    def _run(self) -> None:
        roles = [Role(name, lambda name=name: self._work(name)) for name in ("first", "second")]
        Supervisor(roles, self.page, stop_s=PATIENCE_S).run()

    def _work(self, name: str) -> None:
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
        self.write(f"{name} began")
        while not stopping:
            time.sleep(0.002)
        self.write(f"{name} ended")

    def write(self, line: str) -> None:
        """Add a line to the diary."""
        fd = os.open(self.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, line.encode() + b"\n")
        os.close(fd)

    def said(self, word: str) -> int:
        """How many lines have this word."""
        return self.diary.read_text().count(word) if self.diary.exists() else 0

    def workers(self) -> list[int]:
        """The pids that the page names."""
        return [int(self.page.words[Field.WORKERS + 8 * row]) for row in (1, 2)]

    def restarts(self) -> list[int]:
        """The restarts that the page counts."""
        return [int(self.page.words[Field.WORKERS + 8 * row + 1]) for row in (1, 2)]

    def close(self) -> None:
        """End it, whatever state it is in."""
        if is_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            await_end(self.pid)


@pytest.fixture
def household(memory: Path) -> Iterator[Household]:
    """A running supervisor with two workers."""
    made = Household(memory)
    yield made
    made.close()


def test_a_killed_worker_has_a_successor(household: Household) -> None:
    """Each SIGKILL is followed by one new process of that role, counted; the other role is left alone."""
    first, second = household.workers()
    for kill in range(1, 4):
        os.kill(household.workers()[0], signal.SIGKILL)
        until(lambda kill=kill: household.restarts()[0] == kill, "no successor")
        until(lambda kill=kill: household.said("first began") == kill + 1, "the successor does not work")
    assert household.workers()[0] != first
    assert household.workers()[1] == second
    assert household.restarts() == [3, 0]


def test_the_dead_are_reaped_before_their_successors_start(household: Household) -> None:
    """Two processes of one role never run at once, and no zombie stays."""
    before = household.workers()[0]
    os.kill(before, signal.SIGKILL)
    until(lambda: household.restarts()[0] == 1, "no successor")
    assert not Path(f"/proc/{before}").exists()


def test_a_stop_is_in_order(household: Household) -> None:
    """SIGTERM: the first role has ended before the second is told to."""
    workers = household.workers()
    os.kill(household.pid, signal.SIGTERM)
    assert await_end(household.pid) == 0
    assert household.diary.read_text().split("\n")[-3:] == ["first ended", "second ended", ""]
    assert not any(map(is_alive, workers))


def test_a_stop_right_after_a_start_is_heard(household: Household) -> None:
    """A worker that has just been forked still ends in order, not by the signal."""
    os.kill(household.workers()[1], signal.SIGKILL)
    until(lambda: household.restarts()[1] == 1, "no successor")
    os.kill(household.pid, signal.SIGTERM)
    assert await_end(household.pid) == 0
    assert household.said("second ended") == 1


def test_workers_die_with_their_supervisor(household: Household) -> None:
    """SIGKILL of the supervisor leaves no worker that would hold the spool."""
    workers = household.workers()
    os.kill(household.pid, signal.SIGKILL)
    assert await_end(household.pid) == -signal.SIGKILL
    until(lambda: not any(map(is_alive, workers)), "a worker has outlived its supervisor")


def test_a_terminal_interrupts_the_supervisor_alone(household: Household) -> None:
    """Ctrl-C goes to all of the group; the workers wait to be told, and end in order."""
    for pid in household.workers():
        os.kill(pid, signal.SIGINT)
    os.kill(household.pid, signal.SIGINT)
    assert await_end(household.pid) == 0
    assert household.diary.read_text().split("\n")[-3:] == ["first ended", "second ended", ""]


def test_a_worker_that_dies_at_once_is_not_started_in_a_frenzy(memory: Path) -> None:
    """The first restarts are immediate, then pauses grow to the longest, and shrink after a steady life."""
    supervisor = Supervisor([], Page(memory / "page"))
    role = Role("r", lambda: None, pid=1)
    pauses = []
    for _ in range(8):
        role.started = time.monotonic()
        supervisor._schedule(role, 9)
        pauses.append(round(role.due - time.monotonic(), 1) if role.due > time.monotonic() else 0.0)
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_S[-1]
    assert role.restarts == 8
    role.started = time.monotonic() - 3600
    supervisor._schedule(role, 9)
    assert role.hasty == 0


def test_a_worker_that_will_not_end_is_killed(memory: Path) -> None:
    """After stop_s a stop is insisted on; the supervisor still ends."""

    def run() -> None:
        Supervisor([Role("deaf", lambda: time.sleep(3600))], page, stop_s=0.1).run()

    page = Page(memory / "page")
    pid = fork(run)
    until(lambda: page.words[Field.WORKERS + 8], "the worker does not start")
    worker = int(page.words[Field.WORKERS + 8])
    os.kill(pid, signal.SIGTERM)
    assert await_end(pid) == 0
    assert not is_alive(worker)
