"""Clients that want more of the page's server than it has: too many, and those that read or send nothing."""

from __future__ import annotations

import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import psutil
import pytest

from status import crowd as limits
from status import web
from status.access import Access
from status.crowd import MOST_CONNECTIONS, MOST_UNREAD_BYTES
from status.options import StatusOptions
from status.vital import Vital
from tests.daemon import PATIENCE_S, ROOT, free_port
from tests.status.conftest import Served
from tools.waiting import wait_until

DESCRIPTORS, MOST = 64, 32
NOBODY = 65534
MANY = 1000
"""Connections of one user."""
GROWTH = 128 << 20
"""Of the server's memory, at most, in bytes."""
SPARE_DESCRIPTORS = 64
"""What a server has open beside connections, at most."""
LARGE = 16 << 20
"""Bytes that no sockets' buffers hold."""


class Stub:
    """Answers of which one is large."""

    def figures(self) -> NoReturn:
        raise NotImplementedError

    def discards(self) -> dict[str, Any]:
        return {"much": "x" * LARGE}

    def vital(self) -> Vital:
        return Vital([], [], 0, held=False)

    def refresh_metadata(self) -> None: ...


def serve(port: int, patience_s: float = 1.0) -> None:
    """Be the server, with few descriptors and little patience."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    web.PATIENCE_S, limits.MOST_CONNECTIONS = patience_s, MOST
    access = Access(None, None, frozenset({"localhost"}))
    web.Server(StatusOptions(port=port), access, Stub()).run(signal.SIGTERM)


class Crowd:
    """The server in a process of its own."""

    def __init__(self, log: Path, patience_s: float = 1.0) -> None:
        self.log, self._port = log, free_port()
        code = f"from tests.status.test_crowd import serve; serve({self._port}, {patience_s})"
        with log.open("w") as told:
            self.process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=told)
        wait_until(self.answers, PATIENCE_S, "the server")

    def connect(self, path: str = "") -> socket.socket:
        """A client; with a path it asks for it, and has hardly any room for the answer."""
        tcp = socket.socket()
        tcp.settimeout(PATIENCE_S)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            tcp.connect(("127.0.0.1", self._port))
            if path:
                tcp.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        except OSError:
            tcp.close()
            raise
        return tcp

    def await_nobody(self) -> None:
        """Return when the server has let go of all connections."""
        wait_until(lambda: not self._connections(), PATIENCE_S, "connections to be let go")

    def answers(self) -> bool:
        """Whether somebody who asks is heard."""
        try:
            with self.connect("/healthz") as tcp:
                return bool(tcp.recv(1))
        except OSError:
            return False

    def _connections(self) -> int:
        """Those that the server has a descriptor of: rows with its port, established, and an inode."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{self._port:04X}"
        return sum(row[1].endswith(port) and row[3] == "01" and row[9] != "0" for row in rows)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    """A server, ended at the end."""
    found = Crowd(tmp_path / "log")
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def test_more_than_there_are_descriptors_for(crowd: Crowd) -> None:
    """The oldest of those that say nothing make room, without a traceback, and each question is answered."""
    with ExitStack() as held:
        first = held.enter_context(crowd.connect())
        for _ in range(2 * DESCRIPTORS):
            held.enter_context(crowd.connect())
        assert first.recv(1) == b""
        with crowd.connect("/healthz") as tcp:
            assert tcp.recv(12) == b"HTTP/1.1 503"
    crowd.await_nobody()
    assert "Traceback" not in crowd.log.read_text()


@pytest.mark.parametrize(
    "said", ["", "GET /heal", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"]
)
def test_half_a_request_is_let_go(crowd: Crowd, said: str) -> None:
    """Nothing, half a head, a head without its body: each has its time."""
    with crowd.connect() as tcp:
        tcp.sendall(said.encode())
        crowd.await_nobody()
        assert tcp.recv(1) == b""


def test_who_reads_nothing_is_let_go(crowd: Crowd) -> None:
    """An answer that its client does not read keeps neither memory nor a descriptor."""
    with crowd.connect("/api/v1/discards") as tcp:
        assert tcp.recv(1)
        crowd.await_nobody()


def test_answers_that_are_not_read_have_a_bound(tmp_path: Path) -> None:
    """However many clients leave a large answer lying, the server's memory has room for some of them only."""
    patient = Crowd(tmp_path / "log", PATIENCE_S)
    try:
        with ExitStack() as held:
            for _ in range(MOST - 1):
                tcp = held.enter_context(patient.connect("/api/v1/discards"))
                assert tcp.recv(1)
            assert patient.answers()
            peak = Path(f"/proc/{patient.process.pid}/status").read_text().partition("VmHWM:")[2]
            # The newest, and copies of it on its way.
            assert int(peak.split()[0]) << 10 < MOST_UNREAD_BYTES + 12 * LARGE
    finally:
        patient.process.kill()
        patient.process.wait()


class Attacker:
    """A user with MANY connections, each of which is opened again when the server closes it."""

    def __init__(self, port: int, said: str) -> None:
        if os.geteuid():
            pytest.skip("becoming another user needs root")
        code = f"from tests.status.test_crowd import attack; attack({port}, {said!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "all\n"
        return self

    def __exit__(self, *_about: object) -> None:
        assert self._process.poll() is None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def attack(port: int, said: str) -> NoReturn:
    """Be that user."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, 2 * MANY))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)

    def connect() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port))
        made.setblocking(False)
        with suppress(OSError):
            made.sendall(said.encode())
        return made

    mine = [connect() for _ in range(MANY)]
    sys.stdout.write("all\n")
    sys.stdout.flush()
    while True:
        for number, one in enumerate(mine):
            try:
                closed = not one.recv(1 << 16)
            except BlockingIOError:
                closed = False
            except OSError:
                closed = True
            if closed:
                one.close()
                mine[number] = connect()
        time.sleep(0.5)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "GET /heal",
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["idle", "half a head", "no body", "figures", "streams"],
)
def test_one_user_keeps_nobody_out(served: Served, said: str) -> None:
    """Beside a thousand connections of one user, of every kind, others are answered, and keep theirs."""
    (worker,) = (psutil.Process(one.pid) for one in served.bruce.status().workers if one.role == "status")
    before = worker.memory_info().rss
    mine = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
    with closing(mine), ExitStack() as pages:
        ask(mine)
        with Attacker(served.port, said):
            for _ in range(3):
                ask(mine)
                assert served.get("/healthz").status == 200
                assert served.get("/metrics").status == 200
            # A page in a browser.
            page = pages.enter_context(socket.create_connection(("127.0.0.1", served.port), PATIENCE_S))
            page.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert page.recv(12) == b"HTTP/1.1 200"
            assert worker.num_fds() <= MOST_CONNECTIONS + SPARE_DESCRIPTORS
            assert worker.memory_info().rss - before < GROWTH


def ask(mine: http.client.HTTPConnection) -> None:
    """On a connection that stays."""
    mine.request("GET", "/healthz")
    answer = mine.getresponse()
    answer.read()
    assert answer.status == 200
    assert not answer.will_close
