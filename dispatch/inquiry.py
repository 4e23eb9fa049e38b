"""Asking Kafka about topics that it may not have, through a producer that is thrown away.

librdkafka never forgets a topic that it was asked for, 27 KB each, be its handle destroyed or not, and asks
for all of them again with each question. So names that anybody may have made up are asked for here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from dispatch.client import KafkaClient
from dispatch.cluster import Cluster
from dispatch.options import DispatchOptions

MOST_ASKED = 1000
"""Names that one producer is asked for: 30 MB."""


class Inquiry:
    """For one thread, which waits for the answers."""

    def __init__(self, options: DispatchOptions) -> None:
        # It sends nothing, and so wants no producer id.
        kafka = {**options.kafka, "enable.idempotence": "false"}
        self._options = dataclasses.replace(options, mode="at_least_once", kafka=kafka)
        self._client: KafkaClient | None = None
        self._asked: set[bytes] = set()

    def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
        """What Kafka says of these, MOST_ASKED at most. Raises DispatchError."""
        if len(self._asked.union(names)) > MOST_ASKED:
            self.close()
        if self._client is None:
            self._client = KafkaClient(self._options)
        self._asked.update(names)
        self._client.name_topics(names)
        found = self._client.fetch_cluster((), timeout_s)
        self._client.drop_events()
        wanted = set(names)
        return Cluster(
            found.brokers,
            {name: leaders for name, leaders in found.topics.items() if name in wanted},
            {name: code for name, code in found.errors.items() if name in wanted},
        )

    def close(self) -> None:
        """Let go of the producer; the next question makes another."""
        if self._client:
            self._client.close()
        self._client = None
        self._asked.clear()
