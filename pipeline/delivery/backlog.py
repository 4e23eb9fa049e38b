"""The messages of leased spools that a drain delivers, and in which segments they are.

Footers say which topics a segment has and how often, so a segment that is to be delivered whole is read once,
to deliver it. Of the others, which are partly delivered or have no complete footer yet, a job first counts
the topics. Nothing is read of segments without such a message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.delivery.choice import Runs
from pipeline.delivery.lease import DeliveryLease
from pipeline.delivery.route import undelivered
from pipeline.delivery.route_plan import read_segments, recover
from pipeline.delivery.sending import DELIVERED
from pipeline.job import explained
from pipeline.source.outcomes import read_outcomes
from pipeline.source.plan import SpoolPlan, plan_spool
from pipeline.source.schema import SCHEMA, UNREAD
from pipeline.source.segments import topic_name
from spool.index.log_end import has_unlisted, named_topics

Places = Mapping[str, list[int]]
"""By spool, the first sequence number of each of its segments that counts."""
_COUNTED = ("spool", "sequence", "topic")


@dataclass(frozen=True)
class Backlog:
    """The undelivered messages of some spools."""

    directories: list[str]
    runs: Mapping[str, Runs]
    """By spool."""
    segments: Places
    """Those that hold any of it."""
    by_footer: Counter[str]
    """Messages by topic in segments that hold nothing else, and whose footers name all topics."""
    others: Places
    """The other segments that hold any."""
    unread: list[str]
    """Segments whose headers the disk cannot read, and the error: it is not known what they hold."""

    def __len__(self) -> int:
        return sum(map(len, self.runs.values()))

    def count(self, session: SparkSession) -> Counter[str]:
        """Messages by topic. Raises JobFailed."""
        topics = Counter(self.by_footer)
        if any(self.others.values()):
            rows = self._read(session, _COUNTED, self.others).where(f.col(UNREAD.name).isNull())
            with explained():
                found = rows.groupBy("topic").agg(f.count("*").alias("n")).collect()
            topics.update({row.topic: int(row.n) for row in found})
        return topics

    def read(self, session: SparkSession) -> DataFrame:
        """The messages, with the columns for routing and delivery, as far as the disk gives them."""
        return self._read(session, DELIVERED, self.segments).where(f.col(UNREAD.name).isNull())

    def name_unread(self, session: SparkSession) -> list[str]:
        """The ranges that the disk cannot read, beside `unread`; reads all again. Raises JobFailed."""
        column = UNREAD.name
        rows = self._read(session, _COUNTED, self.segments).where(f.col(column).isNotNull())
        with explained():
            return sorted(row[0] for row in rows.select(column).distinct().collect())

    def _read(self, session: SparkSession, columns: Iterable[str], segments: Places) -> DataFrame:
        schema = StructType([*(SCHEMA[name] for name in columns), UNREAD])
        reader = session.read.format("bruce").schema(schema).option("segments", json.dumps(segments))
        return undelivered(reader.load(self.directories), self.runs)


def read_backlog(leases: Iterable[DeliveryLease], options: DispatchOptions) -> Backlog:
    """The undelivered messages of leased spools. Raises Unreachable, JobFailed."""
    directories: list[str] = []
    runs: dict[str, Runs] = {}
    segments: dict[str, list[int]] = {}
    others: dict[str, list[int]] = {}
    by_footer: Counter[str] = Counter()
    unread: list[str] = []
    for lease in leases:
        plan, spool = plan_spool(lease.layout, skip_read_errors=True), lease.spool.hex()
        directories.append(plan.directory)
        runs[spool] = _open_runs(lease, plan, options)
        segments[spool], others[spool] = _place(plan, runs[spool], by_footer)
        unread += [f"{one.file.location}: {one.file.error}" for one in plan.damaged if one.file.error]
    return Backlog(directories, runs, segments, by_footer, others, unread)


def open_runs(lease: DeliveryLease, options: DispatchOptions) -> Runs:
    """The undelivered messages of a leased spool. Raises Unreachable, JobFailed."""
    return _open_runs(lease, plan_spool(lease.layout, skip_read_errors=True), options)


def _open_runs(lease: DeliveryLease, plan: SpoolPlan, options: DispatchOptions) -> Runs:
    runs = Runs.of(read_outcomes(plan).backlog, lease.end)
    if options.mode != "exactly_once":
        return runs
    return runs.without(recover(options, lease, read_segments(lease.layout)))


def _place(plan: SpoolPlan, runs: Runs, by_footer: Counter[str]) -> tuple[list[int], list[int]]:
    """The segments that hold any of `runs`, and those of them whose topics are not added to `by_footer`."""
    bounds = np.array(plan.runs, np.int64).reshape(-1, 2)
    counts = runs.count_below(bounds[:, 1]) - runs.count_below(bounds[:, 0])
    wholly = counts == bounds[:, 1] - bounds[:, 0]
    held, others = [], []
    for at in np.flatnonzero(counts).tolist():
        part, footer = plan.parts[at], plan.segments[at].footer
        held.append(part.first_sequence)
        if footer is not None and wholly[at] and not has_unlisted(footer):
            by_footer.update({topic_name(name): count for name, count in named_topics(footer)})
        else:
            others.append(part.first_sequence)
    return held, others
