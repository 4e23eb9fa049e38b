"""Topic partitions by flat number: who leads them, what is in flight, from where they are held back.

A partition gets the next free number when it is first heard of and keeps it: rows in flight refer to
it. `flats[topic, partition]` leads there from a topic's number in `spool.record.Topics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.kernel import kernel

NONE = -1
NOT_HELD = -1


ROW = np.dtype(
    (
        np.record,
        [
            ("handle", np.int64),  # rd_kafka_topic_t
            ("held_from", np.int64),  # the first sequence that waits, so that no later one goes; or NOT_HELD
            ("messages", np.int64),  # in flight
            ("bytes", np.int64),  # in flight: keys and values
            ("topic", np.int32),  # number in spool.record.Topics
            ("partition", np.int32),
            ("leader", np.int32),  # broker index; NONE: nothing can be sent
            (
                "charged",
                np.int32,
            ),  # broker whose window carries what is in flight: the leader, or the last one
        ],
    )
)
"""One row, so that a message touches one cache line; kernels read it without counting references."""
_EMPTY = (0, NOT_HELD, 0, 0, 0, 0, NONE, NONE)


class PartitionTable:
    """All partitions heard of. Only grows."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, ROW)
        """ROW[capacity], by flat number; the first `count` are in use. Replaced when it grows."""
        self.count = 0
        self.flats: npt.NDArray[np.int32] = np.full((0, 0), NONE, np.int32)
        """int32[topic number, partition id]: the flat number; NONE where there is no such partition."""
        self.partitions_of: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """int32[topic number]: how many partitions are known."""

    def extend(self, topic: int, partitions: int, handle: int) -> npt.NDArray[np.int32]:
        """Make a topic known, or grow it. Returns the flat numbers of all that it ever had, in order."""
        self._make_room(topic, partitions)
        known = int(np.count_nonzero(self.flats[topic] != NONE))
        if partitions > known:
            first, self.count = self.count, self.count + partitions - known
            self.flats[topic, known:partitions] = np.arange(first, self.count)
            self.rows["topic"][first : self.count] = topic
            self.rows["partition"][first : self.count] = np.arange(known, partitions)
        self.partitions_of[topic] = max(partitions, self.partitions_of[topic])
        flats = self.flats[topic, : max(known, partitions)]
        self.rows["handle"][flats] = handle
        return flats

    def shrink(self, topic: int, partitions: int) -> None:
        """A topic has fewer (deleted, made anew). The rows of the others stay: messages refer to them."""
        self.partitions_of[topic] = partitions

    def exist(self, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these partitions their topic still has."""
        rows = self.rows[flats]
        return np.asarray(rows["partition"] < self.partitions_of[rows["topic"]])

    def hold(self, flats: npt.NDArray[np.int32], sequences: npt.NDArray[np.int64]) -> None:
        """Hold partitions back from these sequences on, or from earlier ones if they are held already."""
        held = self.rows["held_from"]
        for flat, sequence in zip(flats.tolist(), sequences.tolist(), strict=True):
            if held[flat] == NOT_HELD or sequence < held[flat]:
                held[flat] = sequence

    def release(self, flats: npt.NDArray[np.int32] | Sequence[int] | int) -> None:
        """Let the live path send to partitions again."""
        self.rows["held_from"][flats] = NOT_HELD

    def held(self) -> npt.NDArray[np.int32]:
        """Flat numbers of the partitions that are held back."""
        return np.flatnonzero(self.rows["held_from"][: self.count] != NOT_HELD).astype(np.int32)

    def _make_room(self, topic: int, partitions: int) -> None:
        rows, columns = self.flats.shape
        if topic >= rows or partitions > columns:
            grown = np.full((max(rows, 2 * topic, 16), max(columns, partitions)), NONE, np.int32)
            grown[:rows, :columns] = self.flats
            self.flats = grown
            self.partitions_of = np.pad(self.partitions_of, (0, len(grown) - rows))
        if self.count + partitions > len(self.rows):
            room = 2 * (self.count + partitions) - len(self.rows)
            self.rows = np.concatenate([self.rows, np.full(room, np.array(_EMPTY, ROW))])


@kernel
def order_by_partition(
    flat: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], order: npt.NDArray[np.int32]
) -> int:
    """Sort rows by partition, keeping log order within each; returns how many have one.

    `flat` int32[n]: flat number by row, negative for rows to leave out. `starts` int64[partitions + 1]:
    scratch. `order` int32[n]: the row numbers.
    """
    starts[:] = 0
    for row in range(len(flat)):
        if flat[row] >= 0:
            starts[flat[row] + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    total = starts[-1]
    for row in range(len(flat)):
        number = flat[row]
        if number >= 0:
            order[starts[number]] = row
            starts[number] += 1
    return int(total)
