"""Waiting, with a deadline always."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType


class TookTooLong(Exception):
    """The condition that a caller waited for did not come true in time."""


def wait_until(
    condition: Callable[[], object], timeout_s: float, what: str, *, pause_s: float = 0.02
) -> None:
    """Ask until it is so. Raises TookTooLong, whose text says `what` was waited for."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TookTooLong(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(pause_s)


def end_by_sigterm() -> None:
    """Let SIGTERM (of `timeout`, say) unwind the program, so that it ends what it started."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
