"""`bruce hold-socket` in a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ingest.sockets.holding import folder_of
from tests.daemon import PATIENCE_S, ROOT
from tools.waiting import wait_until

HELD = "INFO: holding "
HOLD_SOCKET = "import sys; from cli.app import bruce; sys.argv.insert(1, 'hold-socket'); bruce()"


class Holder:
    """One holder. A context manager, which leaves no process behind."""

    def __init__(
        self, config: Path, datagram_socket: Path, log: Path, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Nothing is started yet."""
        self.folder, self.log = folder_of(datagram_socket), log
        self._config, self._environ = config, environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; it may have to wait for the sockets."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", HOLD_SOCKET, "--config", str(self._config)],
                cwd=ROOT,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def says(self, words: str) -> bool:
        """Whether it has said this. Fails when it has ended and never did."""
        assert self._process is not None
        ended, said = self._process.poll() is not None, self.log.read_text()
        assert words in said or not ended, said
        return words in said

    def await_said(self, words: str) -> None:
        """Return when it has said this."""
        wait_until(lambda: self.says(words), PATIENCE_S, f"the holder to say {words!r}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.await_end()

    def await_end(self) -> int:
        """The exit code, once it has ended."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        self.await_said(HELD)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
