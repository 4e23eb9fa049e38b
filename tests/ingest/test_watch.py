"""The supervisor's messages to the service manager about the workers' health."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.role import PATIENCE, Role
from ingest.watch import ServiceManager, Watch
from spool.shared.state import SharedState
from tests.ingest.test_supervisor import until

WATCHDOG_S = 60


class Listener:
    """The service manager's end of the conversation."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000)}

    def heard(self) -> list[str]:
        """The messages since the last time."""
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture
def listener(memory: Path) -> Iterator[Listener]:
    """Somebody who listens."""
    made = Listener(memory / "notify")
    yield made
    made.close()


@pytest.fixture
def shared(memory: Path) -> SharedState:
    """The shared state of a daemon whose workers have said nothing."""
    return SharedState(memory / "page")


def working(**changes: object) -> Role:
    """A worker that is watched, this process."""
    given = {"row": 1, "watched": True, "awaited": True, "pid": os.getpid(), "started": time.monotonic()}
    return Role("keeper", lambda: None, **{**given, **changes})


def make_silent(shared: SharedState, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let that much time go by since the last beat."""
    shared.beat(1)
    now = time.monotonic_ns() / 1e9
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds)


def test_who_is_told_takes_the_variables_along(listener: Listener) -> None:
    """A worker, or what it starts, does not speak for the daemon."""
    environ = {**listener.environ, "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    manager = ServiceManager(environ)
    assert environ == {"HOME": "/"}
    assert manager.watchdog_s == WATCHDOG_S
    assert ServiceManager({**listener.environ, "WATCHDOG_PID": "1"}).watchdog_s == 0
    assert not ServiceManager({}).listens


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_a_word_reaches_the_manager(memory: Path, *, abstract: bool) -> None:
    """At a path, and in the abstract namespace, as systemd and container runtimes use it."""
    name = f"bruce-test-{os.getpid()}" if abstract else str(memory / "other")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}" if abstract else name)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}" if abstract else name}).tell("READY=1", "STATUS=well")
        assert receiver.recv(100) == b"READY=1\nSTATUS=well"


def test_a_manager_that_is_gone_is_no_error(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, and the daemon goes on."""
    manager = ServiceManager({"NOTIFY_SOCKET": str(memory / "nobody")})
    manager.tell("READY=1")
    manager.tell("WATCHDOG=1")
    assert len(caplog.messages) == 1


def test_ready_when_those_awaited_work(listener: Listener, shared: SharedState) -> None:
    """Not when they were only started; and without waiting for a worker that is not awaited."""
    watch = Watch(shared, ServiceManager(listener.environ), lambda: "well")
    roles = [working(), working(row=2, awaited=False, pid=0)]
    assert watch.look(roles) < 1
    assert "READY=1" not in listener.heard()
    shared.beat(1)
    assert watch.look(roles) > 1
    assert listener.heard().count("READY=1") == 1


def test_a_reload_is_over_when_all_work_with_it(listener: Listener, shared: SharedState) -> None:
    """RELOADING with the time at which it began, then READY once no worker has old settings any more."""
    watch, role = Watch(shared, ServiceManager(listener.environ), lambda: "well"), working()
    shared.beat(1)
    watch.look([role])
    listener.heard()
    before = time.monotonic_ns() // 1000
    watch.reload()
    reloading, since = listener.heard()
    assert reloading == "RELOADING=1"
    assert before <= int(since.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    role.replaced_by = time.monotonic() + 10
    watch.look([role])
    assert "READY=1" not in listener.heard()
    role.replaced_by = 0.0
    watch.look([role])
    assert "READY=1" in listener.heard()


def test_the_watchdog_hears_of_workers_that_work(
    listener: Listener, shared: SharedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is silent for half of the watchdog's time is named, and nothing is sent in its name."""
    watch = Watch(shared, ServiceManager(listener.environ), lambda: "well")
    make_silent(shared, monkeypatch, WATCHDOG_S / 2 - 1)
    watch.look([working()])
    assert {"WATCHDOG=1", "STATUS=well"} <= set(listener.heard())
    make_silent(shared, monkeypatch, WATCHDOG_S / 2 + 6)
    watch.look([working()])
    heard = listener.heard()
    assert heard == [f"STATUS=the keeper worker ({os.getpid()}) has done nothing for 36 s"]


def test_a_status_is_one_assignment(listener: Listener, shared: SharedState) -> None:
    """A broker's words of several lines say nothing else to the manager in the daemon's name."""
    watch = Watch(shared, ServiceManager(listener.environ), lambda: "Kafka says: no\nMAINPID=1\r\n")
    shared.beat(1)
    watch.look([working()])
    assert "STATUS=Kafka says: no MAINPID=1" in (heard := listener.heard())
    assert not any(line.startswith("MAINPID") for line in heard)


@pytest.mark.parametrize(
    "changes",
    [{"watched": False}, {"needed": False}, {"pid": 0}, {"replaced_by": 1.0}],
    ids=["not watched", "not needed", "between two lives", "gives way"],
)
def test_who_is_not_watched(
    listener: Listener, shared: SharedState, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """Their silence does not keep the supervisor from sending WATCHDOG=1."""
    watch = Watch(shared, ServiceManager(listener.environ), lambda: "well")
    make_silent(shared, monkeypatch, 3600)
    assert watch.hung([working()])
    assert not watch.hung([working(**changes)])


def test_a_first_turn_may_take_longer(
    listener: Listener, shared: SharedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has not begun is given PATIENCE.begin, and not for ever."""
    watch, began = Watch(shared, ServiceManager(listener.environ), lambda: "well"), time.monotonic()
    for seconds, hung in ((PATIENCE.begin - 1, False), (PATIENCE.begin + 1, True)):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: began + seconds)
        assert bool(watch.hung([working(started=began)])) == hung


WAITING = """
import ctypes, time
CLONE, CLONE_VFORK, SIGCHLD = 56, 0x4000, 17
ctypes.CDLL(None).syscall(CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0)  # the parent waits, in state D
time.sleep(600)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of clone(2) is that of x86_64")
def test_who_waits_for_the_disk_does_not_hang(
    listener: Listener, shared: SharedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in state D is not restarted by any signal; a stopped process is distinguished from it."""
    watch = Watch(shared, ServiceManager(listener.environ), lambda: "well")
    waiting = subprocess.Popen([sys.executable, "-c", WAITING], start_new_session=True)
    stopped = subprocess.Popen(["sleep", "600"])
    try:
        # It is in state D for moments before, too, while its modules are read from the disk.
        children = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children")
        until(lambda: bool(children.read_text()) and state_of(waiting.pid) == "D", "it does not wait")
        stopped.send_signal(signal.SIGSTOP)
        until(lambda: state_of(stopped.pid) == "T", "it does not stop")
        make_silent(shared, monkeypatch, 3600)
        assert not watch.hung([working(pid=waiting.pid)])
        assert watch.hung([working(pid=stopped.pid)])
    finally:
        os.killpg(waiting.pid, signal.SIGKILL)
        stopped.kill()
        waiting.wait()
        stopped.wait()


def state_of(pid: int) -> str:
    """As proc(5) has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
