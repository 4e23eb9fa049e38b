"""An archive: Parquet files by topic and day; each job adds all of its rows or none.

    ARCHIVE/topic=orders/date=2026-11-21/part-....zstd.parquet
    ARCHIVE/_bruce/commits/0000000007.json      Spark's readers pass over names that begin with _
    ARCHIVE/_bruce/staging/0000000007-.../      what a job writes, until its commit

One row for each message, with the columns of SCHEMA; `date` is the day it was received, in UTC. A topic name
that Kafka does not allow (its rules are TOPIC) is in `bad_topic`, and its directory is `topic=~`.
Nothing of a message is changed: key, value, partition key and timestamp_ms are what its sender wrote.

A job reads from the end of the newest commit to the committed watermark that it finds when it starts, so it
may run beside a live daemon, with or without Kafka, and again at any time.

A commit says how far each spool has been archived, which staged files get which names, and which files they
replace. It is one file, made by a rename: the rename makes the job durable. Then, directory by directory, the
job removes the old files and moves the new ones into place; after a kill, the next process that opens the
archive finishes these moves. So a job that is started again finds all that it did, or nothing of it, and no
message is in the archive twice at any moment. A reader that lists a directory between its old files and its
new one misses these messages.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from threading import Event
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, StringType, StructField, StructType

from pipeline.errors import JobFailed
from pipeline.job import explained
from pipeline.source.plan import DamagedSegment, SpoolPlan, plan_spools
from pipeline.source.remote import shown
from pipeline.source.schema import SCHEMA as STORED
from spool.words import counted


class Store:
    """Names are paths below the directory."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        """Raises JobFailed for an address that Hadoop does not understand."""
        # Spark has no public way to Hadoop's classes.
        context: Any = session.sparkContext
        gateway, configuration = context._gateway, context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._hadoop, self._text = gateway.jvm.org.apache.hadoop.fs, gateway.jvm.org.apache.commons.io
        how = getattr(self._hadoop, "Options$Rename")
        self._never_over = gateway.new_array(how, 1)
        self._never_over[0] = how.NONE
        try:
            path = self._hadoop.Path(directory)
            self._fs = path.getFileSystem(configuration)
            self._files = self._hadoop.FileContext.getFileContext(path.toUri(), configuration)
        except Py4JJavaError as error:
            raise JobFailed(f"{directory} cannot be used: {error.java_exception.getMessage()}") from error
        self._root = self._fs.makeQualified(path)
        self.address: str = self._root.toString()
        """With its scheme, as Spark's readers and writers take it."""

    def within(self, name: str) -> str:
        """The address of a name."""
        return f"{self.address}/{name}"

    def list(self, name: str) -> list[str]:
        """The names in a directory, in order; none when there is no such directory."""
        path = self._path(name)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def read(self, name: str) -> str:
        """A small file."""
        stream = self._fs.open(self._path(name))
        try:
            return str(self._text.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def publish(self, name: str, text: str) -> None:
        """Write a small file, all or nothing. Raises JobFailed when there is one of this name."""
        draft = self._path(f"{name}.tmp")
        stream = self._fs.create(draft, True)
        stream.write(bytearray(text.encode()))
        stream.hsync()
        stream.close()
        try:
            self._rename(draft, self._path(name))
        except Py4JJavaError as error:
            if self._fs.exists(self._path(name)):
                raise JobFailed(f"another job writes to {self.address}; start this one again") from error
            raise
        self._sync([os.path.dirname(name)])

    def move(self, source: str, target: str) -> None:
        """Give a file the name it keeps; no error when that was done before."""
        if not self._fs.exists(self._path(source)):
            return
        self._fs.mkdirs(self._path(target).getParent())
        self._rename(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; no error when it is gone."""
        self._fs.delete(self._path(name), True)

    def sync(self, names: Iterable[str]) -> None:
        """Sync files and their directories; only of a local disk, since other stores do it themselves."""
        files = list(names)
        self._sync([*files, *{os.path.dirname(name) for name in files}])

    def _sync(self, names: Iterable[str]) -> None:
        if not self.address.startswith("file:"):
            return
        directory = str(self._root.toUri().getPath())
        for name in names:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _rename(self, source: Any, target: Any) -> None:
        """Raises Py4JJavaError when there is a file of that name: this rename overwrites nothing."""
        self._files.rename(source, target, self._never_over)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._root, name) if name else self._root


TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
NO_TOPIC = "~"
_TAKEN_OVER = (
    "host",
    "spool",
    "sequence",
    "received_at",
    "created_at",
    "timestamp_ms",
    "kind",
    "partition_key",
    "to_partition",
    "key",
    "value",
    "headers",
    "uid",
    "pid",
)
PARTITIONS = ("topic", "date")

SCHEMA = StructType(
    [
        *(STORED[name] for name in _TAKEN_OVER),
        StructField("bad_topic", StringType(), True, {"comment": "A topic that Kafka could not have."}),
        STORED["topic"],
        StructField("date", DateType(), True, {"comment": "When it was received: the day in UTC."}),
    ]
)
READ = StructType([STORED[name] for name in (*_TAKEN_OVER, "topic")])
"""The columns of `format("bruce")` that `shelve` needs."""

VERSION = 1
EVERY_S = 10.0
"""Between two scans of the spools. Each makes a file a topic: fewer seconds, smaller files."""
COMPACT_AFTER = 100
"""Scans that found something, from one compaction to the next."""
SMALL_BYTES = 64 << 20
FULL_BYTES = 128 << 20
"""Of a file that was merged. Two small ones always fit, so that the next compaction finds one at most."""
_LOG_VERSION = 1
COMMITS, STAGING = "_bruce/commits", "_bruce/staging"
KEPT = 10
"""Commits that stay; the newest says all that is needed."""


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


def run_archive(
    session: SparkSession, paths: Iterable[str], target: str, *, compact: bool = False
) -> ArchiveReport:
    """Archive what is new in the spools at these paths (globs, too) into the directory `target`.

    `compact` then merges small files. Raises NoSpool, JobFailed.
    """
    plans, damaged = _plan_each(paths)
    with explained():
        store = Store(session, target)
        log = ArchiveLog(store)
        before = log.newest.spools
        new = [_New(plan, *before.get(plan.spool, (0, None))) for plan in plans]
        topics, files = _add(session, store, log, [one for one in new if one.messages])
        merged = _compact_files(session, store, log) if compact else 0
    known = {spool: first for spool, (first, _) in before.items()}
    damaged = [one for one in damaged if one.file.first_sequence >= known.get(one.file.spool or "", 0)]
    stored = sum(one.messages for one in new) + sum(one.messages for one in damaged)
    missed = sum(one.missed for one in new)
    spools = {spool: first for spool, (first, _) in log.newest.spools.items()}
    places = [one.file.location for one in damaged]
    unreadable = stored - sum(topics.values())
    return ArchiveReport(store.address, topics, files, unreadable, missed, spools, merged, places)


def follow_archive(
    session: SparkSession, paths: Sequence[str], target: str, stop: Event, *, compact: bool = False
) -> Iterator[ArchiveReport]:
    """Call `run_archive` until `stop` is set; yields a report each time that it found something new.

    `compact` merges small files now and then. _New spools that a glob finds are taken in. Raises what
    `run_archive` does.
    """
    since, told = 0, set[str]()
    while not stop.is_set():
        merge = compact and since >= COMPACT_AFTER
        report = run_archive(session, paths, target, compact=merge)
        since = 0 if merge else since + bool(report.files)
        # A damaged header stays damaged: report it once, as well as the messages counted behind it.
        if report.messages or report.missed or report.merged or not told.issuperset(report.damaged):
            yield report
        told |= set(report.damaged)
        stop.wait(EVERY_S)


def _plan_each(paths: Iterable[str]) -> tuple[list[SpoolPlan], list[DamagedSegment]]:
    """A plan of each spool that holds something readable, and the segments with damaged headers.

    Raises NoSpool, and JobFailed for copies of one spool.
    """
    found: dict[str, SpoolPlan] = {}
    damaged: list[DamagedSegment] = []
    for plan in plan_spools(paths):
        damaged += plan.damaged
        if plan.spool in found:
            both = " and ".join(shown(one.directory) for one in (found[plan.spool], plan))
            raise JobFailed(f"{both} are copies of one spool; name one of them")
        if plan.spool:
            found[plan.spool] = plan
    return list(found.values()), damaged


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


def _add(
    session: SparkSession, store: Store, log: ArchiveLog, new: Sequence[_New]
) -> tuple[Mapping[str, int], int]:
    """Add what is new; returns the messages by topic, and how many files they made."""
    if not new:
        return {}, 0
    staging = log.new_staging()
    written = _write_staged(_gather(shelve(_read(session, new))), store, staging)
    log.commit({one.plan.spool: one.mark for one in new}, staging, written.moves, ())
    return written.topics, len(written.moves)


def _read(session: SparkSession, new: Sequence[_New]) -> DataFrame:
    """The new messages; the source does not open the segments that are already archived.

    A chain of conditions, one a spool, would be more than the JVM takes for some hundred.
    """
    begun = {one.plan.spool: one.first for one in new if one.first}
    source = session.read.format("bruce").option("fromSequence", json.dumps(begun)).schema(READ)
    ranges = [(one.plan.spool, one.first, one.plan.next_sequence) for one in new]
    table = session.createDataFrame(ranges, "spool string, first long, end long")
    rows = source.load([one.plan.directory for one in new]).join(f.broadcast(table), "spool")
    fresh = (f.col("sequence") >= f.col("first")) & (f.col("sequence") < f.col("end"))
    return rows.where(fresh).drop("first", "end")


def shelve(stored: DataFrame) -> DataFrame:
    """The rows of an archive, SCHEMA, from stored messages with the columns of READ."""
    fits: Column = f.col("topic").rlike(TOPIC)
    return stored.select(
        *_TAKEN_OVER,
        f.when(~fits, f.col("topic")).alias("bad_topic"),
        f.when(fits, f.col("topic")).otherwise(NO_TOPIC).alias("topic"),
        f.to_date("received_at").alias("date"),
    )


def _gather(rows: DataFrame) -> DataFrame:
    """Distribute rows over few files, none of them too large; in order of sequence.

    Spark splits partitions that are too large for one task and joins those that are too small (`rebalance`).
    """
    together = rows.hint("rebalance", *PARTITIONS)
    return together.sortWithinPartitions(*PARTITIONS, "spool", "sequence")


def _compact_files(session: SparkSession, store: Store, log: ArchiveLog) -> int:
    """Merge the small files of each directory; returns how many there were."""
    bins = choose_bins(_list_files(session, store.address)) if log.newest.number else []
    small = [file.name for files in bins for file in files]
    if not small:
        return 0
    rows = session.read.schema(SCHEMA).option("basePath", store.address)
    before = rows.parquet(*map(store.within, small))
    staging = log.new_staging()
    written = _write_staged(_merge(before, bins), store, staging)
    if (after := sum(written.topics.values())) != (count := before.count()):
        raise JobFailed(f"{store.address}: {count} rows became {after}; nothing was changed")
    log.commit({}, staging, written.moves, small)
    return len(small)


def choose_bins(files: Iterable[File]) -> list[list[File]]:
    """The small files that become one each: of one directory, at least two, FULL_BYTES at most."""
    bins: list[list[File]] = []
    small = sorted((file for file in files if file.bytes < SMALL_BYTES), key=lambda file: file.name)
    for _, group in groupby(small, key=lambda file: file.name.rpartition("/")[0]):
        filled = 0
        chosen: list[File] = []
        for file in group:
            if filled + file.bytes > FULL_BYTES:
                bins.append(chosen)
                filled, chosen = 0, []
            chosen.append(file)
            filled += file.bytes
        bins.append(chosen)
    return [chosen for chosen in bins if len(chosen) > 1]


def _merge(rows: DataFrame, bins: list[list[File]]) -> DataFrame:
    """The same rows, those of one bin in one task, in order of sequence."""
    named = [(file.name, number) for number, files in enumerate(bins) for file in files]
    table = rows.sparkSession.createDataFrame(named, "file string, bin int")
    # The path is an encoded URI, but nothing in its last parts needs that.
    file = f.substring_index("_metadata.file_path", "/", -(len(PARTITIONS) + 1))
    together = rows.withColumn("file", file).join(f.broadcast(table), "file").repartition(len(bins), "bin")
    return together.sortWithinPartitions(*PARTITIONS, "spool", "sequence").drop("file", "bin")


@dataclass(frozen=True, slots=True)
class _Staged:
    """The files that a job wrote, and no reader sees yet."""

    moves: Sequence[tuple[str, str]]
    """Each file's name, and the one that it will have."""
    topics: Mapping[str, int]
    """Rows by topic, in order."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an archive."""

    name: str
    """Below the archive."""
    bytes: int


def _write_staged(rows: DataFrame, store: Store, staging: str) -> _Staged:
    """Write rows of SCHEMA as files below `staging`."""
    address = store.within(staging)
    rows.write.partitionBy(*PARTITIONS).option("compression", "zstd").parquet(address)
    session = rows.sparkSession
    moves = [(f"{staging}/{file.name}", file.name) for file in _list_files(session, address)]
    # Counted from the files' footers.
    counts = read_archive(session, address).groupBy("topic").count().orderBy("topic").collect()
    return _Staged(moves, {row["topic"]: row["count"] for row in counts})


def read_archive(session: SparkSession, address: str) -> DataFrame:
    """The rows of an archive."""
    return session.read.schema(SCHEMA).parquet(address)


def _list_files(session: SparkSession, address: str) -> list[File]:
    """The Parquet files below an address, in order; Spark lists many directories at a time."""
    found = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(address)
    rows = found.select("path", "length").collect()
    return sorted((File(_below(row.path), row.length) for row in rows), key=lambda file: file.name)


def _below(path: str) -> str:
    """`topic=.../date=.../name` of a file's whole address."""
    return "/".join(path.split("/")[-len(PARTITIONS) - 1 :])


@dataclass(frozen=True, slots=True)
class Commit:
    """One job's change."""

    number: int = 0
    spools: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By uuid: the messages below this sequence number are in the archive; and how many the spool had stored
    by then, since it began."""
    staging: str = ""
    moves: Sequence[tuple[str, str]] = ()
    """From, to."""
    replaced: Sequence[str] = ()


class ArchiveLog:
    """The commits of one archive."""

    def __init__(self, store: Store) -> None:
        """Finish the commit of a killed job. Raises JobFailed for an archive of a newer bruce."""
        self._store = store
        self.newest = self._read_newest()
        if self.newest.number:
            self._finish()

    def new_staging(self) -> str:
        """A name for a directory in which only this job writes."""
        return f"{STAGING}/{self.newest.number + 1:010d}-{uuid.uuid4().hex}"

    def commit(
        self,
        spools: Mapping[str, Sequence[int]],
        staging: str,
        moves: Sequence[tuple[str, str]],
        replaced: Sequence[str],
    ) -> None:
        """Commit. Raises JobFailed, without any change, when another job was faster."""
        known = {**self.newest.spools, **spools}
        done = Commit(self.newest.number + 1, known, staging, moves, replaced)
        self._store.sync([source for source, _ in moves])
        self._store.publish(_name(done.number), json.dumps({"version": _LOG_VERSION, **asdict(done)}))
        self.newest = done
        self._finish()

    def _finish(self) -> None:
        """Apply the newest commit; it may have been applied in part before."""
        done = self.newest
        if done.staging and self._store.list(done.staging):
            old = [(os.path.dirname(name), "", name) for name in done.replaced]
            new = [(os.path.dirname(target), source, target) for source, target in done.moves]
            # Directory by directory, old files first: one at a time lacks its merged rows.
            for _, source, name in sorted(old + new):
                if source:
                    self._store.move(source, name)
                else:
                    self._store.remove(name)
            self._store.sync([target for _, target in done.moves])
        self._clear()

    def _clear(self) -> None:
        """Remove the staged files of jobs that have ended, and old commits."""
        for name in self._store.list(STAGING):
            # A higher number may be that of a running job.
            if int(name.partition("-")[0]) <= self.newest.number:
                self._store.remove(f"{STAGING}/{name}")
        for name in _committed(self._store.list(COMMITS))[:-KEPT]:
            self._store.remove(f"{COMMITS}/{name}")

    def _read_newest(self) -> Commit:
        names = _committed(self._store.list(COMMITS))
        if not names:
            return Commit()
        found = json.loads(self._store.read(f"{COMMITS}/{names[-1]}"))
        if found.pop("version") != _LOG_VERSION:
            raise JobFailed(f"{self._store.address} was written by a newer bruce")
        return Commit(**found)


def _committed(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".json")]


def _name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"
