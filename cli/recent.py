"""How long messages took of late: quantiles of what a histogram grew by."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from spool.histogram import Histogram
from status.figures import Latency

WINDOW_S = 60.0


class Recent:
    """The last minute of a histogram that only grows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks = deque[tuple[float, tuple[int, ...]]]()

    def note(self, histogram: Histogram) -> Latency:
        """Take in another look; the quantiles of what came in since the first look of the window."""
        now, looks = self._clock(), self._looks
        if looks and any(new < old for new, old in zip(histogram.counts, looks[-1][1], strict=True)):
            # A page that was made anew counts anew.
            looks.clear()
        looks.append((now, histogram.counts))
        # One look from before the window's beginning stays: it is what the window begins with.
        while len(looks) > 1 and now - looks[1][0] >= WINDOW_S:
            looks.popleft()
        counts = [new - old for new, old in zip(histogram.counts, looks[0][1], strict=True)]
        return Latency(quantile(histogram.bounds, counts, 0.5), quantile(histogram.bounds, counts, 0.99))


def quantile(bounds: tuple[float, ...], counts: list[int], share: float) -> float | None:
    """As Prometheus' histogram_quantile has it: linear within a bucket, the last bound for what is beyond it.

    None without values.
    """
    rank = share * sum(counts)
    if rank == 0:
        return None
    below = 0
    for at, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = bounds[at - 1] if at else 0.0
            return low + (bounds[at] - low) * (rank - below) / count
        below += count
    return bounds[-1]
