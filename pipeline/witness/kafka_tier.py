"""A cluster as a tier: its topics are read from the positions of the state on, each record once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pyroaring import BitMap64

from dispatch.cluster_identity import identity_of
from dispatch.errors import Unreachable
from dispatch.record_consumer import RecordConsumer
from pipeline.errors import JobFailed
from pipeline.kafka.ends import uncommitted
from pipeline.witness.expected import SpoolSide
from pipeline.witness.tier import Position, TierState, begin_with, is_begun

log = logging.getLogger("bruce.witness")

TIER = "kafka"
"""The name of the only tier: `brucectl witness run` and `spark witness` go on with one another's state."""
ANSWER_S, AGAIN_S = 15.0, 1.0
"""Kafka's time to answer, and when it has not answered before: meanwhile nothing is read of other tiers."""
SERVERS, PREFIX = "servers", "prefix"
"""Facts of a tier: where it is, and how it names topics."""
CLUSTER, TOPIC = "cluster", "topic:"
"""Facts of a tier: the cluster's id, and before a topic's name, the id of the topic."""
BEGUN_LATE = "begun_late"
"""A fact of a tier: Kafka had dropped records before the witness read it for the first time."""
DROPPED = "dropped:"
"""Facts of a tier, before a topic's name and a partition: below which offset what was dropped is counted."""


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
        self.state, self._prefix, self._properties = state, place.prefix, place.properties
        state.facts.update({SERVERS: place.properties.get("bootstrap.servers", ""), PREFIX: place.prefix})
        self._consumer = RecordConsumer(place.properties, place.prefix.encode())
        self._asker = RecordConsumer(uncommitted(place.properties))
        self._assigned: AbstractSet[Position] = frozenset()
        self._is_away = False
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
        """Find new partitions of these topics, by default all, and the ends. Kafka being away is no error.

        Raises JobFailed when it is another cluster than before.
        """
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
        positions, found = self.state.positions, self._consumer.ends(answer_s, wanted)
        is_shorter = any(positions.get(one, 0) > high for one, (_, high) in found.items())
        if not is_shorter and found.keys() == self._assigned:
            self._count_dropped(found)
            return
        # It has just answered, if not at once: a new connection takes longer.
        self._identify({topic for topic, _ in found}, ANSWER_S)
        for one, (low, high) in found.items():
            if one not in positions:
                positions[one] = low
                if low:
                    self.state.facts[BEGUN_LATE] = 1
            elif positions[one] > high:
                # The same topic ends earlier when a broker that had less became its leader.
                positions[one] = high if TOPIC + one[0] in self.state.facts else low
        self._count_dropped(found)
        self._read_from({one: positions[one] for one in found})
        self._assigned = found.keys()

    def _count_dropped(self, found: Mapping[Position, tuple[int, int]]) -> None:
        """Count the offsets below the first one of a partition that were never read."""
        facts = self.state.facts
        for one, (low, _) in found.items():
            if low <= self.state.positions[one]:
                continue
            read_to = max(self.state.positions[one], int(facts.get(_dropped(one), 0)))
            if low > read_to:
                self.state.skipped += low - read_to
                facts[_dropped(one)] = low

    def _identify(self, topics: AbstractSet[str], answer_s: float) -> None:
        """Note the ids of the cluster and of these topics; forget how far others of the same name were read.

        Raises JobFailed, Unreachable.
        """
        facts, found = self.state.facts, identity_of(self._properties, topics, answer_s)
        if found.cluster and facts.setdefault(CLUSTER, found.cluster) != found.cluster:
            raise JobFailed(
                f"tier {self.state.name}: {facts[SERVERS]} is another cluster ({found.cluster}) than the one "
                f"that was read before ({facts[CLUSTER]}): give it a tier of another name"
            )
        for topic, one in found.topics.items():
            if facts.setdefault(TOPIC + topic, one) != one:
                log.warning(
                    "%s: topic %s was made again: it is read from its beginning", self.state.name, topic
                )
                facts[TOPIC + topic] = one
                for at in [at for at in self.state.positions if at[0] == topic]:
                    del self.state.positions[at]
                    facts.pop(_dropped(at), None)

    def _read_from(self, offsets: Mapping[Position, int]) -> None:
        """Read these partitions, and no others, from these offsets on."""
        self._consumer.assign(offsets)

    def read(self, timeout_s: float) -> int:
        """Take in a burst, or wait so long for one; how many messages it had. An absent Kafka is no error."""
        try:
            found = self._consumer.consume(timeout_s)
        except Unreachable as error:
            self.error = str(error)
            return 0
        if len(found.sequence):
            self.state.absorb(found.spool, found.sequence, found.content, found.sent_ms)
        return self._consumer.taken

    def note_positions(self) -> None:
        """Give the state the positions behind what it has taken in."""
        self.state.positions.update(self._consumer.positions)

    def is_behind(self, ends: Mapping[Position, int]) -> bool:
        """Whether any partition is not read up to these ends, or to its present one if that is earlier.

        A partition that is gone, or that is not read any more, is not waited for.
        """
        positions = self.state.positions
        return not self.is_fresh or any(
            positions.get(one, 0) < min(end, self.ends.get(one, 0)) for one, end in ends.items()
        )

    def begin(self, side: SpoolSide) -> None:
        """Judge a spool from its beginning, or if Kafka's is gone, from behind what is delivered by now."""
        if not self.is_fresh or is_begun(self.state, side.spool):
            return
        first = 0
        if self.state.facts.get(BEGUN_LATE) and (delivered := side.expected.delivered()):
            first = delivered.max() + 1
        begin_with(self.state, side.spool, first)

    def due(self, spool: str, delivered: BitMap64) -> BitMap64:  # noqa: ARG002  (some tiers know more)
        """All that was delivered must have been seen when the topics are read to their ends."""
        return delivered

    def close(self) -> None:
        """End the consumers."""
        self._consumer.close()
        self._asker.close()


def _dropped(one: Position) -> str:
    """The name of a fact."""
    return f"{DROPPED}{one[0]}:{one[1]}"
