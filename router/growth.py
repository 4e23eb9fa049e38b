"""Topics that get more partitions while messages wait: the same key stays where it was, up to a message.

A key's partition depends on how many there are. A message that was read before the topic grew may have
gone out already, or wait for its partition; counted anew on the way, it would be overtaken by its successors
in another partition. So every message keeps the count that held when the live reader came by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dispatch.cluster import Cluster
from dispatch.partitions import PartitionTable
from spool.record import Topics

log = logging.getLogger("bruce.router")

Counts = npt.NDArray[np.int32]


SHRINK_S = 30.0
"""So long all answers must agree that a topic has fewer: a broker may lag behind one that grew."""


class Growth:
    """What the partition counts were, below which sequence."""

    def __init__(self) -> None:
        self._fewer: dict[int, float] = {}
        """Topic -> since when it is said to have fewer partitions."""
        self._before: list[tuple[int, Counts]] = []
        """(sequence, int32[topics]): the counts that hold for messages below the sequence."""

    def shrink(self, cluster: Cluster, topics: Topics, partitions: PartitionTable, now: float) -> None:
        """Take over that topics have fewer partitions than before, since they were deleted and made anew."""
        for name, leaders in cluster.topics.items():
            topic = topics.add(name)
            if len(leaders) >= partitions.partitions_of[topic]:
                self._fewer.pop(topic, None)
            elif now - self._fewer.setdefault(topic, now) >= SHRINK_S:
                partitions.shrink(topic, len(leaders))

    def note(self, before: Counts, after: Counts, sequence: int, names: Sequence[bytes]) -> None:
        """Counts changed; from `sequence` on the new ones hold. A topic that is new has not grown.

        Of a topic with fewer they hold for all: where its messages would have gone is no more.
        """
        grown = np.flatnonzero((before > 0) & (after[: len(before)] > before))
        for topic in grown.tolist():
            log.warning(
                "topic %s has %d partitions instead of %d; that holds from message %d on",
                names[topic].decode(errors="replace"),
                after[topic],
                before[topic],
                sequence,
            )
        if len(grown):
            self._before.append((sequence, before.copy()))
        shrunk = np.flatnonzero((before > 0) & (after[: len(before)] < before))
        for topic in shrunk.tolist():
            log.warning(
                "topic %s was made anew with %d partitions instead of %d; all that waits goes by that",
                names[topic].decode(errors="replace"),
                after[topic],
                before[topic],
            )
        for _, counts in self._before:
            counts[shrunk[shrunk < len(counts)]] = 0

    def forget(self, floor: int) -> None:
        """Every message below `floor` is done with."""
        self._before = [(sequence, counts) for sequence, counts in self._before if sequence > floor]

    def parts(
        self, sequence: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_], counts: Counts
    ) -> Iterator[tuple[npt.NDArray[np.bool_], Counts]]:
        """(the wanted rows for which they hold, counts), over all wanted rows; `counts` are today's."""
        for below, before in reversed(self._before):
            if len(sequence) and sequence[0] >= below:
                break
            yield wanted & (sequence >= below), counts
            wanted = wanted & (sequence < below)
            counts = counts.copy()
            known = np.flatnonzero(before)
            counts[known] = before[known]
        yield wanted, counts
