"""Joins the archive to the world: what is new in the spools, written where Spark can write, once.

How far each spool has been archived stands in the archive itself (`pipeline.archive_log`). A job reads from
there to the committed watermark that it finds when it starts, so it may run beside a live daemon, with or
without Kafka, and again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from threading import Event

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.archive import READ, gather, shelve
from pipeline.archive_files import write_staged
from pipeline.archive_log import ArchiveLog
from pipeline.compaction import compact_files
from pipeline.errors import JobFailed
from pipeline.failure import explained
from pipeline.fleet import plan_spools
from pipeline.headless import Headless
from pipeline.plan import SpoolPlan
from pipeline.remote import shown
from pipeline.store import Store

VERSION = 1
EVERY_S = 10.0
"""Between two looks at the spools. Each makes a file a topic: fewer seconds, smaller files."""
COMPACT_AFTER = 100
"""Looks that found something, from one compaction to the next."""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What one job added, as JSON has it."""

    archive: str
    topics: Mapping[str, int]
    """Messages by topic, in order."""
    files: int
    unreadable: int
    """Messages that are stored according to the headers of the segments, and in no good frame."""
    missed: int
    """Messages that left a spool after an earlier job and before this one."""
    spools: Mapping[str, int]
    """By uuid, how far each is archived: the first sequence number that is not."""
    merged: int = 0
    """Small files that went into larger ones."""
    damaged: Sequence[str] = ()
    """Segments behind what was archived before whose headers are damaged: nothing of them is archived."""

    @property
    def messages(self) -> int:
        """Of all topics."""
        return sum(self.topics.values())

    @property
    def sound(self) -> bool:
        """Nothing is missing in the archive that should be there."""
        return not (self.unreadable or self.missed or self.damaged)

    def as_json(self) -> dict[str, object]:
        """The report, its version first."""
        return {"version": VERSION, "messages": self.messages, **asdict(self)}

    def sentence(self) -> str:
        """The outcome, for people."""
        bad = f"; {self.unreadable:,} were unreadable in the spool" if self.unreadable else ""
        bad += f"; {self.missed:,} had left the spool before they were archived" if self.missed else ""
        bad += "".join(f"; the header of {path} is damaged" for path in self.damaged)
        merged = f"; {self.merged:,} small files merged" if self.merged else ""
        return (
            f"{self.messages:,} new messages of {len(self.topics):,} topics went into {self.files:,} files "
            f"of {self.archive}{bad}{merged}."
        )


def run_archive(
    session: SparkSession, paths: Iterable[str], target: str, *, compact: bool = False
) -> ArchiveReport:
    """Archive what is new in the spools at these paths (globs, too) into the directory `target`.

    `compact` then merges small files. Raises NoSpool, JobFailed.
    """
    plans, damaged = plan_each(paths)
    with explained():
        store = Store(session, target)
        log = ArchiveLog(store)
        before = log.newest.spools
        new = [New(plan, *before.get(plan.spool, (0, None))) for plan in plans]
        topics, files = _add(session, store, log, [one for one in new if one.messages])
        merged = compact_files(session, store, log) if compact else 0
    known = {spool: first for spool, (first, _) in before.items()}
    damaged = [one for one in damaged if one.file.first_sequence >= known.get(one.file.spool or "", 0)]
    stored = sum(one.messages for one in new) + sum(one.messages for one in damaged)
    missed = sum(one.missed for one in new)
    spools = {spool: first for spool, (first, _) in log.newest.spools.items()}
    places = [one.file.place for one in damaged]
    unreadable = stored - sum(topics.values())
    return ArchiveReport(store.address, topics, files, unreadable, missed, spools, merged, places)


def follow_archive(
    session: SparkSession, paths: Sequence[str], target: str, stop: Event, *, compact: bool = False
) -> Iterator[ArchiveReport]:
    """`run_archive` again and again until `stop` is set, with a report of each time that something was new.

    `compact` merges small files now and then. New spools that a glob finds are taken in. Raises what
    `run_archive` does.
    """
    since, told = 0, set[str]()
    while not stop.is_set():
        merge = compact and since >= COMPACT_AFTER
        report = run_archive(session, paths, target, compact=merge)
        since = 0 if merge else since + bool(report.files)
        # A damaged header stays so: once is enough, as it is for what can be counted behind it.
        if report.messages or report.missed or report.merged or not told.issuperset(report.damaged):
            yield report
        told |= set(report.damaged)
        stop.wait(EVERY_S)


def plan_each(paths: Iterable[str]) -> tuple[list[SpoolPlan], list[Headless]]:
    """A plan of each spool that holds something that can be read, and what has a damaged header.

    Raises NoSpool, and JobFailed for copies of one spool.
    """
    found: dict[str, SpoolPlan] = {}
    damaged: list[Headless] = []
    for plan in plan_spools(paths):
        damaged += plan.damaged
        if plan.spool in found:
            both = " and ".join(shown(directory_of(one)) for one in (found[plan.spool], plan))
            raise JobFailed(f"{both} are copies of one spool; name one of them")
        if plan.spool:
            found[plan.spool] = plan
    return list(found.values()), damaged


def directory_of(plan: SpoolPlan) -> str:
    """Where a spool is, or the address that it was read from."""
    return plan.parts[0].directory


@dataclass(frozen=True, slots=True)
class New:
    """What of a spool is not archived yet."""

    plan: SpoolPlan
    first: int
    stored: int | None
    """What the spool had stored before `first`, since it began; None when nothing of it was archived yet."""

    @property
    def mark(self) -> tuple[int, int]:
        """Where the next job begins, and what the spool had stored by then."""
        return self.plan.next_sequence, self._gone + self.plan.stored

    @property
    def missed(self) -> int:
        """How many were behind those archived, and are gone."""
        return 0 if self.stored is None else max(self._gone - self.stored, 0)

    @property
    def _gone(self) -> int:
        """What was stored in segments that are gone: the first one that is left has the total."""
        return int(self.plan.segments[0].header["stored"])

    @property
    def messages(self) -> int:
        """How many, by what the headers of the segments say."""
        return sum(max(end - max(start, self.first), 0) for start, end in self.plan.runs)

    @property
    def rows(self) -> Column:
        """Which rows they are."""
        sequence = f.col("sequence")
        return (
            (f.col("spool") == self.plan.spool)
            & (sequence >= self.first)
            & (sequence < self.plan.next_sequence)
        )


def _add(
    session: SparkSession, store: Store, log: ArchiveLog, new: Sequence[New]
) -> tuple[Mapping[str, int], int]:
    """Add what is new; returns the messages by topic, and how many files they made."""
    if not new:
        return {}, 0
    staging = log.new_staging()
    written = write_staged(gather(shelve(_read(session, new))), store, staging)
    log.commit({one.plan.spool: one.mark for one in new}, staging, written.moves, ())
    return written.topics, len(written.moves)


def _read(session: SparkSession, new: Sequence[New]) -> DataFrame:
    """The messages that are new; of a spool archived in part the source does not open what is old."""
    begun = [one for one in new if one.first]
    fresh = [one for one in new if not one.first]
    frames = [_load(session, [one], first=one.first) for one in begun]
    if fresh:
        frames.append(_load(session, fresh))
    return reduce(DataFrame.unionByName, frames)


def _load(session: SparkSession, new: Sequence[New], first: int = 0) -> DataFrame:
    directories = [directory_of(one.plan) for one in new]
    rows = reduce(or_, [one.rows for one in new])
    source = session.read.format("bruce").option("fromSequence", first).schema(READ)
    return source.load(directories).where(rows)
