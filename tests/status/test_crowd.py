"""Clients that want more of the page's server than it has: too many, and those that read nothing."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from status import web
from status.access import Access
from status.options import StatusOptions
from status.vital import Vital
from tests.daemon import PATIENCE_S, ROOT, free_port
from tools.waiting import wait_until

DESCRIPTORS, MOST = 64, 16
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


def serve(port: int) -> None:
    """Be the server, with few descriptors and little patience."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    web.PATIENCE_S, web.MOST_CONNECTIONS = 1.0, MOST
    access = Access(None, None, frozenset({"localhost"}))
    web.Server(StatusOptions(port=port), access, Stub()).run(signal.SIGTERM)


class Crowd:
    """The server in a process of its own."""

    def __init__(self, log: Path) -> None:
        self.log, self._port = log, free_port()
        code = f"from tests.status.test_crowd import serve; serve({self._port})"
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
    """Those beyond the limit are turned away, without a traceback, and then it answers as before."""
    with ExitStack() as held:
        for _ in range(2 * DESCRIPTORS):
            last = held.enter_context(crowd.connect())
        assert last.recv(1) == b""
    crowd.await_nobody()
    # Of those that have gone some may wait to be taken, and be too many still.
    wait_until(crowd.answers, PATIENCE_S, "the server")
    with crowd.connect("/healthz") as tcp:
        assert tcp.recv(12) == b"HTTP/1.1 503"
    assert "Traceback" not in crowd.log.read_text()


def test_who_reads_nothing_is_let_go(crowd: Crowd) -> None:
    """An answer that its client does not read keeps neither memory nor a descriptor."""
    with crowd.connect("/api/v1/discards") as tcp:
        assert tcp.recv(1)
        crowd.await_nobody()
