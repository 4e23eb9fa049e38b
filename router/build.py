"""Puts together what delivers: the client, its pool, the metadata, the router; and takes it apart in order.

    kafka = connect(options, topics, ProgressBook(acks, segment list, layout), spool, wakeup)
    log = SpoolLog(live, catch_up, committed)
    router = Router(log, kafka, acks, rules, rejection=rejection_of(options, spool))
    while wanted:
        if not router.step():
            wakeup.wait(IDLE_S)
    settle(router, kafka, time.monotonic() + FLUSH_S)
    close(router, kafka)

The caller makes the log and the marks, and closes the marks: a daemon, a replay and a test differ in these.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from dispatch.client import Inquiry, Wakeup
from dispatch.options import DispatchOptions
from dispatch.topic_settings import read_lateness, write_lateness
from dispatch.transactions.exactly_once import Book, make_pool
from dispatch.transactions.progress import replay_id
from router.cluster.brokers import Capacity, Kafka
from router.cluster.metadata import LatenessWatch, Metadata
from router.outcomes.rejects import Rejection, discard_file_of
from router.router import Router
from spool.format.batch import Topics
from spool.layout import Layout

IDLE_S = 0.05
"""Longest sleep while there is something to commit or to wait for."""
FLUSH_S = 5.0
"""At the end, how long acknowledgements of what is in flight are waited for; the rest stays in the spool."""


class Replay(NamedTuple):
    """A replay, which sends messages again."""

    name: str
    since_ms: int
    """When it was asked for, ms since the epoch: each record says so in its header."""


def connect(
    options: DispatchOptions,
    topics: Topics,
    book: Book,
    spool: bytes,
    wakeup: Wakeup,
    source: Layout | Replay | None = None,
) -> Kafka:
    """The cluster, as a router sees it. It starts threads: call it after forking.

    `book`: what is known of transactions. `spool`: its uuid. `wakeup` rings when there is something to
    do. `source`: the spool itself, in which the settings of topics are noted; or a replay of it, under whose
    name messages are delivered, without dead letters.

    Raises BadProperty and DispatchError, before any thread of the metadata runs.
    """
    replay = source if isinstance(source, Replay) else None
    client, pool = make_pool(options, topics, book, spool, wakeup, replay_id(replay.name) if replay else "")
    if replay:
        pool.note_replay(replay.since_ms)
    lateness = None
    if isinstance(source, Layout):
        lateness = LatenessWatch(
            client.fetch_lateness, read_lateness(source), partial(write_lateness, source)
        )
    metadata = Metadata(
        client.fetch_cluster,
        wakeup.ring,
        Inquiry(options),
        client.fetch_all,
        ours=[] if replay else [options.dead_letter_topic.encode()],
        lateness=lateness,
    )
    return Kafka(client, pool, Capacity(pool, options.window_messages, options.window_bytes), metadata)


class Task(NamedTuple):
    """A task of a job, which delivers messages of topics that Kafka has."""

    name: str = ""
    """The id of its transactions; empty: it has none."""
    replayed_ms: int = 0
    """When its messages were asked for again, ms since the epoch; 0: they were not."""


def connect_task(
    options: DispatchOptions, topics: Topics, book: Book, spool: bytes, wakeup: Wakeup, task: Task
) -> Kafka:
    """The same for a task. Kafka is asked for its topics alone, and none is new."""
    client, pool = make_pool(options, topics, book, spool, wakeup, task.name)
    if task.replayed_ms:
        pool.note_replay(task.replayed_ms)
    metadata = Metadata(client.fetch_cluster, wakeup.ring)
    return Kafka(client, pool, Capacity(pool, options.window_messages, options.window_bytes), metadata)


def rejection_of(options: DispatchOptions, spool: bytes) -> Rejection:
    """The configured handling of messages that Kafka will not take."""
    return Rejection(
        options.dead_letter_topic.encode(), discard_file_of(options), spool, options.unknown_topic_seconds
    )


def settle(router: Router, kafka: Kafka, deadline: float) -> int:
    """Stop reading, and write down the acknowledgements that come until `deadline` (monotonic).

    Returns how many messages have none by then.
    """
    for left in router.drained():
        if time.monotonic() > deadline:
            router.commit()
            return left
        kafka.client.hurry()
        time.sleep(IDLE_S)
    router.commit()
    return 0


def close(router: Router, kafka: Kafka) -> bool:
    """Let go of the router and of Kafka, in this order; False when librdkafka goes on, and rings."""
    kafka.metadata.stop()
    router.close()
    if not kafka.pool.close():
        return False
    kafka.client.close()
    return True
