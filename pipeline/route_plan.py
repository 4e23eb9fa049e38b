"""What routes go by: Kafka's metadata, taken once, and the partition counts that the marks remember."""

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
from pipeline.route import History, Routes
from router.unknown import legal
from spool.catalogue import Catalogue
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
    histories = {read_identity(layout).hex(): read_history(layout) for layout in layouts}
    wanted = dict.fromkeys(topics, 1)
    for known in histories.values():
        for topic, history in known.items():
            if topic in wanted:
                wanted[topic] = max(wanted[topic], history[-1][1])
    return Routes(_fetch(options, wanted, deadline) if wanted else {}, dict(partitioners), histories)


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
            cluster = _ask(client, list(wanted), min(deadline, time.time() + PATIENCE_S))
            found = {name.decode(): leaders != NO_LEADER for name, leaders in cluster.topics.items()}
            there = all(topic in found and len(found[topic]) >= most for topic, most in wanted.items())
            if there or time.time() >= end:
                return {topic: mask for topic, mask in found.items() if topic in wanted}
            time.sleep(PAUSE_S)


def _ask(client: KafkaClient, topics: Sequence[str], end: float) -> Cluster:
    """One answer. Raises Unreachable when there is none by `end`."""
    names = [topic.encode() for topic in topics if legal(topic.encode())]
    while True:
        try:
            return client.fetch_cluster(names, ANSWER_S)
        except Unreachable:
            if time.time() >= end:
                raise
            time.sleep(PAUSE_S)
