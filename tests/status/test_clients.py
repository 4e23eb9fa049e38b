"""Clients that ask too much of the page's server: too many, and some that do not read or send."""

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

from spool.shared.state import no_beat
from status.access import Access, StatusOptions, open_listener
from status.clients import MOST_CONNECTIONS, MOST_UNREAD_BYTES, Clients
from status.health import Health
from status.web import Server
from tests.daemon import PATIENCE_S, ROOT, free_port
from tests.status.conftest import Served
from tools.waiting import wait_until

DESCRIPTORS, MOST = 64, 32
NOBODY = 65534
MANY = 1000
"""Connections of one user."""
GROWTH = 128 << 20
"""The limit of the server's memory growth, in bytes."""
SPARE_DESCRIPTORS = 64
"""The limit of the server's descriptors beside connections."""
LARGE = 16 << 20
"""More bytes than the sockets' buffers hold."""


class Stub:
    """Answers, one of them large."""

    def figures(self) -> NoReturn:
        raise NotImplementedError

    def discards(self) -> dict[str, Any]:
        return {"much": "x" * LARGE}

    def health(self) -> Health:
        return Health([], [], 0, held=False)

    def refresh_metadata(self) -> None: ...


def serve(port: int, patience_s: float = 1.0) -> None:
    """Run the server, with few descriptors and little patience."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    access = Access(None, None, frozenset({"localhost"}))
    listener = open_listener(StatusOptions(port=port))
    Server(access, Stub(), Clients(MOST, patience_s)).run(listener, signal.SIGTERM, no_beat)


class ServerProcess:
    """The server in a separate process."""

    def __init__(self, log: Path, patience_s: float = 1.0) -> None:
        self.log, self._port = log, free_port()
        code = f"from tests.status.test_clients import serve; serve({self._port}, {patience_s})"
        with log.open("w") as told:
            self.process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=told)
        wait_until(self.answers, PATIENCE_S, "the server")

    def connect(self, path: str = "") -> socket.socket:
        """A client; with a path it sends a request, and has hardly any room for the answer."""
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
        """Return when the server has closed all connections."""
        wait_until(lambda: not self._connections(), PATIENCE_S, "connections to be let go")

    def answers(self) -> bool:
        """Whether a client gets an answer."""
        try:
            with self.connect("/healthz") as tcp:
                return bool(tcp.recv(1))
        except OSError:
            return False

    def _connections(self) -> int:
        """Connections that the server has a descriptor of: rows with its port, established, and an inode."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{self._port:04X}"
        return sum(row[1].endswith(port) and row[3] == "01" and row[9] != "0" for row in rows)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that runs for one test."""
    found = ServerProcess(tmp_path / "log")
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def test_more_than_there_are_descriptors_for(server: ServerProcess) -> None:
    """The server closes the oldest silent connections, without a traceback, and answers each request."""
    with ExitStack() as held:
        first = held.enter_context(server.connect())
        for _ in range(2 * DESCRIPTORS):
            held.enter_context(server.connect())
        assert first.recv(1) == b""
        with server.connect("/healthz") as tcp:
            assert tcp.recv(12) == b"HTTP/1.1 503"
    server.await_nobody()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize(
    "said", ["", "GET /heal", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"]
)
def test_half_a_request_is_let_go(server: ServerProcess, said: str) -> None:
    """Nothing, half a head, a head without its body: each has its time limit."""
    with server.connect() as tcp:
        tcp.sendall(said.encode())
        server.await_nobody()
        assert tcp.recv(1) == b""


def test_who_reads_nothing_is_let_go(server: ServerProcess) -> None:
    """An answer that its client does not read keeps neither memory nor a descriptor."""
    with server.connect("/api/v1/discards") as tcp:
        assert tcp.recv(1)
        server.await_nobody()


def test_answers_that_are_not_read_have_a_bound(tmp_path: Path) -> None:
    """If many clients do not read a large answer, the server's memory holds some of the answers only."""
    patient = ServerProcess(tmp_path / "log", PATIENCE_S)
    try:
        with ExitStack() as held:
            for _ in range(MOST - 1):
                tcp = held.enter_context(patient.connect("/api/v1/discards"))
                assert tcp.recv(1)
            assert patient.answers()
            peak = Path(f"/proc/{patient.process.pid}/status").read_text().partition("VmHWM:")[2]
            # The newest answer, and copies of it on their way.
            assert int(peak.split()[0]) << 10 < MOST_UNREAD_BYTES + 12 * LARGE
    finally:
        patient.process.kill()
        patient.process.wait()


class Attacker:
    """A user with MANY connections, each of which is opened again when the server closes it."""

    def __init__(self, port: int, said: str) -> None:
        if os.geteuid():
            pytest.skip("becoming another user needs root")
        code = f"from tests.status.test_clients import attack; attack({port}, {said!r})"
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
    """Run this user."""
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


@pytest.mark.sample("idle", "figures")
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
    """Beside a thousand connections of one user, of every kind, others get answers and keep connections."""
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
    """Ask on a connection that stays open."""
    mine.request("GET", "/healthz")
    answer = mine.getresponse()
    answer.read()
    assert answer.status == 200
    assert not answer.will_close
