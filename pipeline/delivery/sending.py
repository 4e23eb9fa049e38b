"""Sending messages to Kafka: the common part of all jobs, and the result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.delivery.choice import Routes
from pipeline.delivery.route import route
from pipeline.delivery.sink import COLUMNS, Delivery, arrange, deliver
from pipeline.errors import JobFailed
from pipeline.job import explained
from pipeline.source.columns import NOWHERE
from pipeline.source.schema import SCHEMA
from spool.format.wire import reason_name
from spool.layout import Layout

DELIVERED = tuple(name for name in COLUMNS if name != "partition")
"""The columns of a spool's rows that routing and delivery need."""
VERSION = 1
"""Of what `brucectl spark drain` and `run` print."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a job that sends."""

    messages: int
    """All that were to be sent."""
    topics: dict[str, int]
    """The same by topic, as far as they can be read."""
    delivered: int
    refused: dict[str, int]
    """Messages that Kafka will never take, by reason."""
    left: int
    """Neither of the two: of topics that Kafka does not have, unreadable, or not sent in time."""
    unknown: list[str]
    """Topics that Kafka does not have."""
    seconds: float
    unread: list[str] = field(default_factory=list)
    """Segments that the disk cannot read, and the error: their unreadable messages are left."""

    @property
    def unknown_messages(self) -> dict[str, int]:
        """Messages of `unknown` topics, by name."""
        return {topic: self.topics[topic] for topic in self.unknown}

    def as_json(self) -> dict[str, object]:
        """The same, its version first."""
        return {"version": VERSION, **asdict(self), "unknown_messages": self.unknown_messages}


def send(frame: DataFrame, routes: Routes, delivery: Delivery) -> DataFrame:
    """Route and deliver messages; their outcomes, in the rows of `deliver`.

    Those of topics without partitions have none. Kafka was asked for `routes` after the messages were read: a
    partition that its topic lacked then is none to wait for. Order is kept for each partition key of a spool.
    """
    placed = route(frame, routes).where(f.col("partition") != NOWHERE)
    return deliver(arrange(placed, in_transactions=delivery.in_transactions), delivery)


def read_stored(session: SparkSession, layouts: Iterable[Layout]) -> DataFrame:
    """The messages in these spools, with the columns for routing and delivery."""
    schema = StructType([SCHEMA[name] for name in DELIVERED])
    return session.read.format("bruce").schema(schema).load([str(layout.directory) for layout in layouts])


def count_outcomes(told: DataFrame) -> dict[int, int]:
    """Messages by reason, 0 for those that are in Kafka: this call sends them. Raises JobFailed."""
    counts: Counter[int] = Counter()
    with explained():
        # No shuffle: with an executor that dies its tasks' shuffled rows would be lost, and the tasks run
        # again.
        for row in told.mapInArrow(_tally, "reason int, n long").collect():
            counts[row.reason] += row.n
    return dict(counts)


def _tally(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of one task: (reason, messages)."""
    counts: Counter[int] = Counter()
    for batch in batches:
        reasons, numbers = np.unique(np.asarray(batch.column("reason")), return_counts=True)
        counts.update(dict(zip(reasons.tolist(), numbers.tolist(), strict=True)))
    columns = [pa.array(list(counts), pa.int32()), pa.array(list(counts.values()), pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, names=["reason", "n"])


def tell(
    messages: int,
    topics: Mapping[str, int],
    routes: Routes,
    reasons: Mapping[int, int],
    started: float,
    unread: Sequence[str] = (),
) -> Sent:
    """The result; `started` by the monotonic clock."""
    return Sent(
        messages,
        dict(sorted(topics.items())),
        reasons.get(0, 0),
        count_refused(reasons),
        messages - sum(reasons.values()),
        sorted(topics.keys() - routes.available.keys()),
        time.monotonic() - started,
        list(unread),
    )


def count_refused(reasons: Mapping[int, int]) -> dict[str, int]:
    """Messages that Kafka will never take, by name of the reason, dead letters or not."""
    refused: Counter[str] = Counter()
    for reason, count in sorted(reasons.items()):
        if reason:
            refused[reason_name(reason)] += count
    return dict(refused)


def check_mode(options: DispatchOptions) -> None:
    """Raise JobFailed for a delivery mode that Spark cannot keep: it tries tasks again."""
    if options.mode == "at_most_once":
        raise JobFailed(
            'Spark tries tasks again, and [dispatch] mode is "at_most_once": deliver with `brucectl drain`'
        )
