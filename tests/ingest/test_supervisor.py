"""The supervisor: one process a role, reaped before its successor starts, and a stop in order."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest.errors import BadSocket
from ingest.role import PATIENCE, Patience, Role
from ingest.supervisor import BACKOFF_S, END, GIVE_WAY, Supervisor, _log_end, hold_signals
from spool.errors import SpoolFull
from spool.shared.state import WORKER_WORDS, Field, SharedState
from tests.ingest.processes import PATIENCE_S, await_end, fork

NICE = 3
"""Of the second worker."""


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
    except (FileNotFoundError, ProcessLookupError):
        return False


class Household:
    """A supervisor in a process of its own, with two workers that write down what they do."""

    def __init__(
        self,
        directory: Path,
        new_settings: list[str] | None = None,
        *,
        watched: bool = False,
        patience: Patience = PATIENCE,
    ) -> None:
        """`new_settings`: the roles that a reload names; without any it fails."""
        self.watched, self._patience = watched, patience
        self.shared = SharedState(directory / "page")
        self.diary = directory / "diary"
        self.new_settings = new_settings
        self.pid = fork(self._run)
        until(lambda: all(self.workers()), "the workers do not start")
        until(lambda: self.said("began") == 2, "the workers do not get ready")

    def _run(self) -> None:
        roles = [
            Role(
                name,
                lambda name=name: self._work(name),
                stop_s=PATIENCE_S,
                hasty_stop_s=hasty,
                watched=self.watched,
                nice=nice,
            )
            for name, hasty, nice in (("first", PATIENCE_S, 0), ("second", 0.0, NICE))
        ]
        Supervisor(roles, self.shared, reload=self._reload, patience=self._patience).run()

    def _reload(self) -> list[str]:
        self.write("reloaded")
        if not self.new_settings:
            raise ValueError("an unforeseen error")
        return self.new_settings

    def _work(self, name: str) -> None:
        stopping: list[int] = []
        signal.signal(END, lambda number, _frame: stopping.append(number))
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
        """The pids that the shared state names."""
        return [int(self.shared.words[Field.WORKERS + WORKER_WORDS * row]) for row in (1, 2)]

    def restarts(self) -> list[int]:
        """The restarts that the shared state counts."""
        return [int(self.shared.words[Field.WORKERS + WORKER_WORDS * row + 1]) for row in (1, 2)]

    def close(self) -> None:
        """End it, whatever state it is in."""
        if is_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            await_end(self.pid)


class Starved(Household):
    """One whose system has no room for another process while there is a file called full."""

    def _run(self) -> None:
        fork_it, full = os.fork, self.diary.with_name("full")

        def refuse() -> int:
            if not full.exists():
                return fork_it()
            self.write("refused")
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        os.fork = refuse
        super()._run()


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


def test_one_that_stays_behind_the_others(household: Household) -> None:
    """The second worker, and its successor, is nicer than the supervisor; the first is not."""
    own = os.getpriority(os.PRIO_PROCESS, household.pid)
    expected = [own, min(19, own + NICE)]
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in household.workers()] == expected
    os.kill(household.workers()[1], signal.SIGKILL)
    until(lambda: household.said("second began") == 2, "no successor")
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in household.workers()] == expected


def test_the_dead_are_reaped_before_their_successors_start(household: Household) -> None:
    """Two processes of one role never run at once, and no zombie stays."""
    before = household.workers()[0]
    os.kill(before, signal.SIGKILL)
    until(lambda: household.restarts()[0] == 1, "no successor")
    assert not Path(f"/proc/{before}").exists()


def test_a_stop_is_in_order(household: Household) -> None:
    """SIGTERM: the first role has ended before the second one gets its signal."""
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_all_are_told_is_for_the_supervisor(household: Household, number: int) -> None:
    """A terminal or a service manager signals all at once; the workers wait for the supervisor's order."""
    before = household.workers()
    for pid in before:
        os.kill(pid, number)
    os.kill(household.pid, signal.SIGTERM)
    assert await_end(household.pid) == 0
    assert household.diary.read_text().split("\n")[-3:] == ["first ended", "second ended", ""]
    assert household.restarts() == [0, 0]


def test_told_twice(memory: Path) -> None:
    """The second signal ends at once only the roles that have no grace time of their own for it."""
    diary = memory / "diary"

    def slowly() -> None:
        told: list[int] = []
        signal.signal(END, lambda number, _frame: told.append(number))
        (memory / "ready").touch()
        while not told:
            time.sleep(0.002)
        (memory / "ending").touch()
        while not (memory / "now").exists():
            time.sleep(0.002)
        diary.write_text("in order")

    def run() -> None:
        roles = [
            Role("slow", slowly, stop_s=3600, hasty_stop_s=PATIENCE_S),
            Role("deaf", lambda: time.sleep(3600), stop_s=3600),
        ]
        Supervisor(roles, shared).run()

    shared = SharedState(memory / "page")
    pid = fork(run)
    until(
        lambda: shared.words[Field.WORKERS + 2 * WORKER_WORDS] and (memory / "ready").exists(),
        "the workers do not start",
    )
    deaf = int(shared.words[Field.WORKERS + 2 * WORKER_WORDS])
    os.kill(pid, signal.SIGTERM)
    until((memory / "ending").exists, "the first is not told to end")
    os.kill(pid, signal.SIGINT)
    (memory / "now").touch()
    assert await_end(pid) == 0
    assert diary.read_text() == "in order"
    assert not is_alive(deaf)


def test_signals_before_there_is_a_supervisor_wait_for_it(memory: Path) -> None:
    """Signals held back meanwhile are heard: the workers start, and end in order."""

    def run() -> None:
        hold_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        reloaded = memory / "reloaded"
        Supervisor([Role("r", work)], shared, reload=lambda: reloaded.touch() or ()).run()

    def work() -> None:
        told: list[int] = []
        signal.signal(END, lambda number, _frame: told.append(number))
        while not told:
            time.sleep(0.002)
        (memory / "ended").touch()

    shared = SharedState(memory / "page")
    assert await_end(fork(run)) == 0
    assert (memory / "ended").exists()


def test_a_reload_replaces_whom_it_names(memory: Path) -> None:
    """A worker that was named has a successor, and it counts as no crash; the other is left alone."""
    household = Household(memory, new_settings=["second"])
    try:
        first, second = household.workers()
        os.kill(household.pid, signal.SIGHUP)
        until(lambda: household.workers()[1] != second, "no successor")
        until(lambda: household.said("second began") == 2, "the successor does not work")
        assert not is_alive(second)
        assert household.workers()[0] == first
        assert household.restarts() == [0, 0]
        os.kill(household.pid, signal.SIGTERM)
        assert await_end(household.pid) == 0
    finally:
        household.close()


def test_a_reload_that_fails_changes_nothing(household: Household) -> None:
    """The workers stay, and the supervisor too, whatever is raised."""
    before = household.workers()
    for times in (1, 2):
        os.kill(household.pid, signal.SIGHUP)
        until(lambda times=times: household.said("reloaded") == times, "not reloaded")
    assert household.workers() == before
    os.kill(household.pid, signal.SIGTERM)
    assert await_end(household.pid) == 0


def test_a_stop_while_one_gives_way(memory: Path) -> None:
    """There is a successor before the end: it may have work left to do."""
    diary = memory / "diary"

    def work() -> None:
        told: list[int] = []
        signal.signal(END, lambda number, _frame: told.append(number))
        leaving: list[int] = []
        signal.signal(GIVE_WAY, lambda number, _frame: leaving.append(number))
        with diary.open("a") as file:
            file.write("began\n")
        while not told and not ((memory / "now").exists() and leaving):
            time.sleep(0.002)
        with diary.open("a") as file:
            file.write("ended\n" if told else "left\n")

    def run() -> None:
        Supervisor([Role("r", work, stop_s=PATIENCE_S)], shared, reload=lambda: asked.touch() or ["r"]).run()

    shared, asked = SharedState(memory / "page"), memory / "asked"
    pid = fork(run)
    until(lambda: diary.exists() and diary.read_text(), "the worker does not start")
    os.kill(pid, signal.SIGHUP)
    until(asked.exists, "not reloaded")
    os.kill(pid, signal.SIGTERM)
    (memory / "now").touch()
    assert await_end(pid) == 0
    assert diary.read_text() == "began\nleft\nbegan\nended\n"


def test_no_look_while_it_stops(memory: Path) -> None:
    """It sleeps until the next one would be due, and turns no more while a worker gives way."""
    supervisor = Supervisor([], SharedState(memory / "page"))
    supervisor._stops.append(time.monotonic())
    supervisor._look_at = 0.0
    begun = time.monotonic()
    supervisor._look_round()
    assert supervisor._look_at > begun


def test_who_does_not_give_way_is_killed(memory: Path) -> None:
    """After stop_s it is insisted on."""

    def work() -> None:
        signal.signal(GIVE_WAY, signal.SIG_IGN)
        time.sleep(3600)

    def run() -> None:
        Supervisor([Role("deaf", work, stop_s=0.3)], shared, reload=lambda: ["deaf"]).run()

    shared = SharedState(memory / "page")
    pid = fork(run)
    until(lambda: shared.words[Field.WORKERS + WORKER_WORDS], "the worker does not start")
    worker = int(shared.words[Field.WORKERS + WORKER_WORDS])
    os.kill(pid, signal.SIGHUP)
    until(lambda: shared.words[Field.WORKERS + WORKER_WORDS] != worker, "no successor")
    os.kill(pid, signal.SIGTERM)
    assert await_end(pid) == 0


def test_a_worker_that_dies_at_once_is_not_started_in_a_frenzy(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first restarts are immediate, then pauses grow to the longest, and shrink after a steady life."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    supervisor = Supervisor([], SharedState(memory / "page"))
    role = Role("r", lambda: None, pid=1)
    pauses = []
    for _ in range(8):
        role.started = now
        supervisor._schedule(role, 9)
        pauses.append(role.due - now)
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_S[-1]
    assert role.restarts == 8
    role.started = now - 3600
    supervisor._schedule(role, 9)
    assert role.hasty == 0


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device", b"/spool/owner"), "/spool/owner: No space left on"),
        (SpoolFull("no room for 8192 bytes"), "no room for 8192 bytes"),
        (BadSocket("it is in use"), "it is in use"),
    ],
)
def test_a_trouble_is_said_in_a_sentence(
    error: Exception, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that ends for what a user can mend says so; only a defect has a traceback."""
    for one in (error, ValueError("a defect")):
        _log_end("delivery", one)
    first, second = caplog.records
    assert first.getMessage().startswith(f"delivery cannot go on: {sentence}")
    assert first.exc_info is None
    assert second.exc_info is not None


def test_a_system_that_gives_no_process(memory: Path) -> None:
    """Without memory for a successor the supervisor stays, with the sockets, and tries until it has one."""
    household = Starved(memory)
    try:
        first, second = household.workers()
        (memory / "full").touch()
        os.kill(first, signal.SIGKILL)
        until(lambda: household.said("refused") >= 2, "it is not tried again")
        assert is_alive(second)
        assert household.workers()[0] == 0
        (memory / "full").unlink()
        until(lambda: household.said("first began") == 2, "no successor")
        assert household.workers()[1] == second
        os.kill(household.pid, signal.SIGTERM)
        assert await_end(household.pid) == 0
        assert household.said("ended") == 2
    finally:
        household.close()


def test_a_worker_that_will_not_end_is_killed(memory: Path) -> None:
    """After stop_s a stop is insisted on; the supervisor still ends."""

    def run() -> None:
        Supervisor([Role("deaf", lambda: time.sleep(3600), stop_s=0.1)], shared).run()

    shared = SharedState(memory / "page")
    pid = fork(run)
    until(lambda: shared.words[Field.WORKERS + WORKER_WORDS], "the worker does not start")
    worker = int(shared.words[Field.WORKERS + WORKER_WORDS])
    os.kill(pid, signal.SIGTERM)
    assert await_end(pid) == 0
    assert not is_alive(worker)
