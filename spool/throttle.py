"""Few lines of log for each cause: the one throttle of all packages.

    if self._throttle.due(topic):
        log.warning("topic %s ...", topic)

A caller that must leave nothing uncounted adds up what was not due, and logs the sum with the next line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class Throttle:
    """Lets a number of lines of each cause through in a window, which begins with the first of them."""

    def __init__(
        self, seconds: float, *, lines: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`seconds`: the length of a window; `lines`: of one cause within it."""
        self._seconds, self._lines, self._clock = seconds, lines, clock
        self._windows: dict[Hashable, list[float]] = {}
        """By cause, the oldest first: when its window began, and the lines that were asked for since."""

    def due(self, cause: Hashable = None) -> bool:
        """Whether a line about this cause may be logged now; it counts as logged."""
        now = self._clock()
        window = self._windows.get(cause)
        if window is None or now - window[0] >= self._seconds:
            self._forget(now)
            window = self._windows[cause] = [now, 0]
        window[1] += 1
        return window[1] <= self._lines

    def has_room(self, cause: Hashable, most: int) -> bool:
        """Whether this cause is one of at most so many that have a window."""
        if cause not in self._windows and len(self._windows) >= most:
            now, (oldest, _) = self._clock(), next(iter(self._windows.values()))
            if now - oldest >= self._seconds:
                self._forget(now)
        return cause in self._windows or len(self._windows) < most

    def _forget(self, now: float) -> None:
        """Forget the windows that are over. Other threads may log meanwhile: the list is made at once."""
        windows = list(self._windows.items())
        self._windows = {cause: window for cause, window in windows if now - window[0] < self._seconds}
