"""How long brokers take, from librdkafka's statistics: round trip, queue and throttle time of each.

librdkafka tells of windows, from one emission to the next (`statistics.interval.ms`). Sums and counts are
added up here, so that a scraper has them however seldom it looks; quantiles are those of the newest window.

    row := round trip, queue, throttle, each: count, sum, median, 99th percentile           all int64, in µs

Round trip is that of requests (`rtt`). Queue is how long messages waited in the producer before they went
into a request, lingering included (`int_latency`). Throttle is how long brokers asked to be left alone
(`throttle`). A quantile is -1 where the window had nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ROW_WORDS = 12
_KINDS = (("rtt", 1), ("int_latency", 1), ("throttle", 1000))
"""By name in the statistics: µs of one of its units."""
_NONE = np.array([0, 0, -1, -1] * len(_KINDS), np.int64)


class Timings:
    """Of each broker, since the start."""

    def __init__(self) -> None:
        self._rows: dict[int, npt.NDArray[np.int64]] = {}

    def note(self, statistics: Mapping[str, Any]) -> None:
        """Add the windows of one emission."""
        for broker in statistics.get("brokers", {}).values():
            if broker["nodeid"] >= 0:
                row = self._rows.setdefault(broker["nodeid"], _NONE.copy())
                for at, (name, scale) in enumerate(_KINDS):
                    _add(row[4 * at :][:4], broker.get(name, {}), scale)

    def table(self, brokers: Sequence[int]) -> npt.NDArray[np.int64]:
        """int64[brokers, ROW_WORDS] by id, in this order; nothing but zeros and -1 of those not heard of."""
        rows = [self._rows.get(broker, _NONE) for broker in brokers]
        return np.array(rows, np.int64).reshape(-1, ROW_WORDS)


def _add(row: npt.NDArray[np.int64], window: Mapping[str, int], scale: int) -> None:
    count = window.get("cnt", 0)
    row[0] += count
    row[1] += scale * window.get("sum", 0)
    row[2:] = [scale * window[name] for name in ("p50", "p99")] if count else -1
