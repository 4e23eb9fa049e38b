"""Topics that get more partitions while messages wait: the same key stays where it was, up to a message.

A key's partition depends on how many there are. A message that was read before the topic grew may have
gone out already, or wait for its partition; counted again on the way, it would be overtaken by its successors
in another partition. So every message keeps the count that held when the live reader read it. A restart
must count like that as well: so the counts are among the marks, before anything is sent by a new one. Of a
topic that grew meanwhile the new count holds for what is committed after the restart: what was committed
before may be in Kafka already, by the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dispatch.client import Cluster
from dispatch.tables import PartitionTable
from router.context import LogReader
from router.outcomes.outcome_table import OutcomeTable
from router.timing import SHRINK_S
from spool.format.batch import Topics
from spool.words import counted

log = logging.getLogger("bruce.router")

Counts = npt.NDArray[np.int32]
FOR_EVER = np.iinfo(np.int64).max
"""A sequence that no message has."""


_MOST_PARTITIONS = 1 << 16
"""Of a topic that is widened by what the marks say, at most: they may be a copy's."""


class PartitionHistory:
    """The partition counts that held before, by the sequence below which they did."""

    def __init__(self, acks: OutcomeTable, topics: Topics, committed: tuple[int, int]) -> None:
        """Begin with what is known from before a restart, when everything up to `committed` was there."""
        self._acks, self._topics, self._restarted_at = acks, topics, committed
        self._fewer: dict[int, float] = {}
        """Topic -> since when it is said to have fewer partitions."""
        self._shrunk: set[int] = set()
        """Topics of which that is believed."""
        self._before: list[tuple[int, Counts]] = []
        """(sequence, int32[topics]): the counts that hold for messages below the sequence, in order; 0 for
        topics of which it says nothing."""
        self._unseen = set(acks.partitions)
        """Topics that were known before the restart, and not heard of since."""
        self._grown: dict[int, int] = {}
        """Topics that grew over the restart: how many they have now."""
        for topic, history in acks.partitions.items():
            for earlier, later in pairwise(history):
                if later[0] > acks.low_watermark:
                    self._keep(later[0], topics.add(topic), earlier[1])

    def _keep(self, sequence: int, topic: int, count: int) -> None:
        """Below `sequence` the topic has `count` partitions."""
        before = np.zeros(topic + 1, np.int32)
        before[topic] = count
        self._before.append((sequence, before))
        self._before.sort(key=lambda entry: entry[0])

    def shrink(self, cluster: Cluster, partitions: PartitionTable, now: float) -> None:
        """Take over that topics have fewer partitions than before: they were deleted and created again."""
        for name, leaders in cluster.topics.items():
            topic = self._topics.find(name)
            if topic < 0:
                continue
            known = max(partitions.count_of(topic), self._known(name))
            if len(leaders) >= known:
                self._fewer.pop(topic, None)
                self._shrunk.discard(topic)
            elif now - self._fewer.setdefault(topic, now) >= SHRINK_S:
                partitions.shrink(topic, len(leaders))
                self._shrunk.add(topic)
            elif known <= _MOST_PARTITIONS:
                # Behind a restart, too: until it is believed, the others are only without a leader.
                partitions.widen(topic, known)

    def _known(self, name: bytes) -> int:
        """How many partitions the topic had last; 0 when it is not known."""
        history = self._acks.history_of(name)
        return history[-1][1] if history else 0

    def note(self, after: Counts, reader: LogReader) -> bool:
        """Take over counts, int32[topics], for messages from where the live reader is.

        True when a known one changed: then nothing may be sent before the marks are written.
        """
        changed = False
        for topic in np.flatnonzero(after).tolist():
            name, count = self._topics.names[topic], int(after[topic])
            known, unseen = self._known(name), name in self._unseen
            self._unseen.discard(name)
            if not known:
                self._acks.note_partitions(name, [(0, count)])
            elif count < known:
                changed |= self._lose(topic, count)
            elif topic in self._grown or (unseen and count > known):
                self._await(topic, count)
            elif count > known:
                self._keep(reader.sequence, topic, known)
                self._change(name, count, reader.sequence)
                changed = True
        return self.reach(reader) or changed

    def _await(self, topic: int, count: int) -> None:
        """The topic grew over the restart: until `reach` says so, the count from before holds for all."""
        if topic not in self._grown:
            self._keep(FOR_EVER, topic, self._known(self._topics.names[topic]))
        self._grown[topic] = count

    def _lose(self, topic: int, count: int) -> bool:
        """Once it is believed that a topic has fewer, that holds for all messages: the others are gone."""
        if topic not in self._shrunk:
            return False
        name = self._topics.names[topic]
        log.warning(
            "topic %s was created again with %s instead of %d; all that waits goes by that",
            name.decode(errors="replace"),
            counted(count, "partition"),
            self._known(name),
        )
        self._shrunk.discard(topic)
        self._grown.pop(topic, None)
        self._acks.note_partitions(name, [(0, count)])
        for _, counts in self._before:
            counts[topic : topic + 1] = 0
        return True

    def reach(self, reader: LogReader) -> bool:
        """Let the new counts of topics that grew over the restart hold from where the live reader is.

        Once that is behind what was committed then. True when there are such topics.
        """
        if not self._grown or reader.position < self._restarted_at:
            return False
        self._before = [(min(sequence, reader.sequence), counts) for sequence, counts in self._before]
        for topic, count in self._grown.items():
            self._change(self._topics.names[topic], count, reader.sequence)
        self._grown.clear()
        return True

    def _change(self, name: bytes, after: int, sequence: int) -> None:
        """From `sequence` on the topic has so many."""
        history = self._acks.history_of(name)
        # Those that hold for no message from the low watermark on are let go.
        passed = sum(start <= self._acks.low_watermark for start, _ in history[1:])
        self._acks.note_partitions(name, [*history[passed:], (sequence, after)])
        log.warning(
            "topic %s has %s instead of %d; that holds from message %d on",
            name.decode(errors="replace"),
            counted(after, "partition"),
            history[-1][1],
            sequence,
        )

    def forget(self, low_watermark: int) -> None:
        """Every message below `low_watermark` is resolved."""
        self._before = [(sequence, counts) for sequence, counts in self._before if sequence > low_watermark]

    @property
    def is_empty(self) -> bool:
        """Whether today's counts hold for every message that is not resolved."""
        return not self._before

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
            known = np.flatnonzero(before[: len(counts)])
            # A topic that has fewer now has no others to choose from.
            counts[known] = np.minimum(before[known], counts[known])
        yield wanted, counts
