"""A command of brucectl on a terminal of its own, and its screen as a picture."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

from tools.bruce_process import Bruce

COLUMNS = 108
_HOME = b"\x1b[H"
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)
_MODES = re.compile(rb"\x1b\[\?[0-9;]*[hl]")


class Terminal:
    """A terminal, and the command that runs on it. A context manager, at whose end the command has ended."""

    def __init__(self, bruce: Bruce, *arguments: str, rows: int = 60) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from cli.app import brucectl; brucectl()", *arguments],
            env={**bruce.environ, "TERM": "xterm-256color", "BRUCE_CONFIG": str(bruce.config)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._data = bytearray()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self._data += data
        except OSError:
            return  # no process holds the other end any more

    def read(self) -> str:
        """All output, when the command has ended."""
        self._process.wait()
        self._reader.join()
        return _text(bytes(self._data))

    def frame(self) -> str:
        """The last complete screen of those that begin at the upper left."""
        *_, whole, _ = bytes(self._data).split(_HOME)
        if self._process.poll() is not None:
            raise RuntimeError(f"brucectl has ended:\n{self.read()}")
        return _text(whole)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error:
            self._process.kill()
        code = self._process.wait()
        os.close(self._master)
        if not error and code not in (0, 1):
            raise RuntimeError(f"brucectl ended with {code}:\n{self.read()}")


def _text(data: bytes) -> str:
    return _MODES.sub(b"", data).decode().replace("\r", "").rstrip()


def write_svg(shown: str, title: str, path: Path) -> None:
    """The screen of a terminal, as a picture that needs nothing from elsewhere."""
    console = Console(file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True)
    console.print(Text.from_ansi(shown))
    path.write_text(_FONTS.sub("", console.export_svg(title=title, unique_id=path.stem)), encoding="utf-8")
