"""What a run routes by: Kafka's newest metadata, and partition counts that hold from some message on.

A run goes on for months, and topics grow meanwhile. A batch is delivered before the next one begins, so a new
count may hold from the first message of a batch; but not for what was committed before the run began: a job
that died, or a daemon, may have sent that by the old one (`router.growth`). New counts are written down for
the marks before anything is sent by them. A topic that has fewer was made anew: once Kafka has said so for
SHRINK_S, that holds for all that waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from dispatch.client import KafkaClient
from dispatch.cluster import NO_LEADER, Cluster
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from pipeline.errors import JobFailed
from pipeline.lease import DeliveryLease
from pipeline.route import History, Routes
from pipeline.route_plan import PATIENCE_S, PAUSE_S, ask, read_histories, write_histories
from pipeline.waiting import Span
from router.growth import SHRINK_S

_log = logging.getLogger("bruce.pipeline")


class Routing:
    """For one run. It starts threads: close it."""

    def __init__(
        self, options: DispatchOptions, partitioners: Mapping[str, str], leases: Sequence[DeliveryLease]
    ) -> None:
        """Raises BadProperty, DispatchError."""
        self._partitioners, self._leases = dict(partitioners), leases
        self._histories = read_histories(lease.layout for lease in leases)
        self._client = KafkaClient(options)
        self._closing, self._asking = threading.Event(), threading.Lock()
        self._reached = False

    def close(self) -> None:
        """Let go; a batch that waits for an answer in Spark's thread ends with JobFailed."""
        self._closing.set()
        with self._asking:
            self._client.close()

    def look(self, topics: Sequence[str]) -> Cluster:
        """One answer of Kafka. Raises Unreachable when it does not come soon, JobFailed after the end."""
        with self._asking:
            if self._closing.is_set():
                raise JobFailed("the run was ended while a batch waited for Kafka")
            return ask(self._client, topics, 0)

    def await_cluster(self, topics: Sequence[str]) -> Cluster:
        """An answer that can be believed, however long it takes once Kafka was there.

        Raises Unreachable when it is not there at the beginning, JobFailed when the run is over.
        """
        began, fewer_since = time.monotonic(), float("inf")
        while True:
            try:
                cluster = self.look(topics)
            except Unreachable:
                if not self._reached and time.monotonic() - began >= PATIENCE_S:
                    raise
            else:
                self._reached = True
                fewer = self._fewer(cluster)
                fewer_since = min(fewer_since, time.monotonic()) if fewer else float("inf")
                if not fewer or time.monotonic() - fewer_since >= SHRINK_S:
                    self._shrink(cluster, fewer)
                    return cluster
            self._closing.wait(PAUSE_S)

    def routes(self, cluster: Cluster, spans: Iterable[Span], job: str) -> Routes:
        """The routes for these messages. Raises JobFailed, LeaseLost."""
        counts = {name.decode(): leaders for name, leaders in cluster.topics.items()}
        noted: dict[str, dict[bytes, History]] = {}
        ends = {lease.spool.hex(): lease.end for lease in self._leases}
        for span in spans:
            now, known = len(counts.get(span.topic, ())), self._histories[span.spool].get(span.topic, [])
            if now > (known[-1][1] if known else 0):
                grown = [*known, (max(span.first, ends[span.spool]), now)] if known else [(0, now)]
                self._histories[span.spool][span.topic] = grown
                noted.setdefault(span.spool, {})[span.topic.encode()] = grown
        for lease in self._leases:
            if histories := noted.get(lease.spool.hex()):
                write_histories(lease, histories, job)
        available = {topic: leaders != NO_LEADER for topic, leaders in counts.items()}
        return Routes(available, self._partitioners, self._histories)

    def _fewer(self, cluster: Cluster) -> list[str]:
        """Topics that are said to have fewer partitions than they had."""
        now = {name.decode(): len(leaders) for name, leaders in cluster.topics.items()}
        return [
            topic
            for topic, count in now.items()
            if any(h[topic][-1][1] > count for h in self._histories.values() if topic in h)
        ]

    def _shrink(self, cluster: Cluster, topics: Iterable[str]) -> None:
        for topic in topics:
            count = len(cluster.topics[topic.encode()])
            _log.warning(
                "topic %s was made anew with %d partitions; all that waits goes by that", topic, count
            )
            for histories in self._histories.values():
                if topic in histories:
                    histories[topic] = [(0, count)]
