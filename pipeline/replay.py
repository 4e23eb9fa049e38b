"""Sending messages again, from spools or from an archive. Nothing is written down: it may be done twice.

    stored ─► asked ─► route ─► arrange ─► deliver

Each record has a header `bruce-replay` beside its own, the time of the replay in ms since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from dispatch.options import DispatchOptions
from pipeline.archive import NO_TOPIC
from pipeline.archive_files import read_archive
from pipeline.plan import find_spools
from pipeline.route_plan import plan_routes
from pipeline.segments import topic_name
from pipeline.sending import Sent, count_outcomes, count_topics, read_stored, send, tell
from pipeline.sink import Delivery
from spool.files import FOR_EVER, Span
from spool.layout import Layout

_LAST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999, behind which SQL has no times."""


def asked(stored: DataFrame, span: Span, to_topic: str | None = None) -> DataFrame:
    """The rows of `stored` that are asked for, perhaps for another topic."""
    wanted = stored.where((f.col("sequence") >= span.first) & (f.col("sequence") < span.end))
    if span.from_ns:
        wanted = wanted.where(f.col("received_at") >= _at(span.from_ns))
    if span.to_ns != FOR_EVER:
        wanted = wanted.where(f.col("received_at") < _at(span.to_ns))
    if span.topics:
        wanted = wanted.where(f.col("topic").isin(*map(topic_name, span.topics)))
    return wanted if to_topic is None else wanted.withColumn("topic", f.lit(to_topic))


def _at(ns: int) -> Column:
    return f.lit(datetime.fromtimestamp(min(max(ns, 0), _LAST_NS) / 1e9, UTC))


def read_again(
    session: SparkSession, paths: Iterable[str], *, archive: bool
) -> tuple[DataFrame, list[Layout]]:
    """What is kept at these paths; and of spools, where they are. Raises NoSpool, JobFailed."""
    if not archive:
        layouts = find_spools(paths)
        return read_stored(session, layouts, "received_at"), layouts
    frames = [read_archive(session, path).where(f.col("topic") != NO_TOPIC) for path in paths]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole, []


def run_replay(
    stored: DataFrame,
    layouts: Iterable[Layout],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    *,
    timeout_s: float | None = None,
) -> Sent:
    """Send all rows of `stored`. Raises Unreachable, BadProperty, BadPartitioner, JobFailed."""
    started = time.monotonic()
    deadline = float("inf") if timeout_s is None else time.time() + timeout_s
    topics = count_topics(stored)
    routes = plan_routes(options, list(topics), partitioners, layouts, deadline)
    delivery = Delivery(options, "replay", deadline=deadline, replayed_ms=time.time_ns() // 1_000_000)
    reasons = count_outcomes(send(stored, routes, delivery))
    return tell(topics.total(), topics, routes, reasons, started)


def dry(stored: DataFrame) -> Sent:
    """What would be sent. Raises JobFailed."""
    started = time.monotonic()
    topics = count_topics(stored)
    return Sent(
        topics.total(), dict(sorted(topics.items())), 0, {}, topics.total(), [], time.monotonic() - started
    )
