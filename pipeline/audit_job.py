"""An audit: the spools at some paths against what Kafka holds.

spools   plans of their segments, and what the marks say           pipeline.source
Kafka    its records; what it has dropped, and what it withholds   pipeline.kafka
match    the outcome of each message                               pipeline.audit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.audit import AGES, PLACES, SPOOLS, Dropped, Told, match, stamp, summarise
from pipeline.audit_report import Report, make_report
from pipeline.delivery.choice import Routes, partition_by
from pipeline.engine import DataFrame, Engine, f, show_hour
from pipeline.errors import JobFailed, SegmentGone, finishing
from pipeline.kafka.ends import Start, count_dropped, find_starts, offsets_of, plan_withheld
from pipeline.kafka.ranges import list_topics
from pipeline.source.fields import CONTENT, REPLAYED, UNREAD
from pipeline.source.outcomes import Outcomes, Runs, plan_with_outcomes
from pipeline.source.plan import SpoolPlan, refuse_copies
from router.partition import DEFAULT
from spool.words import counted

_COLUMNS = ("spool", "sequence", "topic", "partition_key", "to_partition", "timestamp_ms", "key", UNREAD[0])
_RECORDS = ("topic", "partition", "offset", "timestamp_ms", "bruce_spool", "bruce_sequence")
_HASHED, _WHOLE = (CONTENT[0],), ("value", "headers")
"""The columns that tell the content of messages, beside the key: where records have stamps, and where not."""
_FOR = {"hour": "received_at", "host": "host"}
"""The column that a dimension needs beside them."""
_ANY_AGE = (1 << 63) - 1
_RUNS = pa.schema([("spool", pa.string()), ("first", pa.int64()), ("last", pa.int64())])
_RUN = 1_000_000
"""Sequence numbers of one row, at most, before they are told apart."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The subject of an audit, and the rules that messages were delivered by."""

    topics: Sequence[str] | None = None
    """None: all that the spools have."""
    by: Sequence[str] = ()
    """Counts by these, too: of `pipeline.audit.DIMENSIONS`."""
    unstamped: bool = False
    """Identify records by their content, whatever their headers say."""
    partitioner: str = DEFAULT
    partitioners: Mapping[str, str] = field(default_factory=dict)
    """By topic; both named as in bruce.toml."""


@dataclass(frozen=True)
class _Spools:
    """The spools of an audit, as they were when it began."""

    plans: list[SpoolPlan]
    outcomes: Mapping[str, Outcomes]
    """By spool, unless it has no segments."""

    @classmethod
    def plan(cls, paths: Iterable[str]) -> _Spools:
        """The spools at these paths. Raises NoSpool, and JobFailed for copies of one spool."""
        found = list(plan_with_outcomes(paths))
        refuse_copies(plan for plan, _ in found)
        return cls([plan for plan, _ in found], {plan.spool: told for plan, told in found if told})

    def topics(self) -> set[str]:
        """Of all messages."""
        return set().union(*(plan.topics() for plan in self.plans))

    def ranges(self) -> pa.Table:
        """A table of SPOOLS: the JVM does not take a chain of some hundred conditions, one a spool."""
        told = self.outcomes
        return _table(
            SPOOLS,
            [
                (one.spool, one.begin, one.next_sequence, one.spool in told and told[one.spool].marked)
                for one in self.plans
                if one.spool
            ],
        )

    def begins(self) -> list[int]:
        """The first sequence of each."""
        return [plan.begin for plan in self.plans]

    def left(self) -> _Spools:
        """The same without the segments that have been removed since."""
        return replace(self, plans=[plan.left() for plan in self.plans])

    def read(self, engine: Engine, routes: Routes, columns: Sequence[str]) -> DataFrame:
        """All messages with their partitions, and a row for each range that the disk cannot read."""
        directories = [plan.directory for plan in self.plans]
        return engine.spools(directories, [*_COLUMNS, *columns], partition_by(routes))

    def routes(self, known: Mapping[str, Sequence[int]], options: AuditOptions) -> Routes:
        """The rules that give each message the only partition it may be in, if there is only one.

        Messages of the user's own partitioners have none: their functions may not be on this host.
        """
        # No partition is for messages that may go anywhere.
        nowhere = {topic: np.zeros(len(partitions), np.bool_) for topic, partitions in known.items()}
        names = {topic: "any" if ":" in name else name for topic, name in options.partitioners.items()}
        histories = {spool: told.partitions for spool, told in self.outcomes.items()}
        return Routes(nowhere, names, options.partitioner, histories)

    def discarded(self, engine: Engine) -> DataFrame | None:
        """The messages that a daemon gave up, by the marks."""
        found = [(spool, told.discarded) for spool, told in self.outcomes.items() if len(told.discarded)]
        if not found:
            return None
        spools = [pa.repeat(spool, len(numbers)) for spool, numbers in found]
        sequences = [pa.array(numbers, pa.int64()) for _, numbers in found]
        return engine.table(
            pa.table({"spool": pa.concat_arrays(spools), "sequence": pa.concat_arrays(sequences)})
        )

    def backlog(self, engine: Engine) -> DataFrame | None:
        """The messages that are not delivered, by the marks."""
        found = [(spool, _pieces(told.backlog)) for spool, told in self.outcomes.items() if len(told.backlog)]
        if not found:
            return None
        spools = pa.concat_arrays([pa.repeat(spool, len(pieces)) for spool, pieces in found])
        first, last = np.concatenate([pieces for _, pieces in found]).T
        table = engine.table(pa.table([spools, first, last], _RUNS))
        return table.select("spool", f.explode(f.sequence("first", "last")).alias("sequence"))


def _pieces(runs: Runs) -> Runs:
    """Runs [first, end) as pieces [first, last] of _RUN numbers at most, int64[n, 2]."""
    first, end = runs.T
    counts = -(-(end - first) // _RUN)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(first, counts) + number * _RUN
    return np.stack([first, np.minimum(first + _RUN, np.repeat(end, counts)) - 1], axis=1)


_ALL = AuditOptions()


@finishing()
def run_audit(
    engine: Engine,
    paths: Iterable[str],
    properties: Mapping[str, str],
    options: AuditOptions = _ALL,
) -> Report:
    """Audit the spools at these paths (globs, too) against Kafka. `properties` are librdkafka's.

    The order of the reads lets it run beside a live daemon without calling a message lost that is in flight:
    first the ends of the spools, then the daemon's outcome of each message, last the records of Kafka (the
    engine takes the offsets when it plans the query). Messages stored after the first read are left out.

    The report names the ranges that the disk cannot read; the audit skips them. Raises NoSpool, Unreachable,
    BadProperty, JobFailed.
    """
    known, spools = list_topics(properties), _Spools.plan(paths)
    topics = spools.topics() if options.topics is None else set(options.topics)
    in_kafka = sorted(known.keys() & topics)
    with engine.working():
        routes = spools.routes(known, options)
        content = _WHOLE if options.unstamped else _HASHED
        more = [column for name, column in _FOR.items() if name in options.by]
        everything = spools.read(engine, routes, [*content, *more])
        # Before the records: what is committed in between is then in both, and so in Kafka once.
        told = Told(spools.discarded(engine), spools.backlog(engine), _withheld(engine, properties, in_kafka))
        records = [*_RECORDS, *(("key", *_WHOLE) if options.unstamped else (*_HASHED, REPLAYED[0]))]
        kafka, read_by = engine.records(properties, in_kafka, records)
        starts = find_starts(properties, in_kafka)
        # All that took time is done: the engine plans what it reads next.
        spools = spools.left()
        table = engine.table(spools.ranges())
        stored = _seen(everything, table)
        if options.unstamped:
            kafka = stamp(stored, kafka, told=told)
        gone, by = _dropped(engine, starts), options.by
        matched = match(stored, kafka, told=told, spools=table, dropped=gone, by=by)
        if options.topics is not None:
            # Behind that: a record in one of them may be of a message that was stored for another topic.
            matched = matched.where(f.col("topic").isNull() | f.col("topic").isin(*options.topics))
        rows = engine.collect(summarise(matched, by))
        # A message has a topic; a row for a range that the disk cannot read has none.
        messages = [row for row in rows if row["topic"] is not None]
        unread = _name_unread(engine, everything) if len(messages) < len(rows) else []
    # Kafka may have dropped more while it was read.
    dropped = count_dropped(properties, in_kafka)
    counted_rows = bound_expired(map(_shown, messages), offsets_of(starts))
    _refuse_in_doubt(counted_rows, offsets_of(starts), dropped)
    report = make_report(spools.plans, counted_rows, dropped, by, whole=options.topics is None)
    if report.unreadable and spools.begins() != spools.left().begins():
        raise SegmentGone(
            "bruce removed segments while the audit ran, and what they had is not known; start it again"
        )
    return replace(report, read_by=read_by, unread=unread)


def _shown(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a report: with its hour as text, if it has one."""
    return row if row.get("hour") is None else {**row, "hour": show_hour(row["hour"])}


def bound_expired(rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rows of `summarise`, with at most as many expired messages of a topic as Kafka has dropped.

    Those beyond are lost; as it cannot be told which, they are taken from the rows with the latest messages.
    """
    found = list(map(dict, rows))
    beyond: Counter[str] = Counter()
    for row in found:
        beyond[row["topic"]] += row["expired"]
    beyond.subtract(dropped)
    for row in sorted(found, key=lambda row: row["last_expired"] or 0, reverse=True):
        moved = max(0, min(row["expired"], beyond[row["topic"]]))
        beyond[row["topic"]] -= moved
        row["expired"] -= moved
        row["lost"] += moved
    return found


def _refuse_in_doubt(
    rows: Iterable[Mapping[str, Any]], before: Mapping[str, int], after: Mapping[str, int]
) -> None:
    """Raise JobFailed if what Kafka dropped during the audit, by topic, may be all that seems lost of it."""
    lost: Counter[str] = Counter()
    for row in rows:
        lost[row["topic"]] += row["lost"]
    for topic, count in lost.items():
        dropped = after.get(topic, 0) - before.get(topic, 0)
        if 0 < count <= dropped:
            raise JobFailed(
                f"Kafka dropped {counted(dropped, 'record')} of {topic} while the audit read them, and "
                f"{counted(count, 'message')} may have been among them: start it again"
            )


def _seen(everything: DataFrame, spools: DataFrame) -> DataFrame:
    """The messages that were stored when the spools were planned, and what could not be read."""
    unread, ends = f.col(UNREAD[0]).isNotNull(), f.broadcast(spools.select("spool", "end"))
    seen = everything.join(ends, "spool", "left").where(unread | (f.col("sequence") < f.col("end")))
    return seen.drop("end")


def _dropped(engine: Engine, starts: Sequence[Start]) -> Dropped | None:
    """How old the records are that Kafka has dropped; None: it has all."""
    ages: dict[str, int] = {}
    places: dict[tuple[str, str], int] = {}
    for one in starts:
        until = _ANY_AGE if one.is_empty else one.timestamp_ms
        if until is not None:
            ages[one.topic] = max(until, ages.get(one.topic, until))
        if one.spool:
            place = one.topic, one.spool
            places[place] = max(one.sequence, places.get(place, 0))
    if not starts:
        return None
    return Dropped(
        engine.table(_table(AGES, list(ages.items()))),
        engine.table(_table(PLACES, [(*place, until) for place, until in places.items()])),
    )


def _withheld(engine: Engine, properties: Mapping[str, str], topics: Sequence[str]) -> DataFrame | None:
    """The messages that are in Kafka behind a transaction that is open."""
    ranges = plan_withheld(properties, topics)
    if not ranges:
        return None
    found = engine.withheld(properties, ranges).where(f.col("bruce_sequence").isNotNull())
    return found.select(f.col("bruce_spool").alias("spool"), f.col("bruce_sequence").alias("sequence"))


def _name_unread(engine: Engine, rows: DataFrame) -> list[str]:
    """The ranges that the disk cannot read; reads everything again, so it is called only if there are any."""
    found = engine.collect(rows.select(UNREAD[0]).distinct())
    return sorted(row[UNREAD[0]] for row in found if row[UNREAD[0]] is not None)


def _table(schema: pa.Schema, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(list(map(pa.array, columns, schema.types)), schema)
