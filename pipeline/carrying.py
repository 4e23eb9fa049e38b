"""The batches of a run, one after the other, and in between what waited for its topic."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dispatch.cluster import Cluster
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from pipeline.backlog import undelivered
from pipeline.batches import NOWHERE
from pipeline.drain import delivery_from, open_runs
from pipeline.failure import explained
from pipeline.lease import DeliveryLease
from pipeline.route import Routes
from pipeline.routing import Routing
from pipeline.sending import Sent, count_outcomes, read_stored, send, tell
from pipeline.sink import Delivery, arrange, deliver
from pipeline.waiting import Span, Waiting, usable


class Batches:
    """Delivers them, and tells what came of each."""

    def __init__(
        self,
        session: SparkSession,
        leases: Sequence[DeliveryLease],
        options: DispatchOptions,
        routing: Routing,
        told: Callable[[Sent], None],
    ) -> None:
        """Raises Unreachable, JobFailed."""
        self._session, self._leases, self._options = session, leases, options
        self._routing, self._told = routing, told
        self._backlog = {lease.spool.hex(): open_runs(lease, options).and_from(lease.end) for lease in leases}
        self._waiting = Waiting(options.unknown_topic_seconds)
        self._turn = threading.Lock()
        """Spark carries batches in a thread of its own."""
        self._jobs = itertools.count()

    @property
    def hopeful(self) -> bool:
        """Whether messages wait for topics that may come yet."""
        return bool(self._waiting.hopeful)

    def carry(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002
        """Deliver a batch, and write down what was. Raises JobFailed, LeaseLost, Unreachable."""
        # It is asked twice, for its topics and for its messages.
        wanted = undelivered(batch, self._backlog).persist()
        try:
            with self._turn:
                if spans := find_spans(wanted):
                    self._carry(wanted, spans)
        finally:
            wanted.unpersist()

    def come_by(self) -> None:
        """Deliver or discard what has waited long enough. Raises JobFailed, LeaseLost."""
        if not self._waiting.topics or not self._turn.acquire(blocking=False):
            return
        try:
            with suppress(Unreachable):
                self._look_again(self._routing.look(self._waiting.topics))
        finally:
            self._turn.release()

    def _carry(self, wanted: DataFrame, spans: Sequence[Span]) -> None:
        started = time.monotonic()
        cluster = self._routing.await_cluster(sorted({*_topics(spans), *self._waiting.topics}))
        # First: nothing of a topic goes before what is older.
        self._look_again(cluster)
        there = [span for span in spans if usable(cluster, span.topic)]
        for span in spans:
            if span not in there:
                self._waiting.add(span)
        placed = wanted.where(f.col("topic").isin(sorted(_topics(there))))
        self._send(placed, cluster, there, spans, started)
        self._look_again(cluster)

    def _look_again(self, cluster: Cluster) -> None:
        """Deliver what waits for topics that are there, discard what waits in vain."""
        self._waiting.learn(cluster)
        for topic in self._waiting.topics:
            started, spans = time.monotonic(), self._waiting.spans(topic)
            if usable(cluster, topic):
                self._send(self._read_again(topic), cluster, spans, spans, started)
            elif self._waiting.given_up(topic):
                self._give_up(topic, spans, started)
            else:
                continue
            self._waiting.drop(topic)

    def _give_up(self, topic: str, spans: Sequence[Span], started: float) -> None:
        """Have done with messages whose topic nobody has made."""
        routes = Routes({topic: np.zeros(1, np.bool_)})
        nowhere = self._read_again(topic).withColumn("partition", f.lit(NOWHERE))
        delivery = self._delivery("gone", routes)
        outcomes = deliver(arrange(nowhere, in_transactions=delivery.in_transactions), delivery)
        self._settle(spans, Routes({}), count_outcomes(outcomes), started)

    def _read_again(self, topic: str) -> DataFrame:
        """The messages that wait for a topic, from their spools."""
        layouts = [lease.layout for lease in self._leases]
        stored = read_stored(self._session, layouts).where(f.col("topic") == topic)
        return undelivered(undelivered(stored, self._waiting.runs(topic)), self._backlog)

    def _send(
        self, rows: DataFrame, cluster: Cluster, there: Sequence[Span], spans: Sequence[Span], started: float
    ) -> None:
        """Send the messages `there`; tell of all in `spans`."""
        routes = self._routing.routes(cluster, there, self._name("counts"))
        reasons = count_outcomes(send(rows, routes, self._delivery("run", routes))) if there else {}
        self._settle(spans, routes, reasons, started)

    def _settle(
        self, spans: Sequence[Span], routes: Routes, reasons: Mapping[int, int], started: float
    ) -> None:
        for lease in self._leases:
            lease.settle()
        topics = _topics(spans)
        self._told(tell(topics.total(), topics, routes, reasons, started))

    def _delivery(self, what: str, routes: Routes) -> Delivery:
        return delivery_from(self._leases, self._options, self._name(what), routes)

    def _name(self, what: str) -> str:
        return f"{what}-{next(self._jobs):08}"


def find_spans(rows: DataFrame) -> list[Span]:
    """Where the messages of each topic are, in each spool. Raises JobFailed."""
    found = rows.groupBy("spool", "topic").agg(
        f.count("*").alias("n"), f.min("sequence").alias("first"), f.max("sequence").alias("last")
    )
    with explained():
        return [
            Span(row.spool, row.topic, int(row.n), int(row.first), int(row["last"]) + 1)
            for row in found.collect()
        ]


def _topics(spans: Sequence[Span]) -> Counter[str]:
    """Messages by topic."""
    counted: Counter[str] = Counter()
    for span in spans:
        counted[span.topic] += span.messages
    return counted
