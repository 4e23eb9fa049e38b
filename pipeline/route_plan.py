"""What routes go by: Kafka's metadata, taken once, and the partition counts that the marks remember.

Counts that they do not know are written down before anything is sent by them: who goes on after a job that
died must not count anew what its successors have overtaken.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.cluster import NO_LEADER, Cluster
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from pipeline.errors import JobFailed
from pipeline.lease import DeliveryLease
from pipeline.route import History, Routes
from router.unknown import legal
from spool.catalogue import Catalogue
from spool.counts_file import write_counts
from spool.environment import UNREADABLE
from spool.identity import read_identity
from spool.layout import Layout
from spool.marks import Marks

ANSWER_S = 5.0
PATIENCE_S = 30.0
"""How long Kafka may be away before a job ends that has not begun."""
PAUSE_S = 0.5
"""Between two questions for topics that are not there."""


def plan_routes(
    options: DispatchOptions,
    topics: Sequence[str],
    partitioners: Mapping[str, str],
    layouts: Iterable[Layout],
    deadline: float = float("inf"),
) -> Routes:
    """The routes for these topics of these spools. Raises BadProperty, Unreachable.

    A topic that Kafka does not have is waited for, as the daemon waits: `unknown_topic_seconds`, or up to the
    deadline (seconds since the epoch). So is one with fewer partitions than it had: a broker may lag behind.
    """
    histories = read_histories(layouts)
    wanted = dict.fromkeys(topics, 1)
    for known in histories.values():
        for topic, history in known.items():
            if topic in wanted:
                wanted[topic] = max(wanted[topic], history[-1][1])
    return Routes(_fetch(options, wanted, deadline) if wanted else {}, dict(partitioners), histories)


def read_histories(layouts: Iterable[Layout]) -> dict[str, dict[str, History]]:
    """By spool and topic, how many partitions it had from a sequence number on."""
    return {read_identity(layout).hex(): read_history(layout) for layout in layouts}


def note_counts(leases: Iterable[DeliveryLease], routes: Routes, job: str) -> None:
    """Write down what spools do not know of topics. Raises JobFailed, LeaseLost."""
    for lease in leases:
        known = routes.histories.get(lease.spool.hex(), {})
        fresh = {
            topic.encode(): [(0, len(mask))] for topic, mask in routes.available.items() if topic not in known
        }
        if fresh:
            write_histories(lease, fresh, job)


def write_histories(lease: DeliveryLease, histories: Mapping[bytes, History], job: str) -> None:
    """Have the marks of a spool remember these. Raises JobFailed, LeaseLost."""
    try:
        write_counts(lease.outcomes, job, lease.spool, histories)
    except OSError as error:
        lease.check()
        raise JobFailed(f"{lease.outcomes} cannot be written: {error.strerror}") from error


def read_history(layout: Layout) -> dict[str, History]:
    """By topic, how many partitions it had from a sequence number on, as the marks remember it."""
    if not (layout.delivery / "data.mdb").exists():
        return {}
    with suppress(*UNREADABLE), closing(Marks(layout.delivery, Catalogue(layout), readonly=True)) as marks:
        return {name.decode(errors="backslashreplace"): found for name, found in marks.partitions().items()}
    return {}


def _fetch(
    options: DispatchOptions, wanted: Mapping[str, int], deadline: float
) -> dict[str, npt.NDArray[np.bool_]]:
    """By topic, which partitions have a leader; what has fewer partitions than `wanted` is waited for."""
    end = min(deadline, time.time() + options.unknown_topic_seconds)
    with closing(KafkaClient(options)) as client:
        while True:
            cluster = ask(client, list(wanted), min(deadline, time.time() + PATIENCE_S))
            found = {name.decode(): leaders != NO_LEADER for name, leaders in cluster.topics.items()}
            there = all(topic in found and len(found[topic]) >= most for topic, most in wanted.items())
            if there or time.time() >= end:
                return {topic: mask for topic, mask in found.items() if topic in wanted}
            time.sleep(PAUSE_S)


def ask(client: KafkaClient, topics: Sequence[str], end: float) -> Cluster:
    """One answer. Raises Unreachable when there is none by `end`."""
    names = [topic.encode() for topic in topics if legal(topic.encode())]
    while True:
        try:
            return client.fetch_cluster(names, ANSWER_S)
        except Unreachable:
            if time.time() >= end:
                raise
            time.sleep(PAUSE_S)
