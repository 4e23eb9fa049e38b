"""Topics that Kafka does not know: their messages wait for a grace time, by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dispatch.cluster import Cluster
from spool.record import Topics

GRACE_S = 60.0
"""From the first answer of Kafka that the topic does not exist: time for it to be created."""


class UnknownTopics:
    """Topics without partitions, by number, and the first of their messages that waits."""

    def __init__(self, *, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self.waiting: dict[int, int] = {}
        """Topic -> lowest sequence that waits."""
        self._denied: dict[int, float] = {}
        """Topic -> when Kafka first said that there is no such topic."""
        self._known: dict[int, int] = {}
        """Topics that have become known, or were given up, and from where their messages are due."""
        self._given_up: set[int] = set()

    def wait(self, topic: int, sequence: int) -> bool:
        """A message waits; True when it is the first of its topic."""
        first = topic not in self.waiting
        self.waiting[topic] = min(sequence, self.waiting.get(topic, sequence))
        return first

    def given_up(self, topic: int) -> bool:
        """Whether the grace time is over. What waited is then due to be read again, and discarded."""
        return topic in self._given_up

    def learn(self, cluster: Cluster, topics: Topics) -> None:
        """Take note of what Kafka says."""
        for name in cluster.topics:
            topic = topics.add(name)
            self._given_up.discard(topic)
            self._denied.pop(topic, None)
            if topic in self.waiting:
                self._known[topic] = self.waiting.pop(topic)
        for name in cluster.errors:
            topic = topics.add(name)
            since = self._denied.setdefault(topic, self._clock())
            if topic in self.waiting and self._clock() - since >= self._grace_s:
                self._given_up.add(topic)
                self._known[topic] = self.waiting.pop(topic)

    def starts(self) -> Iterator[int]:
        """Sequences from which messages are due now that their topic's fate is known."""
        yield from self._known.values()

    def begin(self) -> None:
        """They are being read again."""
        self._known.clear()

    def lowest(self) -> list[int]:
        """Sequences below which nothing waits for a topic."""
        return [*self.waiting.values(), *self._known.values()]
