"""Single keys from a terminal, as they are pressed. However it ends, the terminal is as it was before."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from types import FrameType, TracebackType
from typing import NoReturn, Self

_AT_ONCE = 64
_CC = 6
"""Where tcgetattr has the control characters."""


class Keys:
    """Keys of the terminal behind a descriptor; a context manager."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, timeout_s: float) -> str:
        """What was pressed, waiting for it for so long. Raises EOFError when the terminal is gone."""
        if not select.select([self._fd], [], [], max(0.0, timeout_s))[0]:
            return ""
        pressed = os.read(self._fd, _AT_ONCE)
        if not pressed:
            raise EOFError
        return pressed.decode(errors="ignore")

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        # What a service manager, or a terminal that is closed, sends would leave the terminal as it is now.
        self._handlers = [(s, signal.signal(s, _leave)) for s in (signal.SIGTERM, signal.SIGHUP)]
        tty.setcbreak(self._fd)
        modes = termios.tcgetattr(self._fd)
        modes[_CC][termios.VSUSP] = b"\0"  # so would Ctrl-Z
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        for number, handler in self._handlers:
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
