"""Where there is room: which brokers take more now, and which partitions may be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dispatch.brokers import State
from dispatch.partitions import NOT_HELD

if TYPE_CHECKING:
    from dispatch.pool import Pool  # it brings librdkafka along, and who reads bruce.toml needs none

BATCH_MESSAGES = 8192
BATCH_BYTES = 1 << 20
"""So much room is waited for before a batch is handed over, or half of the window where that is less."""

Mask = npt.NDArray[np.bool_]


class Room:
    """The windows of a pool, as the router asks about them. Masks are by broker index, or by flat number."""

    def __init__(self, pool: Pool, window_messages: int, window_bytes: int) -> None:
        self._pool = pool
        self._messages = window_messages - max(1, min(BATCH_MESSAGES, window_messages // 2))
        self._bytes = window_bytes - max(1, min(BATCH_BYTES, window_bytes // 2))

    def roomy(self) -> Mask:
        """By broker: open, with room for a batch. An empty window takes any message."""
        brokers = self._pool.brokers.rows
        if self._pool.closed:
            return np.zeros(len(brokers), np.bool_)
        free = (brokers["messages"] <= self._messages) & (brokers["bytes"] <= self._bytes)
        return (free | (brokers["messages"] == 0)) & (brokers["state"] < State.BACKING_OFF)

    def may_read(self, partitions: Mask) -> bool:
        """Whether the reading for these partitions may go on.

        Every broker of theirs that moves has room; where none of them moves, some broker has.
        """
        brokers, roomy = self._pool.brokers.rows, self.roomy()
        leaders = self._pool.partitions.rows["leader"][: len(partitions)][partitions]
        moving = np.zeros(len(brokers), np.bool_)
        moving[leaders[leaders >= 0]] = True
        moving &= brokers["state"] == State.HEALTHY
        return bool(roomy[moving].all() if moving.any() else roomy.any())

    def free(self) -> Mask:
        """By partition: not held back."""
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        return np.asarray(rows["held_from"] == NOT_HELD)

    def led(self) -> Mask:
        """By partition: it has a leader, which has room."""
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        led = rows["leader"] >= 0
        if led.any():
            led &= self.roomy()[rows["leader"]]
        return led

    def orphaned(self) -> bool:
        """Whether a partition is held whose leader is unknown or does not move; it may have another."""
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        leaders = rows["leader"][~self.free()]
        if (leaders < 0).any():
            return True
        return bool((self._pool.brokers.rows["state"][leaders] != State.HEALTHY).any())

    def available(self, ready: Mask | None) -> Mask:
        """By partition: where messages that may go anywhere may go.

        Not held, or ready to catch up; with room; on a healthy broker where the topic has such a partition.
        """
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        free = self.free()
        if ready is not None:
            free |= ready
        free &= self.led()
        if not free.any():
            return free
        healthy = free & (self._pool.brokers.rows["state"][rows["leader"]] == State.HEALTHY)
        has_healthy = np.bincount(rows["topic"], weights=healthy) > 0
        return healthy | (free & ~has_healthy[rows["topic"]])
