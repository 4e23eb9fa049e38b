"""How long something may still take."""

from __future__ import annotations

import math
import time

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
"""Between two looks whether the daemon is back, or has read."""


class Deadline:
    """A moment on the monotonic clock, or never."""

    __slots__ = ("_end", "_pause_s")

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: from now on; infinity: never."""
        self._end = time.monotonic() + timeout_s
        self._pause_s = _FIRST_PAUSE_S

    def left_s(self) -> float | None:
        """As socket.settimeout takes it: None for ever, 0 does not wait."""
        return None if self._end == math.inf else max(0.0, self._end - time.monotonic())

    def pause(self) -> bool:
        """Wait a moment, longer each time; False, at once, when no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True
