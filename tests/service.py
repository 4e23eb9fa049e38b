"""A service manager for `bruce run`: it has the socket, hears its state, and restarts it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.daemon import RunningBruce

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
own = str(os.getpid())
os.environ.update(LISTEN_PID=own, LISTEN_FDS="1", WATCHDOG_PID=own)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""As systemd does between fork and exec: the first descriptor is 3, and the variables name the process."""


class Service(RunningBruce):
    """A bruce with a service manager, which outlives it."""

    def __init__(
        self,
        directory: Path,
        servers: str,
        *,
        watchdog_s: float = 0.0,
        settings: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """Open the sockets; nothing is started. `watchdog_s`: 0 for none."""
        self._sockets = Path(tempfile.mkdtemp(prefix="bruce-service-", dir="/dev/shm"))
        self._held = bound(self._sockets / "bruce.sock")
        self._notified = bound(self._sockets / "notify")
        self._notified.setblocking(False)
        super().__init__(
            directory,
            servers,
            settings=settings,
            prefix=[sys.executable, "-c", ACTIVATE, str(self._held.fileno())],
            passed=[self._held.fileno()],
        )
        self.socket = self._sockets / "bruce.sock"
        self.configure({"ingest": {"datagram_socket": str(self.socket)}})
        self.environ["NOTIFY_SOCKET"] = str(self._sockets / "notify")
        if watchdog_s:
            self.environ["WATCHDOG_USEC"] = str(int(1e6 * watchdog_s))
        self.told: list[str] = []
        """Its messages so far, in order."""

    def listen(self) -> list[str]:
        """Everything it has said, as of now."""
        while True:
            try:
                self.told += self._notified.recv(8192).decode().split("\n")
            except BlockingIOError:
                return self.told

    def await_told(self, beginning: str, times: int = 1) -> None:
        """Until it has said something that begins so, that often."""
        self.await_true(lambda: sum(line.startswith(beginning) for line in self.listen()) >= times)

    def forget(self) -> None:
        """Earlier messages do not count."""
        self.listen().clear()

    def close(self) -> None:
        """End what still runs, and close the sockets."""
        super().close()
        for held in (self._held, self._notified):
            held.close()
        for path in self._sockets.iterdir():
            path.unlink()
        self._sockets.rmdir()


def bound(path: Path) -> socket.socket:
    """A datagram socket at a path, open to every user."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    made.bind(str(path))
    os.chmod(path, 0o666)
    return made
