"""An archive: Parquet files by topic and day, which a job adds new messages to.

    ARCHIVE/topic=orders/date=2026-11-21/part-....zstd.parquet

One row for each message, with the columns of `fields.ARCHIVED`; `date` is the day it was received, in UTC. A
topic name that Kafka does not allow (its rules are TOPIC) is in `bad_topic`, and its directory is `topic=~`.
Nothing of a message is changed: key, value, partition key and timestamp_ms are what its sender wrote.

A job reads from the end of the newest commit to the committed watermark that it finds when it starts, so it
may run beside a live daemon, with or without Kafka, and again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Event

import pyarrow as pa

from pipeline.archive.files import Files, choose_bins
from pipeline.archive.log import Log
from pipeline.engine import Column, DataFrame, Engine, f
from pipeline.errors import ArchiveConflict, JobFailed, finishing
from pipeline.source.fields import NO_TOPIC, TAKEN_OVER
from pipeline.source.plan import DamagedSegment, SpoolPlan, plan_spools, refuse_copies
from spool.errors import SpoolError
from spool.words import counted

TOPIC = r"^[a-zA-Z0-9._-]{1,249}\z"
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name of a folder `topic=...` that every reader takes for one of rows without a topic."""
VERSION = 1
COMPACT_AFTER = 100
"""Scans that found something, from one compaction to the next."""
READ = (*TAKEN_OVER, "topic")
"""The columns of a spool that `shelve` needs."""
_RANGES = pa.schema([("spool", pa.string()), ("first", pa.int64()), ("end", pa.int64())])


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """The additions of one job, as in its JSON."""

    archive: str
    topics: Mapping[str, int]
    """Messages by topic, in order."""
    files: int
    unreadable: int
    """Messages that the headers of the segments count, and that are in no good frame."""
    missed: int
    """Messages that left a spool after an earlier job and before this one."""
    spools: Mapping[str, int]
    """By uuid, how far each is archived: the first sequence number that is not."""
    merged: int = 0
    """Small files that went into larger ones."""
    damaged: Sequence[str] = ()
    """Segments after the last commit whose headers are damaged: nothing of them is archived."""

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
        merged = f"; {counted(self.merged, 'small file')} merged" if self.merged else ""
        return (
            f"{counted(self.messages, 'new message')} of {counted(len(self.topics), 'topic')} went into "
            f"{counted(self.files, 'file')} of {self.archive}{bad}{merged}."
        )


@finishing()
def run_archive(
    engine: Engine, files: Files, paths: Iterable[str], *, compact: bool = False
) -> ArchiveReport:
    """Archive what is new in the spools at these paths (globs, too) among these files.

    `compact` then merges small files. Raises NoSpool, JobFailed.
    """
    plans, damaged = _plan_each(paths)
    with engine.working(), _written_to(files.address):
        log = files.open()
        before = log.newest.spools
        new = [_New(plan, *before.get(plan.spool, (0, None))) for plan in plans]
        topics, written = _add(engine, files, log, [one for one in new if one.messages])
        merged = _compact_files(files, log) if compact else 0
    known = {spool: first for spool, (first, _) in before.items()}
    damaged = [one for one in damaged if one.file.first_sequence >= known.get(one.file.spool or "", 0)]
    stored = sum(one.messages for one in new) + sum(one.messages for one in damaged)
    missed = sum(one.missed for one in new)
    spools = {spool: first for spool, (first, _) in log.newest.spools.items()}
    places = [one.file.location for one in damaged]
    unreadable = stored - sum(topics.values())
    return ArchiveReport(files.address, topics, written, unreadable, missed, spools, merged, places)


def follow_archive(
    engine: Engine, files: Files, paths: Sequence[str], stop: Event, *, compact: bool = False
) -> Iterator[ArchiveReport]:
    """Call `run_archive` until `stop` is set; yields a report each time that it found something new.

    `compact` merges small files now and then. New spools that a glob finds are taken in. Raises what
    `run_archive` does.
    """
    since, told, outrun = 0, set[str](), False
    while not stop.is_set():
        merge = compact and since >= COMPACT_AFTER
        try:
            report = run_archive(engine, files, paths, compact=merge)
        except ArchiveConflict:
            # Such as of a program that rewrites files of a table; twice in a row it is another of our jobs.
            if outrun:
                raise
            outrun = True
            continue
        outrun = False
        since = 0 if merge else since + bool(report.files)
        # A damaged header stays damaged: report it once, as well as the messages counted behind it.
        if report.messages or report.missed or report.merged or not told.issuperset(report.damaged):
            yield report
        told |= set(report.damaged)
        stop.wait(files.every_s)


@contextmanager
def _written_to(address: str) -> Iterator[None]:
    """Raise JobFailed for what the system refuses: a full disk is nothing wrong with the spools."""
    try:
        yield
    except SpoolError:
        raise
    except OSError as error:
        raise JobFailed(f"{address} cannot be used: {error.strerror or error}; nothing is lost") from error


def _plan_each(paths: Iterable[str]) -> tuple[list[SpoolPlan], list[DamagedSegment]]:
    """A plan of each spool that holds something readable, and the segments with damaged headers.

    Raises NoSpool, and JobFailed for copies of one spool.
    """
    plans = list(plan_spools(paths))
    refuse_copies(plans)
    return [plan for plan in plans if plan.spool], [one for plan in plans for one in plan.damaged]


@dataclass(frozen=True, slots=True)
class _New:
    """The part of a spool that is not archived yet."""

    plan: SpoolPlan
    first: int
    stored: int | None
    """Messages that the spool had stored before `first`, since it began; None: none is archived yet."""

    @property
    def mark(self) -> tuple[int, int]:
        """The sequence number at which the next job begins, and how many the spool had stored by then."""
        return self.plan.next_sequence, self._gone + self.plan.stored

    @property
    def missed(self) -> int:
        """How many came after those archived, and are gone."""
        return 0 if self.stored is None else max(self._gone - self.stored, 0)

    @property
    def _gone(self) -> int:
        """Messages in segments that are gone: the first one that is left has the total."""
        return int(self.plan.segments[0].header["stored"])

    @property
    def messages(self) -> int:
        """How many, by the headers of the segments."""
        return sum(max(end - max(start, self.first), 0) for start, end in self.plan.runs)


def _add(engine: Engine, files: Files, log: Log, new: Sequence[_New]) -> tuple[Mapping[str, int], int]:
    """Add what is new; returns the messages by topic, and how many files they made."""
    if not new:
        return {}, 0
    staging = log.new_staging()
    written = files.write(shelve(_read(engine, new)), staging)
    log.commit({one.plan.spool: one.mark for one in new}, staging, written.moves, ())
    return written.topics, len(written.moves)


def _read(engine: Engine, new: Sequence[_New]) -> DataFrame:
    """The new messages; the segments that are already archived stay closed.

    A chain of conditions, one a spool, would be more than the JVM takes for some hundred.
    """
    begun = {one.plan.spool: one.first for one in new if one.first}
    rows = engine.spools([one.plan.directory for one in new], READ, begun=begun)
    ranges = [(one.plan.spool, one.first, one.plan.next_sequence) for one in new]
    columns = map(pa.array, zip(*ranges, strict=True), _RANGES.types)
    table = engine.table(pa.table(list(columns), _RANGES))
    fresh = (f.col("sequence") >= f.col("first")) & (f.col("sequence") < f.col("end"))
    return rows.join(f.broadcast(table), "spool").where(fresh).drop("first", "end")


def shelve(stored: DataFrame) -> DataFrame:
    """The rows of an archive, from stored messages with the columns of READ."""
    fits: Column = f.col("topic").rlike(TOPIC) & (f.col("topic") != _NULL)
    return stored.select(
        *TAKEN_OVER,
        f.when(~fits, f.col("topic")).alias("bad_topic"),
        f.when(fits, f.col("topic")).otherwise(NO_TOPIC).alias("topic"),
        f.to_date("received_at").alias("date"),
    )


def _compact_files(files: Files, log: Log) -> int:
    """Merge the small files of each directory; returns how many there were."""
    bins = choose_bins(files.visible()) if log.newest.number else []
    names = [[file.name for file in chosen] for chosen in bins]
    small = [name for chosen in names for name in chosen]
    if not small:
        return 0
    staging = log.new_staging()
    written = files.merge(names, staging)
    if (after := sum(written.topics.values())) != (count := files.count(small)):
        raise JobFailed(f"{files.address}: {count} rows became {after}; nothing was changed")
    log.commit({}, staging, written.moves, small)
    return len(small)
