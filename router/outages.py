"""Brokers that come back after a while: when the backlog begins to go out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dispatch.brokers import State

OUTAGE_S = 5.0
"""A broker that was away for less was not away."""


class Outages:
    """Since when which broker takes nothing. At the start all of them were away."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._begun = False

    def last(self) -> bool:
        """Whether one has been away for so long, and still was at the last look; or all, since the start."""
        since = min(self._since.values(), default=np.inf)
        return not self._begun or self._clock() - since >= OUTAGE_S

    def ended(self, brokers: npt.NDArray[Any]) -> bool:
        """Whether one of `brokers` (dispatch.brokers.ROW[count]) has come back since the last look."""
        now = self._clock()
        healthy = brokers["state"] == State.HEALTHY
        for broker in brokers["id"][~healthy].tolist():
            self._since.setdefault(broker, now)
        back = [broker for broker in brokers["id"][healthy].tolist() if broker in self._since]
        away = [now - self._since.pop(broker) for broker in back]
        first = bool(healthy.any()) and not self._begun
        self._begun |= first
        return first or max(away, default=0.0) >= OUTAGE_S
