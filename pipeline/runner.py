"""Joins the audit to the world: which spools and topics, in which order they are looked at, what came out.

The order lets it run beside a live daemon without calling a message lost that is on its way: first how far
the spools go, then what the daemon says of each message, last what Kafka holds (the offsets are taken when
Spark plans the query). Messages stored after the first look are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.audit import COUNTS, match, summarise
from pipeline.failure import explained
from pipeline.kafka_plan import count_dropped, list_topics
from pipeline.kafka_reader import read_kafka
from pipeline.outcomes import Outcomes, read_outcomes
from pipeline.plan import SpoolPlan, find_spools, plan_spool
from pipeline.report import Report, SpoolReport
from pipeline.schema import SCHEMA, UNREAD
from pipeline.unstamped import stamp

_COLUMNS = ("spool", "sequence", "topic", "partition_key", "timestamp_ms", "key", "value")
_FOR = {"hour": "received_at", "host": "host"}
"""What a dimension needs beside them."""
_RUN = 1_000_000
"""Sequence numbers of one row, at most, before they are told apart."""


def run_audit(
    session: SparkSession,
    paths: Iterable[str],
    properties: Mapping[str, str],
    topics: Sequence[str] | None = None,
    *,
    by: Sequence[str] = (),
    unstamped: bool = False,
) -> Report:
    """Audit the spools at these paths (globs, too) against Kafka, over all of their topics by default.

    `properties` are librdkafka's. `by`: of `pipeline.audit.DIMENSIONS`. `unstamped`: records are told by
    their content (`pipeline.unstamped`), whatever their headers say.

    What the disk gives an error for is passed by, and named.

    Raises NoSpool, Unreachable, BadProperty, JobFailed.
    """
    plans = [plan_spool(layout, passing=True) for layout in find_spools(paths)]
    known = list_topics(properties)
    outcomes = {plan.spool: read_outcomes(plan) for plan in plans if plan.parts}
    whole = topics is None
    if topics is None:
        topics = sorted(set().union(*(plan.topics() for plan in plans)))
    in_kafka = sorted(known.keys() & set(topics))
    with explained():
        unread = f.col(UNREAD.name).isNotNull()
        everything = _read(session, plans, by)
        stored = everything.where(unread | _seen(plans))
        if not whole:
            stored = stored.where(unread | f.col("topic").isin(*topics))
        kafka, read_by = read_kafka(session, properties, in_kafka)
        told = {"discarded": _discarded(session, outcomes), "backlog": _backlog(session, outcomes)}
        if unstamped:
            kafka = stamp(stored, kafka, **told)
        rows = summarise(match(stored, kafka, **told, by=by), by).collect()
        # A message has a topic; what the disk does not give has neither, and went the same way.
        messages = [row for row in rows if row.topic is not None]
        lacking = _name_unread(everything) if len(messages) < len(rows) else []
    dropped = count_dropped(properties, in_kafka)
    report = _report(plans, messages, dropped, by, whole=whole)
    return replace(report, read_by=read_by, unread=lacking)


def _read(session: SparkSession, plans: Sequence[SpoolPlan], by: Sequence[str]) -> DataFrame:
    """All that the spools have, and rows that tell what of it the disk does not give."""
    more = [column for name, column in _FOR.items() if name in by]
    schema = StructType([*(SCHEMA[name] for name in (*_COLUMNS, *more)), UNREAD])
    directories = [str(plan.layout.directory) for plan in plans]
    return session.read.format("bruce").schema(schema).load(directories)


def _seen(plans: Sequence[SpoolPlan]) -> Column:
    """Whether a message was there when the spools were looked at."""
    seen = [(f.col("spool") == plan.spool) & (f.col("sequence") < plan.next_sequence) for plan in plans]
    return reduce(or_, seen)


def _name_unread(rows: DataFrame) -> list[str]:
    """What the disk does not give: asked for when there is something, since it reads everything again."""
    return sorted(row[0] for row in rows.select(UNREAD.name).distinct().collect() if row[0] is not None)


def _discarded(session: SparkSession, outcomes: Mapping[str, Outcomes]) -> DataFrame | None:
    found = [(spool, outcome.discarded) for spool, outcome in outcomes.items() if len(outcome.discarded)]
    if not found:
        return None
    spools = [pa.repeat(spool, len(numbers)) for spool, numbers in found]
    sequences = [pa.array(numbers, pa.int64()) for _, numbers in found]
    return session.createDataFrame(
        pa.table({"spool": pa.concat_arrays(spools), "sequence": pa.concat_arrays(sequences)})
    )


def _backlog(session: SparkSession, outcomes: Mapping[str, Outcomes]) -> DataFrame | None:
    runs = [
        (spool, at, min(at + _RUN, end) - 1)
        for spool, outcome in outcomes.items()
        for first, end in outcome.backlog
        for at in range(first, end, _RUN)
    ]
    if not runs:
        return None
    table = session.createDataFrame(runs, "spool string, first long, last long")
    return table.select("spool", f.explode(f.sequence("first", "last")).alias("sequence"))


def _report(
    plans: Sequence[SpoolPlan],
    rows: Sequence[Row],
    dropped: Mapping[str, int],
    by: Sequence[str],
    *,
    whole: bool,
) -> Report:
    readable: Counter[str] = Counter()
    topics: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=lambda row: row.topic):
        readable[row.spool] += row.stored
        topics.setdefault(row.topic, Counter()).update({name: row[name] for name in COUNTS})
    spools = [
        SpoolReport(
            plan.spool,
            str(plan.layout.directory),
            _messages(plan) if whole else readable[plan.spool],
            _messages(plan) - readable[plan.spool] if whole else None,
            plan.unreadable,
        )
        for plan in plans
    ]
    return Report(spools, topics, dropped, tuple(by), _groups(rows, by))


def _messages(plan: SpoolPlan) -> int:
    """How many a spool stores, by what headers and footers say."""
    return plan.stored + sum(one.messages for one in plan.damaged)


def _groups(rows: Sequence[Row], by: Sequence[str]) -> list[dict[str, Any]]:
    """The counts by topic and `by`, in order, over all spools; those without a value come first."""
    groups: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        key = (row.topic, *(row[name] for name in by))
        groups.setdefault(key, Counter()).update({name: row[name] for name in COUNTS})
    ordered = sorted(groups, key=lambda key: [(value is not None, value or 0) for value in key])
    return [dict(zip(("topic", *by), key, strict=True)) | groups[key] for key in ordered]
