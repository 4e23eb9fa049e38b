"""Brokers by index: their windows, and how they are.

A broker gets the next index when it is first heard of and keeps it, whatever becomes of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

STALL_NS = 200_000_000
"""A broker with messages in flight that reports none for so long is stalled."""


class State(IntEnum):
    """How a broker is."""

    HEALTHY = 0
    """Reports come, or nothing is in flight."""
    STALLED = 1
    """Messages are in flight and no report came for STALL_NS, or its connection is down."""
    BACKING_OFF = 2
    """It failed; nothing is sent until the time is over."""


BACKING_OFF = int(State.BACKING_OFF)
"""For compiled loops."""


ROW = np.dtype(
    (
        np.record,
        [
            ("id", np.int32),  # Kafka's number for the broker
            ("state", np.int32),  # State
            ("messages", np.int64),  # in flight
            ("bytes", np.int64),  # in flight: keys and values
            ("acked", np.int64),  # messages acknowledged since the start
            ("failed", np.int64),  # messages reported with an error since the start
            ("progress_ns", np.int64),  # monotonic time of the last report, or of the first message in flight
            ("until_ns", np.int64),  # monotonic time at which BACKING_OFF ends
        ],
    )
)


class BrokerTable:
    """All brokers heard of. Only grows."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, ROW)
        """ROW[count], by index. Replaced when it grows."""
        self.indexes: dict[int, int] = {}
        """Broker id -> index."""

    def index(self, broker: int) -> int:
        """The index of a broker id, which is added when it is new."""
        if broker not in self.indexes:
            self.rows = np.append(self.rows, np.zeros(1, ROW))
            self.rows["id"][-1] = broker
            self.indexes[broker] = len(self.indexes)
        return self.indexes[broker]

    def back_off(self, broker: int, until_ns: int) -> None:
        """Send nothing to a broker id until then (monotonic)."""
        row = self.rows[self.indexes[broker]]
        row.state, row.until_ns = State.BACKING_OFF, until_ns

    def observe(self, now_ns: int, down: set[int]) -> None:
        """Bring the states that follow from facts up to date. `down`: ids without a connection."""
        rows = self.rows
        state = rows["state"]
        state[(state == State.BACKING_OFF) & (rows["until_ns"] <= now_ns)] = State.HEALTHY
        quiet = (rows["messages"] > 0) & (now_ns - rows["progress_ns"] > STALL_NS)
        stalled = quiet | np.isin(rows["id"], list(down))
        running = state != State.BACKING_OFF
        state[running] = np.where(stalled[running], State.STALLED, State.HEALTHY)
