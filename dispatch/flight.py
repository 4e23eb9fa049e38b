"""What is in flight: one row a message, its number being what librdkafka gives back with the report.

Rows are taken from a stack of free numbers. librdkafka holds numbers, never addresses, so the rows may
move when the table grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spool.kernel import kernel

NOBODY = np.iinfo(np.int64).max
"""The lowest sequence in flight of a partition that has none."""
_FREE = -1
_FIRST_ROOM = 1 << 14

ROW = np.dtype(
    (
        np.record,
        [
            ("sequence", np.int64),
            ("flat_number", np.int32),  # of its partition; -1: the row is free
            ("bytes", np.int32),  # key and value
            ("received_ns", np.int64),  # since the epoch; 0: a record of our own
        ],
    )
)


class Flight:
    """The table of messages in flight."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, ROW)
        """ROW[capacity]"""
        self.free: npt.NDArray[np.int32] = np.empty(0, np.int32)
        """int32[capacity]: free row numbers, a stack."""
        self.free_count: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """int64[1]: how many of `free` count."""
        self._grow(_FIRST_ROOM)

    @property
    def count(self) -> int:
        """Messages in flight."""
        return len(self.rows) - int(self.free_count[0])

    def make_room(self, messages: int) -> None:
        """Grow until so many can be added."""
        if self.free_count[0] < messages:
            self._grow(max(messages, len(self.rows)))

    def lowest(self, partitions: int) -> npt.NDArray[np.int64]:
        """int64[partitions]: the lowest sequence in flight by flat number; NOBODY where there is none."""
        lowest = np.full(partitions, NOBODY, np.int64)
        find_lowest(self.rows, lowest)
        return lowest

    def clear(self) -> npt.NDArray[Any]:
        """Forget everything; returns the ROWs that were in flight, in log order."""
        out = self.rows[self.rows["flat_number"] != _FREE]
        capacity = len(self.rows)
        self.rows, self.free_count[0] = self.rows[:0], 0
        self._grow(capacity)
        return out[np.argsort(out["sequence"])]

    def _grow(self, more: int) -> None:
        first, before = int(self.free_count[0]), len(self.rows)
        added = np.full(more, np.array((0, _FREE, 0, 0), ROW))
        self.rows = np.concatenate([self.rows, added])
        # Low numbers on top: a table that is hardly used stays in the processor's cache.
        new = np.arange(before + more - 1, before - 1, -1, dtype=np.int32)
        self.free = np.concatenate([self.free[:first], new, np.empty(before - first, np.int32)])
        self.free_count[0] += more


@kernel
def find_lowest(flight: npt.NDArray[Any], lowest: npt.NDArray[np.int64]) -> None:
    """Lower `lowest` int64[partitions] to the lowest sequence in flight of each partition."""
    for row in flight:
        if row.flat_number >= 0 and row.sequence < lowest[row.flat_number]:
            lowest[row.flat_number] = row.sequence
