"""The delivery graph: client, pool, metadata and router. It is built here alone, and taken apart in order.

    parts = Parts(SpoolLog(live, catch_up, committed), acks, rules, rejection_of(options, spool))
    graph = build(options, layout, parts, ProgressBook(acks, segment list, layout), spool)
    while wanted:
        graph.step()
    graph.settle(time.monotonic() + FLUSH_S)
    graph.close()

The daemon, a replay and a task of a job differ in their `Parts` and in their source. They close the
acks and the marks that they made.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from dispatch.client import Inquiry, KafkaClient, Wakeup
from dispatch.errors import DispatchError
from dispatch.options import DispatchOptions
from dispatch.topic_settings import read_lateness, write_lateness
from dispatch.transactions.exactly_once import Book, make_pool
from dispatch.transactions.progress import replay_id
from router.cluster.brokers import Capacity, Kafka
from router.cluster.metadata import LatenessWatch, Metadata
from router.cluster.wanted_topics import WantedTopics
from router.context import Log, Rules
from router.outcomes.outcome_table import OutcomeTable
from router.outcomes.rejects import Rejection, discard_file_of
from router.router import Router
from router.timing import IDLE_S
from spool.format.batch import Topics
from spool.layout import Layout


class Replay(NamedTuple):
    """A replay, which sends messages again under its own name, without dead letters."""

    name: str
    since_ms: int
    """When it was asked for, ms since the epoch: each record says so in its header."""


class Task(NamedTuple):
    """A task of a job, which delivers messages of topics that Kafka has."""

    name: str = ""
    """The id of its transactions; empty: it has none."""
    replayed_ms: int = 0
    """When its messages were asked for again, ms since the epoch; 0: they were not."""


Source = Layout | Replay | Task
"""The origin of the messages: a spool, in which the settings of topics are noted; a replay; or a task."""


class Parts(NamedTuple):
    """The parts that each deliverer has of its own."""

    log: Log
    acks: OutcomeTable
    rules: Rules
    rejection: Rejection

    def router(self, kafka: Kafka) -> Router:
        """A router of these."""
        return Router(self.log, kafka, self.acks, self.rules, rejection=self.rejection)


class DeliveryGraph:
    """A router and its way to Kafka. For one thread; close it."""

    def __init__(self, kafka: Kafka, wakeup: Wakeup, parts: Parts) -> None:
        self.kafka, self.wakeup = kafka, wakeup
        self.router = parts.router(kafka)

    def step(self) -> None:
        """Do the work that is ready, or sleep until an event."""
        if not self.router.step():
            self.wakeup.wait(IDLE_S)

    def switch_to(self, spool: bytes, parts: Parts) -> None:
        """Go on with the messages of another spool, by its uuid, when those of the last one are settled."""
        self.router.close()
        pool = self.kafka.pool
        pool.partitions.release(pool.partitions.held())
        pool.serve(spool)
        self.router = parts.router(self.kafka)

    def settle(self, deadline: float) -> int:
        """Stop reading, and write down the acknowledgements that come until `deadline` (monotonic).

        Returns how many messages have none by then.
        """
        for left in self.router.drained():
            if time.monotonic() > deadline:
                self.router.commit()
                return left
            self.kafka.client.hurry()
            time.sleep(IDLE_S)
        self.router.commit()
        return 0

    def close(self) -> None:
        """Let go of the router, then of Kafka. For a librdkafka that goes on, the wakeup stays open."""
        self.kafka.metadata.stop()
        self.router.close()
        if self.kafka.pool.close():
            self.kafka.client.close()
            self.wakeup.close()


def build(options: DispatchOptions, source: Source, parts: Parts, book: Book, spool: bytes) -> DeliveryGraph:
    """Put together what delivers. It starts threads: call it after forking.

    `book`: what is known of transactions. `spool`: its uuid. Raises BadProperty and DispatchError, before any
    thread of the metadata runs; then nothing is left to be closed.
    """
    wakeup = Wakeup()
    try:
        kafka = _connect(options, source, parts.log.live.topics, book, spool, wakeup)
    except DispatchError:
        wakeup.close()
        raise
    return DeliveryGraph(kafka, wakeup, parts)


def _connect(
    options: DispatchOptions, source: Source, topics: Topics, book: Book, spool: bytes, wakeup: Wakeup
) -> Kafka:
    """The cluster, as a router sees it. `wakeup` rings when there is something to do."""
    match source:
        case Replay(name, replayed_ms):
            name = replay_id(name)
        case Task(name, replayed_ms):
            pass
        case _:
            name, replayed_ms = "", 0
    client, pool = make_pool(options, topics, book, spool, wakeup, name)
    if replayed_ms:
        pool.note_replay(replayed_ms)
    metadata = _metadata(options, source, client, wakeup)
    return Kafka(client, pool, Capacity(pool, options.window_messages, options.window_bytes), metadata)


def _metadata(options: DispatchOptions, source: Source, client: KafkaClient, wakeup: Wakeup) -> Metadata:
    """Asks Kafka about topics. For a task: about its own alone, and none is new."""
    if isinstance(source, Task):
        return Metadata(client.fetch_cluster, wakeup.ring)
    replays = isinstance(source, Replay)
    lateness = wanted = None
    if isinstance(source, Layout):
        wanted = WantedTopics(source)
        lateness = LatenessWatch(
            client.fetch_lateness, read_lateness(source), partial(write_lateness, source)
        )
    return Metadata(
        client.fetch_cluster,
        wakeup.ring,
        Inquiry(options),
        client.fetch_all,
        ours=[] if replays else [options.dead_letter_topic.encode()],
        lateness=lateness,
        wanted=wanted,
    )


def rejection_of(options: DispatchOptions, spool: bytes) -> Rejection:
    """The configured handling of messages that Kafka will not take."""
    return Rejection(
        options.dead_letter_topic.encode(), discard_file_of(options), spool, options.unknown_topic_seconds
    )
