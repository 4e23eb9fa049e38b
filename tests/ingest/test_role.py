"""The pulse of the workers: a silent one is named, one that hangs is killed, and one that waits is not."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest import role
from ingest.role import LOOK_S, PATIENCE, Patience, Pulse, Role, waits_for_disk
from spool.shared.state import BEAT, FORKED, WORKER_WORDS, Field, SharedState
from tests.ingest.test_supervisor import until

PID = 4711


class Ward:
    """One watched worker, whose process and whose clock are made up."""

    def __init__(self, shared: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared, self.now, self.state, self.cpu, self.computes = shared, 1000.0, "S", 0, False
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(role, "_look_at", lambda _: (self.state, self.cpu))
        self.role = Role("delivery", lambda: None, row=1, watched=True, pid=PID)
        self.pulse = Pulse(shared)
        self.beat()
        self.pulse.look([self.role])

    def beat(self) -> None:
        """Its loop turns."""
        self.shared.words[Field.WORKERS + WORKER_WORDS + BEAT] += 1

    def start(self) -> None:
        """A process that has not turned yet takes its place."""
        self.shared.words[Field.WORKERS + WORKER_WORDS + BEAT] = 0
        self.role.pid += 1
        self.pulse.look([self.role])

    def pass_time(self, seconds: float) -> float | None:
        """Look every LOOK_S for that long; after how many seconds it was to be killed, if it was."""
        killed = None
        for look in range(1, round(seconds / LOOK_S) + 1):
            self.now += LOOK_S
            # Those of librdkafka's threads, which wake up in any state.
            self.cpu += 1 + self.computes * round(LOOK_S * os.sysconf("SC_CLK_TCK") / 2)
            if self.pulse.look([self.role]):
                assert killed is None, "killed twice"
                killed = look * LOOK_S
        return killed


@pytest.fixture
def ward(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    """A worker that has just turned."""
    return Ward(SharedState(memory / "page"), monkeypatch)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the log."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.messages


@pytest.mark.parametrize(
    ("state", "words"),
    [("T", "it was stopped by a signal; it is replaced after"), ("S", "it is replaced if")],
)
def test_one_that_hangs_is_killed(ward: Ward, said: Callable[[], list[str]], state: str, words: str) -> None:
    """Named after PATIENCE.silent, killed once after PATIENCE.hung; its successor begins without a past."""
    ward.state = state
    assert ward.pass_time(PATIENCE.silent) is None
    (line,) = said()
    assert line.startswith(f"delivery ({PID}) has done nothing for {PATIENCE.silent:.0f} s: {words}")
    assert ward.pass_time(2 * PATIENCE.hung) == PATIENCE.hung - PATIENCE.silent
    assert len(said()) == 2
    assert "killed; its successor goes on" in said()[1]
    ward.role.pid, ward.state = PID + 1, "S"
    ward.beat()
    assert ward.pass_time(PATIENCE.silent) is None
    assert len(said()) == 2


def test_one_that_works_again(ward: Ward, said: Callable[[], list[str]]) -> None:
    """The end of its silence is logged, and the next one counts from the start."""
    for _ in range(3):
        assert ward.pass_time(PATIENCE.hung - LOOK_S) is None
        ward.beat()
        assert ward.pass_time(LOOK_S) is None
    assert [line for line in said() if "works again" in line] == [
        f"delivery ({PID}) works again, after {PATIENCE.hung - LOOK_S:.0f} s"
    ] * 3


@pytest.mark.parametrize(("state", "words"), [("D", "it waits for the disk"), ("t", "a debugger holds it")])
def test_one_that_waits_is_left(ward: Ward, said: Callable[[], list[str]], state: str, words: str) -> None:
    """A disk that stalls for an hour, and a debugger, are named in the log, and end no worker."""
    ward.state = state
    assert ward.pass_time(3600) is None
    (line,) = said()
    assert words in line


def test_one_that_computes_has_more_time(ward: Ward) -> None:
    """A slow processor is no hang; a loop without end is one."""
    ward.computes = True
    assert ward.pass_time(2 * PATIENCE.busy) == PATIENCE.busy


@pytest.mark.parametrize("busy", [0.0, PATIENCE.busy])
def test_one_that_never_begins_is_killed(
    ward: Ward, caplog: pytest.LogCaptureFixture, said: Callable[[], list[str]], busy: float
) -> None:
    """Named after PATIENCE.begin, and killed when it hangs beyond that; so is its successor."""
    ward.computes, limit = bool(busy), PATIENCE.begin + (busy or PATIENCE.hung)
    for _ in range(2):
        ward.start()
        assert ward.pass_time(PATIENCE.begin - LOOK_S) is None
        assert not said()
        assert ward.pass_time(LOOK_S) is None
        named = f"delivery ({ward.role.pid}) has not begun for {PATIENCE.begin:.0f} s: "
        least = PATIENCE.begin + PATIENCE.hung
        assert said() == [f"{named}it is replaced if that lasts for {least:.0f} s"]
        assert ward.pass_time(2 * limit) == limit - PATIENCE.begin
        assert f"has not begun for {limit:.0f} s: killed" in said()[1]
        caplog.clear()


def test_one_that_begins_late(ward: Ward, said: Callable[[], list[str]]) -> None:
    """A first turn after most of its time is no trouble; a later silence has the usual time only."""
    ward.start()
    assert ward.pass_time(PATIENCE.begin + PATIENCE.hung - LOOK_S) is None
    ward.beat()
    assert ward.pass_time(LOOK_S) is None
    after = PATIENCE.begin + PATIENCE.hung - LOOK_S
    assert said()[1] == f"delivery ({ward.role.pid}) has begun, after {after:.0f} s"
    assert ward.pass_time(PATIENCE.hung) == PATIENCE.hung


def test_time_that_did_not_pass_for_the_supervisor(ward: Ward) -> None:
    """After a host was suspended, or a container frozen, its workers get time to turn."""
    ward.now += 86400
    assert ward.pass_time(PATIENCE.hung - 3 * LOOK_S) is None


@pytest.mark.parametrize("why", ["giving way", "not watched"])
def test_those_that_are_not_judged(ward: Ward, why: str) -> None:
    """The supervisor has other deadlines for them, or none."""
    if why == "giving way":
        ward.role.replaced_by = 1e9
    else:
        ward.role.watched = False
    assert ward.pass_time(2 * PATIENCE.busy) is None


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps."""
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def test_a_process_that_is_stopped(process: subprocess.Popen[bytes]) -> None:
    """As the kernel tells it, and again when it goes on; one that is gone waits for nothing."""
    until(lambda: role._look_at(process.pid)[0] == "S", "it does not sleep")
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: role._look_at(process.pid)[0] == "T", "it is not stopped")
    assert not waits_for_disk(process.pid)
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: role._look_at(process.pid)[0] == "S", "it does not go on")
    process.kill()
    process.wait()
    assert role._look_at(process.pid) == ("", 0)


def test_any_thread_may_wait_for_the_disk(memory: Path) -> None:
    """The main thread may wait for another one that syncs; a filesystem in a process is a disk, too."""

    def put(task: int, state: str, wchan: str) -> None:
        place = memory / f"{PID}/task/{task}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "stat").write_text(f"{task} (a) b) {state} " + " ".join(map(str, range(4, 30))))
        (place / "wchan").write_text(wchan)

    put(PID, "S", "futex_wait_queue")
    put(PID + 1, "S", "do_poll")
    assert role._look_at(PID, memory) == ("S", 2 * (14 + 15))
    put(PID + 1, "D", "folio_wait_bit")
    assert waits_for_disk(PID, memory)
    put(PID + 1, "S", "request_wait_answer")
    assert waits_for_disk(PID, memory)


def test_a_supervisor_replaces_a_stopped_worker(memory: Path) -> None:
    """SIGSTOP of a worker that had turned: it is killed, and a successor works."""
    from tests.ingest.test_supervisor import Household

    class Beating(Household):
        def _work(self, name: str) -> None:
            row = 1 if name == "first" else 2
            beats = threading.Thread(target=self._beat, args=(row,), daemon=True)
            beats.start()
            super()._work(name)

        def _beat(self, row: int) -> None:
            while True:
                self.shared.beat(row)
                time.sleep(0.01)

    household = Beating(memory, watched=True, patience=Patience(look=0.1, silent=0.2, hung=2.0))
    try:
        first, _ = household.workers()
        os.kill(first, signal.SIGSTOP)
        until(lambda: household.restarts()[0] >= 1, "it is not replaced")
        until(lambda: household.workers()[0] not in (0, first), "it has no successor")
        until(lambda: household.said("first began") >= 2, "its successor does not work")
    finally:
        household.close()


def test_a_supervisor_replaces_a_worker_that_never_turns(memory: Path) -> None:
    """It wrote down when it started the worker; one without a turn since then gets a successor."""
    from tests.ingest.test_supervisor import Household

    before = time.monotonic_ns()
    household = Household(memory, watched=True, patience=Patience(look=0.1, begin=0.5, hung=0.5))
    try:
        first, _ = household.workers()
        row = household.shared.words[Field.WORKERS + WORKER_WORDS :][:WORKER_WORDS]
        assert before < row[FORKED] < time.monotonic_ns()
        assert row[BEAT] == 0
        until(lambda: household.restarts()[0] >= 1, "it is not replaced")
        until(lambda: household.workers()[0] not in (0, first), "it has no successor")
    finally:
        household.close()
