"""Messages of topics that Kafka does not have: in which spools they are, and whether anybody still hopes.

All that a run has come by of such a topic waits, so that a span of sequence numbers says which they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dispatch.cluster import NO_LEADER, Cluster
from pipeline.backlog import Runs
from router.unknown import UnknownTopics
from spool.record import Topics


@dataclass(frozen=True, slots=True)
class Span:
    """Messages of one topic in one spool."""

    spool: str
    topic: str
    messages: int
    first: int
    end: int
    """Behind the last one's sequence number."""


class Waiting:
    """What waits, by topic, and since when Kafka says that there is no such topic."""

    def __init__(self, grace_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = Topics()
        self._unknown = UnknownTopics(grace_s=grace_s, clock=clock)
        self._spans: dict[str, list[Span]] = {}

    @property
    def topics(self) -> list[str]:
        """The topics that messages wait for."""
        return list(self._spans)

    @property
    def hopeful(self) -> list[str]:
        """Those that may come yet."""
        return [topic for topic in self._spans if not self.given_up(topic)]

    def add(self, span: Span) -> None:
        """These wait, too."""
        self._names.add(span.topic.encode())
        self._spans.setdefault(span.topic, []).append(span)

    def learn(self, cluster: Cluster) -> None:
        """Take note of what Kafka says."""
        self._unknown.learn(cluster, self._names)

    def given_up(self, topic: str) -> bool:
        """Whether the time to make the topic is over, or Kafka can never have one of this name."""
        name = topic.encode()
        return self._unknown.given_up(self._names.add(name), name)

    def spans(self, topic: str) -> list[Span]:
        """What waits for a topic, in the order in which it came."""
        return self._spans[topic]

    def runs(self, topic: str) -> dict[str, Runs]:
        """By spool, where they are."""
        spools = {span.spool for span in self._spans[topic]}
        pairs = {name: [(s.first, s.end) for s in self._spans[topic] if s.spool == name] for name in spools}
        return {name: Runs.of(found, max(end for _, end in found)) for name, found in pairs.items()}

    def drop(self, topic: str) -> None:
        """Nothing waits for it any more."""
        del self._spans[topic]


def usable(cluster: Cluster, topic: str) -> bool:
    """Whether every message of a topic has a partition to go to."""
    leaders = cluster.topics.get(topic.encode())
    return leaders is not None and bool((leaders != NO_LEADER).any())
