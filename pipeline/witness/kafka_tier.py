"""A cluster as a tier: its topics are read from the positions of the state on, each record once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pyroaring import BitMap64

from dispatch.errors import Unreachable
from dispatch.record_consumer import RecordConsumer
from pipeline.kafka.ends import uncommitted
from pipeline.witness.expected import SpoolSide
from pipeline.witness.tier import Position, TierState, begin_with

TIER = "kafka"
"""The name of the only tier: `brucectl witness run` and `spark witness` go on with one another's state."""
ANSWER_S, AGAIN_S = 15.0, 1.0
"""Kafka's time to answer, and when it has not answered before: meanwhile nothing is read of other tiers."""
SERVERS, PREFIX = "servers", "prefix"
"""Facts of a tier: where it is, and how it names topics."""
BEGUN_LATE = "begun_late"
"""A fact of a tier: Kafka had dropped records before the witness read it for the first time."""


class Place(NamedTuple):
    """A cluster, and how topics are named in it."""

    properties: Mapping[str, str]
    """librdkafka's, for the way to the brokers."""
    prefix: str = ""
    """Of the names of topics that a mirror has copied."""

    def tier(self, state: TierState) -> KafkaTier:
        """Its tier. Raises BadProperty."""
        return KafkaTier(state, self)


class KafkaTier:
    """Reads one cluster. `state` has what was seen."""

    def __init__(self, state: TierState, place: Place) -> None:
        """Raises BadProperty."""
        self.state, self._prefix = state, place.prefix
        state.facts.update({SERVERS: place.properties.get("bootstrap.servers", ""), PREFIX: place.prefix})
        self._consumer = RecordConsumer(place.properties, place.prefix.encode())
        self._asker = RecordConsumer(uncommitted(place.properties))
        self._assigned: AbstractSet[Position] = frozenset()
        self._is_away = False
        self._dropped: dict[Position, int] = {}
        """Offsets below which records were dropped, as far as they are counted."""
        self.ends: dict[Position, int] = {}
        """As of the look, behind the last record of each partition, readable or in an open transaction."""
        self.is_fresh = False
        """Whether the last look found the ends of all partitions."""
        self.error = ""

    @property
    def lag(self) -> int:
        """Offsets that are not read yet, as of the last look."""
        positions = self.state.positions
        return sum(max(0, end - positions.get(one, 0)) for one, end in self.ends.items())

    def look(self, topics: AbstractSet[str] | None) -> None:
        """Find new partitions of these topics, by default all, and the ends. Kafka being away is no error."""
        self.note_positions()
        self.is_fresh = False
        answer_s = AGAIN_S if self._is_away else ANSWER_S
        try:
            known = self._consumer.topics_known(answer_s)
            wanted = {
                (topic, partition)
                for topic, count in known.items()
                if topics is None or topic.removeprefix(self._prefix) in topics
                for partition in range(count)
            }
            self._assign(wanted, answer_s)
            self.ends = {one: high for one, (_, high) in self._asker.ends(answer_s, wanted).items()}
            self.is_fresh = self.ends.keys() >= wanted
            self.error, self._is_away = self._consumer.error, False
        except Unreachable as error:
            self.error, self._is_away = str(error), True

    def _assign(self, wanted: AbstractSet[Position], answer_s: float) -> None:
        """Assign the partitions; where Kafka has dropped what was not read, count it."""
        positions, is_back = self.state.positions, False
        found = self._consumer.ends(answer_s, wanted)
        for one, (low, high) in found.items():
            if one not in positions and low:
                self.state.facts[BEGUN_LATE] = 1
            position = positions.setdefault(one, low)
            read_to = max(position, self._dropped.get(one, 0))
            if position > high:
                # The topic was made again.
                positions[one], is_back = low, True
            elif low > read_to:
                self.state.skipped += low - read_to
                self._dropped[one] = low
        if is_back or found.keys() != self._assigned:
            self._assigned = found.keys()
            self._read_from({one: positions[one] for one in found})

    def _read_from(self, offsets: Mapping[Position, int]) -> None:
        """Read these partitions, and no others, from these offsets on."""
        self._consumer.assign(offsets)

    def read(self, timeout_s: float, meet: Callable[[], None]) -> int:
        """Take in a burst, or wait so long for one; how many records it had. Kafka being away is no error.

        `meet` is called before records of new spools, or of sequences far from the known ones, are taken in:
        the state should know of them by then.
        """
        try:
            found = self._consumer.consume(timeout_s)
        except Unreachable as error:
            self.error = str(error)
            return 0
        if len(found.sequence):
            if not self.state.knows(found.spool, found.sequence):
                meet()
            self.state.absorb(found.spool, found.sequence, found.content, found.sent_ms)
        return len(found.sequence)

    def note_positions(self) -> None:
        """Give the state the positions behind what it has taken in."""
        self.state.positions.update(self._consumer.positions)

    def is_behind(self, ends: Mapping[Position, int]) -> bool:
        """Whether any partition is not read up to these ends."""
        positions = self.state.positions
        return any(positions.get(one, 0) < end for one, end in ends.items())

    def begin(self, side: SpoolSide, *, is_new: bool) -> None:
        """Judge a spool from its beginning, or from now on if Kafka's is gone."""
        if is_new and self.state.facts.get(BEGUN_LATE):
            waiting = side.expected.open
            begin_with(self.state, side.spool, waiting.min() if len(waiting) else side.end)

    def due(self, spool: str, delivered: BitMap64) -> BitMap64:  # noqa: ARG002  (some tiers know more)
        """All that was delivered must have been seen when the topics are read to their ends."""
        return delivered

    def close(self) -> None:
        """End the consumers."""
        self._consumer.close()
        self._asker.close()
