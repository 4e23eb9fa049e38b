"""Topics that Kafka does not know: their messages wait for a grace time, by themselves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from dispatch.cluster import Cluster
from dispatch.codes import Code
from spool.record import Topics

GRACE_S = 60.0
"""From the first answer of Kafka that the topic does not exist: time for it to be created."""
_LEGAL = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_DENIALS = (Code.UNKNOWN_TOPIC_OR_PART, Code.INVALID_TOPIC, Code.UNKNOWN_TOPIC_ID)
"""Errors that say: there is no such topic. Others (no leader yet, no right to see it) may pass."""


def legal(name: bytes) -> bool:
    """Whether Kafka could ever have a topic of this name."""
    return _LEGAL.fullmatch(name) is not None and name not in (b".", b"..")


class Learnt(NamedTuple):
    """A topic whose messages need not wait any longer."""

    topic: int
    first: int | None
    """The first of those that waited here; None: none did."""
    known: bool
    """It has partitions now; otherwise it was given up."""


class UnknownTopics:
    """Topics without partitions, by number, and the first of their messages that waits."""

    def __init__(self, *, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self.waiting: dict[int, int] = {}
        """Topic -> lowest sequence that waits."""
        self._denied: dict[int, tuple[float, int]] = {}
        """Topic -> when Kafka first said that there is no such topic; the same in ms since the epoch."""
        self.gone: set[int] = set()
        """Topics that were given up: their messages are discarded when they are come by."""

    def wait(self, topic: int, sequence: int) -> bool:
        """A message waits; True when it is the first of its topic."""
        first = topic not in self.waiting
        self.waiting[topic] = min(sequence, self.waiting.get(topic, sequence))
        return first

    def given_up(self, topic: int, name: bytes) -> bool:
        """Whether the grace time is over, or cannot help: its messages are discarded when read."""
        return topic in self.gone or not legal(name)

    def denied_ms(self, topic: int) -> int:
        """When Kafka first said that there is no such topic, or now, in ms since the epoch."""
        return self._denied[topic][1] if topic in self._denied else time.time_ns() // 1_000_000

    def learn(self, cluster: Cluster, topics: Topics) -> list[Learnt]:
        """Take note of what Kafka says; whose messages are due now."""
        due = []
        for name in cluster.topics:
            topic = topics.admit(name)
            if topic < 0:
                continue
            self.gone.discard(topic)
            self._denied.pop(topic, None)
            if topic in self.waiting:
                due.append(Learnt(topic, self.waiting.pop(topic), known=True))
        for name, code in cluster.errors.items():
            topic = topics.find(name)
            if topic < 0:
                # It was forgotten meanwhile.
                continue
            if code not in _DENIALS:
                self._denied.pop(topic, None)
                continue
            since, _ = self._denied.setdefault(topic, (self._clock(), time.time_ns() // 1_000_000))
            if topic not in self.gone and self._clock() - since >= self._grace_s:
                self.gone.add(topic)
                due.append(Learnt(topic, self.waiting.pop(topic, None), known=False))
        return due

    def denies(self, cluster: Cluster, topics: Topics) -> list[int]:
        """The topics that Kafka says it does not have, or does not have any more."""
        named = [topics.find(name) for name, code in cluster.errors.items() if code in _DENIALS]
        return [topic for topic in named if topic >= 0]

    def forget(self, topics: Topics) -> bool:
        """Free the numbers of strangers that were given up, of which nothing may be open; whether any was."""
        strangers = [topic for topic in self.gone if topics.is_strange(topic)]
        topics.forget(strangers)
        self.gone.difference_update(strangers)
        for topic in strangers:
            del self._denied[topic]
        return bool(strangers)

    def lowest(self) -> list[int]:
        """Sequences below which nothing waits for a topic."""
        return list(self.waiting.values())
