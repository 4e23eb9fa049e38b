"""The pipeline as a stream: one query delivers the messages of spools, and all that they take in later.

    readStream("bruce") ─► undelivered ─► route ─► arrange ─► deliver      a batch at a time, whole

The run leases the spools until it ends. The marks record what is delivered, whichever process dies: a query
that starts again reads them, and its checkpoint holds nothing worth keeping. A batch is delivered before the
next one begins, so that order holds across batches.

The run passes over messages of topics that Kafka does not have, all of them from the first one on, so that a
span of sequence numbers tells which they are. It reads them again when the topic exists, before it sends any
later message of it, and discards them when the topic does not exist in time.

A run goes on for months, and topics grow meanwhile. A new partition count may hold from the first message of
a batch, but not for messages committed before the run began: a job that died, or a daemon, may have sent
those by the old count (`router.partition_history`). The run writes new counts down for the marks before it
sends anything by them. A topic with fewer partitions is a new topic of that name: once Kafka has reported so
for SHRINK_S, the new count holds for all waiting messages.
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.client import NO_LEADER, Cluster, KafkaClient
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from pipeline.delivery.backlog import open_runs
from pipeline.delivery.choice import History, Routes, Runs
from pipeline.delivery.drain import delivery_from
from pipeline.delivery.lease import DeliveryLease, delivery_lease
from pipeline.delivery.route import undelivered
from pipeline.delivery.route_plan import PATIENCE_S, PAUSE_S, ask, read_histories, write_histories
from pipeline.delivery.sending import DELIVERED, Sent, check_mode, count_outcomes, read_stored, send, tell
from pipeline.delivery.sink import Delivery, arrange, deliver
from pipeline.errors import JobFailed
from pipeline.job import explained
from pipeline.source.columns import NOWHERE
from pipeline.source.plan import find_spools
from pipeline.source.schema import SCHEMA
from pipeline.spark_release import READ_LIMITS, has
from router.cluster.unknown_topics import UnknownTopics
from router.outcomes.rejects import discard_file_of
from router.timing import SHRINK_S
from spool.format.batch import Topics

BATCH_BYTES = 256 << 20
"""Read for one batch, about, if Spark can: it is delivered as a whole before the next one."""
_LIMIT = {"maxBytesPerTrigger": BATCH_BYTES} if has(READ_LIMITS) else {}
LOOK_S = 1
LAST_LOOK_S = 5.0
"""Kafka may report a missing topic only at the end: the time to wait for it begins then."""
_log = logging.getLogger("bruce.pipeline")


def run_stream(
    session: SparkSession,
    paths: Iterable[str],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    told: Callable[[Sent], None],
    *,
    once: bool = False,
) -> None:
    """Deliver until interrupted; `once`: until all messages stored now are delivered, or given up.

    `told` gets the result of each batch. Raises NoSpool, SpoolBusy, NotLent, BadPartitioner, Unreachable,
    JobFailed, also for a lost lease.
    """
    check_mode(options)
    layouts = find_spools(paths)
    file = discard_file_of(options)
    with ExitStack() as stack:
        leases = [stack.enter_context(delivery_lease(layout, file=file)) for layout in layouts]
        routing = stack.enter_context(closing(Routing(options, partitioners, leases)))
        batches = Batches(session, leases, options, routing, told)
        checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bruce-run-"))).as_uri()
        schema = StructType([SCHEMA[name] for name in DELIVERED])
        stored = (
            session.readStream.format("bruce")
            .schema(schema)
            .options(**_LIMIT)
            .option("paths", json.dumps([str(layout.directory) for layout in layouts]))
            .load()
        )
        writer = stored.writeStream.foreachBatch(batches.carry).option("checkpointLocation", checkpoint)
        with explained():
            query = (writer.trigger(availableNow=True) if once else writer).start()
            try:
                while not query.awaitTermination(LOOK_S):
                    _look_after(leases, batches)
                end = time.monotonic() + options.unknown_topic_seconds + LAST_LOOK_S
                while batches.awaits_topics and time.monotonic() < end:
                    time.sleep(LOOK_S)
                    _look_after(leases, batches)
            finally:
                query.stop()


def _look_after(leases: Iterable[DeliveryLease], batches: Batches) -> None:
    for lease in leases:
        lease.check()
    batches.retry_waiting()


class Batches:
    """Delivers the batches of a run, and in between the messages that waited for their topic."""

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
        self._lock = threading.Lock()
        """Spark carries batches in a thread of its own."""
        self._jobs = itertools.count()

    @property
    def awaits_topics(self) -> bool:
        """Whether messages wait for topics that may yet be made."""
        return bool(self._waiting.open_topics)

    def carry(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002
        """Deliver a batch, and record the outcomes. Raises JobFailed, LeaseLost, Unreachable."""
        # It is computed twice, for its topics and for its messages.
        wanted = undelivered(batch, self._backlog).persist()
        try:
            with self._lock:
                if spans := _find_spans(wanted):
                    self._carry(wanted, spans)
        finally:
            wanted.unpersist()

    def retry_waiting(self) -> None:
        """Deliver messages whose topics exist now, discard those that waited too long; does not block.

        Raises JobFailed, LeaseLost.
        """
        if not self._waiting.topics or not self._lock.acquire(blocking=False):
            return
        try:
            with suppress(Unreachable):
                self._look_again(self._routing.look(self._waiting.topics))
        finally:
            self._lock.release()

    def _carry(self, wanted: DataFrame, spans: Sequence[Span]) -> None:
        started = time.monotonic()
        cluster = self._routing.await_cluster(sorted({*_topics(spans), *self._waiting.topics}))
        # First: no message of a topic goes before an older one.
        self._look_again(cluster)
        there = [span for span in spans if usable(cluster, span.topic)]
        for span in spans:
            if span not in there:
                self._waiting.add(span)
        placed = wanted.where(f.col("topic").isin(sorted(_topics(there))))
        self._send(placed, cluster, there, spans, started)
        self._look_again(cluster)

    def _look_again(self, cluster: Cluster) -> None:
        """Deliver the messages whose topics exist now, discard those that waited too long."""
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
        """Discard messages whose topic was not made in time."""
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
        """Send the messages `there`; report all in `spans`."""
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


def _find_spans(rows: DataFrame) -> list[Span]:
    """The spans of the messages of each topic, in each spool. Raises JobFailed."""
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


class Routing:
    """The routing inputs of a run: Kafka's newest metadata, and the partition counts by message.

    It starts threads: close it.
    """

    def __init__(
        self,
        options: DispatchOptions,
        partitioners: Mapping[str, str],
        leases: Sequence[DeliveryLease],
        *,
        shrink_s: float = SHRINK_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`shrink_s`: how long a topic must have fewer partitions to be believed. `pause_s`: between looks.

        Raises BadProperty, DispatchError.
        """
        self._partitioners, self._default, self._leases = dict(partitioners), options.partitioner, leases
        self._shrink_s, self._pause_s = shrink_s, pause_s
        self._histories = read_histories(lease.layout for lease in leases)
        self._client = KafkaClient(options)
        self._closing, self._asking = threading.Event(), threading.Lock()
        self._reached = False

    def close(self) -> None:
        """Release the client; a batch that waits for an answer in Spark's thread ends with JobFailed."""
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
        """A reliable answer, however long it takes, once Kafka has answered.

        Raises Unreachable when Kafka is away at the beginning, JobFailed when the run is over.
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
                if not fewer or time.monotonic() - fewer_since >= self._shrink_s:
                    self._shrink(cluster, fewer)
                    return cluster
            self._closing.wait(self._pause_s)

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
        return Routes(available, self._partitioners, self._default, self._histories)

    def _fewer(self, cluster: Cluster) -> list[str]:
        """Topics that Kafka reports with fewer partitions than they had."""
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
                "topic %s was made again, with fewer partitions (%d): all that waits goes by this count",
                topic,
                count,
            )
            for histories in self._histories.values():
                if topic in histories:
                    histories[topic] = [(0, count)]


@dataclass(frozen=True, slots=True)
class Span:
    """Messages of one topic in one spool."""

    spool: str
    topic: str
    messages: int
    first: int
    end: int
    """After the last one's sequence number."""


class Waiting:
    """The messages of topics that Kafka does not have, and since when it reports so."""

    def __init__(self, grace_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = Topics()
        self._unknown = UnknownTopics(grace_s=grace_s, clock=clock)
        self._spans: dict[str, list[Span]] = {}

    @property
    def topics(self) -> list[str]:
        """The topics that messages wait for."""
        return list(self._spans)

    @property
    def open_topics(self) -> list[str]:
        """Those that may yet be made."""
        return [topic for topic in self._spans if not self.given_up(topic)]

    def add(self, span: Span) -> None:
        """Add waiting messages."""
        self._names.add(span.topic.encode())
        self._spans.setdefault(span.topic, []).append(span)

    def learn(self, cluster: Cluster) -> None:
        """Note Kafka's metadata."""
        self._unknown.learn(cluster, self._names)

    def given_up(self, topic: str) -> bool:
        """Whether the time to make the topic is over, or Kafka can never have one of this name."""
        name = topic.encode()
        return self._unknown.given_up(self._names.add(name), name)

    def spans(self, topic: str) -> list[Span]:
        """The spans that wait for a topic, in the order in which they came."""
        return self._spans[topic]

    def runs(self, topic: str) -> dict[str, Runs]:
        """By spool, their sequence numbers."""
        spools = {span.spool for span in self._spans[topic]}
        pairs = {name: [(s.first, s.end) for s in self._spans[topic] if s.spool == name] for name in spools}
        return {name: Runs.of(found, max(end for _, end in found)) for name, found in pairs.items()}

    def drop(self, topic: str) -> None:
        """Forget the messages that waited for it."""
        del self._spans[topic]


def usable(cluster: Cluster, topic: str) -> bool:
    """Whether every message of a topic has a partition to go to."""
    leaders = cluster.topics.get(topic.encode())
    return leaders is not None and bool((leaders != NO_LEADER).any())
