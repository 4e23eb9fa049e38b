"""The findings of an audit, and their JSON.

    {"version": 1,
     "sound": true                       nothing lost, altered or unreadable, no header damaged, all read
     "spools": [{"spool": uuid, "directory": path, "stored": n, "unreadable": n,
                 "damaged": [path, ...]}],  segments whose headers are damaged
     "topics": [{"topic": name, COUNT: n, ...}],
     "total": {COUNT: n, ...},
     "by": [DIMENSION, ...],             partition, hour, host, as was asked for
     "groups": [{"topic": name, DIMENSION: value, ..., COUNT: n, ...}],
     "dropped": {topic: n},              offsets that Kafka had and has no more, where there are any
     "read_by": format,                  kafka: by Spark's own connector; bruce-kafka: by bruce's source
     "unread": [text, ...]}              segments that the disk cannot read, and the error

COUNT: stored, once, duplicated, discarded, backlog, withheld, expired, lost, altered, reordered, foreign,
unreadable, as `pipeline.audit` defines them. `unreadable` of a spool: messages that the headers of the
segments count, and that are in no good frame that could be read; null for an audit of some topics only. Those
of them that Kafka has are `unreadable` of their topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.audit import (
    AGES,
    COUNTS,
    PLACES,
    SPOOLS,
    UNREADABLE,
    Dropped,
    Told,
    match,
    stamp,
    summarise,
)
from pipeline.job import explained
from pipeline.kafka.ends import Start, count_dropped, find_starts, offsets_of, plan_withheld, show_ranges
from pipeline.kafka.reader import CONNECTOR, OURS, list_topics, read_kafka
from pipeline.source.outcomes import Outcomes, plan_with_outcomes
from pipeline.source.plan import SpoolPlan
from pipeline.source.remote import shown
from pipeline.source.schema import SCHEMA, UNREAD
from spool.words import agreeing, counted

VERSION = 1

_COLUMNS = ("spool", "sequence", "topic", "partition_key", "timestamp_ms", "key", "value", "headers")
_FOR = {"hour": "received_at", "host": "host"}
"""The column that a dimension needs beside them."""
_SAID = ("duplicated", "discarded", "backlog", "withheld", "expired")
_EXPLAINED = {
    "discarded": "the daemon gave them up, and said why: see `brucectl discards`",
    "withheld": "in Kafka, behind a transaction that is open; who reads what is committed gets them later",
    "expired": "the marks say that they were delivered, and Kafka has dropped records of their age since",
    "foreign": "records of other producers, or of messages whose segments are gone",
    UNREADABLE: "damage or the disk hides them in the spool; those in Kafka are told by their headers",
}
_ANY_AGE = (1 << 63) - 1
_RUN = 1_000_000
"""Sequence numbers of one row, at most, before they are told apart."""


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """One spool that was read."""

    spool: str
    directory: str
    stored: int
    unreadable: int | None
    damaged: Sequence[str] = ()
    """Segments whose headers are damaged; their messages are unreadable, as far as they can be counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one audit."""

    spools: list[SpoolReport]
    topics: Mapping[str, Mapping[str, int]]
    """By name, in order: each of the COUNTS."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By topic, offsets that Kafka had and has no more: lost messages may have been there."""

    by: tuple[str, ...] = ()
    """Dimensions of `groups`, beside the topic."""
    groups: Sequence[Mapping[str, Any]] = ()
    """The COUNTS of each group, in order; a dimension that is not known is None."""
    read_by: str = OURS
    """By which of Spark's formats Kafka was read (pipeline.kafka.reader)."""
    unread: Sequence[str] = ()
    """Segments that the disk cannot read, and the error."""

    @property
    def total(self) -> dict[str, int]:
        """The COUNTS over all topics."""
        return {name: sum(counts[name] for counts in self.topics.values()) for name in COUNTS}

    @property
    def sound(self) -> bool:
        """Nothing is lost, altered or unreadable, no header is damaged, and the disk read everything."""
        total = self.total
        bad = any(spool.unreadable or spool.damaged for spool in self.spools)
        return not (total["lost"] or total["altered"] or bad or self.unread)

    def as_json(self) -> dict[str, object]:
        """The document above."""
        return {
            "version": VERSION,
            "sound": self.sound,
            "spools": [asdict(spool) for spool in self.spools],
            "topics": [{"topic": topic, **counts} for topic, counts in self.topics.items()],
            "total": self.total,
            "by": list(self.by),
            "groups": list(map(dict, self.groups)),
            "dropped": dict(self.dropped),
            "read_by": self.read_by,
            "unread": list(self.unread),
        }

    def write_parquet(self, path: str) -> None:
        """The groups as a table: topic, the dimensions, the COUNTS. Raises OSError."""
        kinds = {"partition": pa.int32(), **dict.fromkeys(COUNTS, pa.int64())}
        columns = [(name, kinds.get(name, pa.string())) for name in ("topic", *self.by, *COUNTS)]
        parquet.write_table(pa.Table.from_pylist(list(map(dict, self.groups)), pa.schema(columns)), path)

    @property
    def unreadable(self) -> int:
        """Messages that the spools have and do not give, those that are in Kafka included."""
        return max(self.total[UNREADABLE], sum(spool.unreadable or 0 for spool in self.spools))

    def rows(self) -> list[tuple[str, int]]:
        """Messages by outcome, each of them in one row; the last row is their sum."""
        total, known = self.total, self.total[UNREADABLE]
        rows = [
            ("in Kafka once", total["once"]),
            ("in Kafka more than once", total["duplicated"]),
            ("discarded, with a reason", total["discarded"]),
            ("backlog, not delivered yet", total["backlog"]),
            ("in Kafka, behind a transaction that is open", total["withheld"]),
            ("delivered, and dropped by Kafka since", total["expired"]),
            ("lost", total["lost"]),
            ("unreadable in the spool, in Kafka", known),
            ("unreadable in the spool, not in Kafka", self.unreadable - known),
        ]
        return [*rows, ("stored in all", sum(count for _, count in rows))]

    def explanations(self) -> list[str]:
        """A line for each count that is neither delivered nor lost, if it is not zero."""
        total = {**self.total, UNREADABLE: self.unreadable}
        return [f"{name}: {text}" for name, text in _EXPLAINED.items() if total[name]]

    def sentence(self) -> str:
        """The outcome, for people."""
        total = self.total
        delivered = total["once"] + total["duplicated"] + total[UNREADABLE]
        stored = total["stored"] + self.unreadable
        found = f"{delivered:,} of {agreeing(stored, 'stored message')} in Kafka"
        bad = [f"{total[name]:,} {name}" for name in ("lost", "altered") if total[name]]
        if self.unreadable:
            there = f" ({total[UNREADABLE]:,} of them in Kafka)" if total[UNREADABLE] else ""
            bad.append(f"{self.unreadable:,} unreadable in the spool{there}")
        bad += [f"the header of {path} is damaged" for spool in self.spools for path in spool.damaged]
        bad += [f"the disk gives an error for {place}" for place in self.unread]
        said = [f"{total[name]:,} {name}" for name in _SAID if total[name]]
        verdict = ", ".join(bad) if bad else "nothing is missing"
        gone = sum(self.dropped.values()) if total["lost"] else 0
        hint = f" Kafka itself has dropped {counted(gone, 'record')} of these topics since." if gone else ""
        reader = " Kafka was read by Spark's own connector." if self.read_by == CONNECTOR else ""
        return f"{found}: {verdict}{' (' + ', '.join(said) + ')' if said else ''}.{hint}{reader}"


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

    `properties` are librdkafka's. `by`: of `pipeline.audit.DIMENSIONS`. `unstamped`: identify records
    by their content, whatever their headers say.

    The order of the reads lets it run beside a live daemon without calling a message lost that is in flight:
    first the ends of the spools, then the daemon's outcome of each message, last the records of Kafka (Spark
    takes the offsets when it plans the query). Messages stored after the first read are left out.

    The report names the ranges that the disk cannot read; the audit skips them. Raises NoSpool, Unreachable,
    BadProperty, JobFailed.
    """
    known = list_topics(properties)
    told_by = list(plan_with_outcomes(paths))
    plans = [plan for plan, _outcomes in told_by]
    outcomes = {plan.spool: found for plan, found in told_by if found}
    whole = topics is None
    if topics is None:
        topics = sorted(set().union(*(plan.topics() for plan in plans)))
    in_kafka = sorted(known.keys() & set(topics))
    with explained():
        unread = f.col(UNREAD.name).isNotNull()
        spools = _spools(session, plans, outcomes)
        everything = _read(session, plans, by)
        stored = _seen(everything, spools, unread)
        if not whole:
            stored = stored.where(unread | f.col("topic").isin(*topics))
        # Before the records: what is committed in between is then in both, and so in Kafka once.
        withheld = _withheld(session, properties, in_kafka)
        kafka, read_by = read_kafka(session, properties, in_kafka)
        starts = find_starts(properties, in_kafka)
        told = Told(_discarded(session, outcomes), _backlog(session, outcomes), withheld)
        if unstamped:
            kafka = stamp(stored, kafka, told=told)
        gone = _dropped(session, starts)
        rows = summarise(match(stored, kafka, told=told, spools=spools, dropped=gone, by=by), by).collect()
        # A message has a topic; a row for a range that the disk cannot read has none.
        messages = [row for row in rows if row.topic is not None]
        lacking = _name_unread(everything) if len(messages) < len(rows) else []
    # Kafka may have dropped more while it was read.
    dropped = count_dropped(properties, in_kafka)
    counted_rows = bound_expired(messages, offsets_of(starts))
    report = _report(plans, counted_rows, dropped, by, whole=whole)
    return replace(report, read_by=read_by, unread=lacking)


def bound_expired(rows: Iterable[Row], dropped: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rows of `summarise`, with at most as many expired messages of a topic as Kafka has dropped.

    Those beyond are lost; as it cannot be told which, they are taken from the rows with the latest messages.
    """
    found = [row.asDict() for row in rows]
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


def _read(session: SparkSession, plans: Sequence[SpoolPlan], by: Sequence[str]) -> DataFrame:
    """All messages of the spools, and a row for each range that the disk cannot read."""
    more = [column for name, column in _FOR.items() if name in by]
    schema = StructType([*(SCHEMA[name] for name in (*_COLUMNS, *more)), UNREAD])
    directories = [plan.directory for plan in plans]
    return session.read.format("bruce").schema(schema).load(directories)


def _spools(session: SparkSession, plans: Sequence[SpoolPlan], outcomes: Mapping[str, Outcomes]) -> DataFrame:
    """A table of SPOOLS: a chain of conditions, one a spool, is more than the JVM takes for some hundred.

    Copies of one spool have one row, or a join would double their messages.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for plan in filter(lambda plan: plan.spool, plans):
        first, end = ranges.get(plan.spool, (plan.begin, plan.next_sequence))
        ranges[plan.spool] = min(first, plan.begin), max(end, plan.next_sequence)
    rows = [(spool, *held, spool in outcomes and outcomes[spool].marked) for spool, held in ranges.items()]
    return session.createDataFrame(rows, SPOOLS)


def _seen(everything: DataFrame, spools: DataFrame, unread: Column) -> DataFrame:
    """The messages that were stored when the spools were planned, and what could not be read."""
    ends = f.broadcast(spools.select("spool", "end"))
    return (
        everything.join(ends, "spool", "left").where(unread | (f.col("sequence") < f.col("end"))).drop("end")
    )


def _dropped(session: SparkSession, starts: Sequence[Start]) -> Dropped | None:
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
        session.createDataFrame(list(ages.items()), AGES),
        session.createDataFrame([(*place, until) for place, until in places.items()], PLACES),
    )


def _withheld(
    session: SparkSession, properties: Mapping[str, str], topics: Sequence[str]
) -> DataFrame | None:
    """The messages that are in Kafka behind a transaction that is open."""
    ranges = plan_withheld(properties, topics)
    if not ranges:
        return None
    source = session.read.format(OURS).options(**properties).option("withheld", show_ranges(ranges))
    found = source.load().where(f.col("bruce_sequence").isNotNull())
    return found.select(f.col("bruce_spool").alias("spool"), f.col("bruce_sequence").alias("sequence"))


def _name_unread(rows: DataFrame) -> list[str]:
    """The ranges that the disk cannot read; reads everything again, so it is called only if there are any."""
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
    rows: Sequence[Mapping[str, Any]],
    dropped: Mapping[str, int],
    by: Sequence[str],
    *,
    whole: bool,
) -> Report:
    readable: Counter[str] = Counter()
    topics: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=itemgetter("topic")):
        readable[row["spool"]] += row["stored"]
        topics.setdefault(row["topic"], Counter()).update({name: row[name] for name in COUNTS})
    spools = [
        SpoolReport(
            plan.spool,
            shown(plan.directory),
            _messages(plan) if whole else readable[plan.spool],
            _messages(plan) - readable[plan.spool] if whole else None,
            plan.unreadable,
        )
        for plan in plans
    ]
    return Report(spools, topics, dropped, tuple(by), _groups(rows, by))


def _messages(plan: SpoolPlan) -> int:
    """How many a spool stores, by its headers and footers."""
    return plan.stored + sum(one.messages for one in plan.damaged)


def _groups(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """The counts by topic and `by`, in order, over all spools; those without a value come first."""
    groups: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        key = (row["topic"], *(row[name] for name in by))
        groups.setdefault(key, Counter()).update({name: row[name] for name in COUNTS})
    ordered = sorted(groups, key=lambda key: [(value is not None, value or 0) for value in key])
    return [dict(zip(("topic", *by), key, strict=True)) | groups[key] for key in ordered]
