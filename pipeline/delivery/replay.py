"""Send messages again, from spools or from an archive. No outcome is recorded: a replay may be repeated.

    stored ─► asked ─► route ─► arrange ─► deliver

Each record has a header `bruce-replay` beside its own, the time of the replay in ms since the epoch.

A replay keeps no segment from being removed: room for new messages comes first. It counts messages by segment
before it sends them, to tell how many went with segments that were removed in between: since a dry run, too,
or since the replay was interrupted. A note on disk keeps these counts:

    {"version": 1, "counted": [[spool, segment, topic, messages, first_ns, last_ns], ...]}

Each replay has one note: a dry run overwrites it, and a replay that finds none writes it. It stays when a
replay is interrupted, or leaves some, and is removed when all is sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.delivery.route_plan import plan_routes
from pipeline.delivery.sending import count_outcomes, count_refused, send
from pipeline.delivery.sink import COLUMNS, Delivery
from pipeline.job import explained
from pipeline.source.archived import read_archive
from pipeline.source.fields import NO_TOPIC
from pipeline.source.plan import find_spools
from pipeline.source.schema import SCHEMA, UNREAD
from pipeline.source.segments import topic_name
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.read.files import FOR_EVER
from spool.read.selection import TopicCount, Wanted
from spool.storage.disk import make_directory, read_text, write_file

_LAST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999, after which SQL has no times."""
_SEGMENT = ("spool", "segment", "topic")

_VERSION = 1
_MOST_BYTES = 256 << 20
"""Of a note: some million rows, one for each topic of each segment."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, or of a dry run."""

    topics: list[TopicCount]
    messages: int
    sent: int
    refused: dict[str, int]
    """Messages that Kafka will never take, by reason."""
    left: int
    """Not sent in time, unreadable, or of topics that Kafka does not have."""
    gone: int
    """Removed to make room, between being counted, by a dry run too, and being sent."""
    unknown: list[str]
    """Topics that Kafka does not have."""
    seconds: float
    unread: list[str] = field(default_factory=list)
    """Segments that the disk cannot read, and the error; their messages are in no count."""


class Counted(NamedTuple):
    """Messages of one topic in one segment, and when the first and the last of them were received."""

    spool: str
    segment: int
    topic: str
    messages: int
    first_ns: int
    last_ns: int


class Note:
    """The note of one replay."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Counted]:
        """The noted counts; none without a note, or when the file is damaged or of another release."""
        try:
            found = json.loads(read_text(self._path, _MOST_BYTES))
            return [Counted(*row) for row in found["counted"]] if found["version"] == _VERSION else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def write(self, rows: Sequence[Counted]) -> None:
        """Overwrite the note with these counts. Raises OSError."""
        make_directory(self._path.parent)
        write_file(self._path, json.dumps({"version": _VERSION, "counted": rows}).encode())

    def forget(self) -> None:
        """Remove it, once all is sent. Raises OSError."""
        self._path.unlink(missing_ok=True)


class StoredMessages:
    """The messages that some spools or archives keep."""

    def __init__(self, session: SparkSession, paths: Iterable[str], *, archive: bool) -> None:
        """Raises NoSpool."""
        self._session, self._paths = session, list(paths)
        self.layouts = [] if archive else find_spools(self._paths)
        self._archive = archive
        self.note: Note | None = None
        """The note of the counts; None: they are not noted."""

    def read(self, wanted: Wanted, columns: Sequence[str]) -> DataFrame:
        """These columns of the wanted messages, and UNREAD, for rows of ranges that the disk cannot read.

        Raises JobFailed.
        """
        # A Python source reads every column of its schema.
        names = list(dict.fromkeys([*columns, *_asked_by(wanted)]))
        stored = self._read_archives() if self._archive else self._read_spools(names)
        return stored.where(f.col(UNREAD.name).isNotNull() | asked(wanted))

    def _read_spools(self, columns: Sequence[str]) -> DataFrame:
        schema = StructType([*(SCHEMA[name] for name in columns), UNREAD])
        # A segment that is removed after the plan is counted, and ends nothing.
        reader = self._session.read.format("bruce").schema(schema).option("failOnDataLoss", "false")
        return reader.load([str(layout.directory) for layout in self.layouts])

    def _read_archives(self) -> DataFrame:
        with explained():
            found = [read_archive(self._session, path) for path in self._paths]
        rows = reduce(DataFrame.unionByName, found).where(f.col("topic") != NO_TOPIC)
        return rows.withColumn(UNREAD.name, f.lit(None).cast(UNREAD.dataType))

    def spools(self) -> bytes:
        """The uuids of the spools, which tell them from others."""
        return b"".join(sorted(map(read_identity, self.layouts)))

    def numbers(self) -> dict[str, set[int]]:
        """By spool, the numbers of the segments that are kept now."""
        found: dict[str, set[int]] = {}
        for segment_list in map(SegmentList, self.layouts):
            found[read_identity(segment_list.layout).hex()] = {info.number for info in segment_list.segments}
        return found


def _asked_by(wanted: Wanted) -> list[str]:
    given = {"key": wanted.keys, "partition_key": wanted.partition_keys, "uid": wanted.uids}
    return ["sequence", "topic", "received_at", *(name for name, values in given.items() if values)]


def asked(wanted: Wanted) -> Column:
    """Whether a stored message is asked for."""
    tests = [f.col("sequence") >= wanted.first, f.col("sequence") < wanted.end]
    if wanted.from_ns:
        tests.append(f.col("received_at") >= _at(wanted.from_ns))
    if wanted.to_ns != FOR_EVER:
        tests.append(f.col("received_at") < _at(wanted.to_ns))
    if wanted.topics:
        tests.append(f.col("topic").isin(*map(topic_name, wanted.topics)))
    if wanted.keys:
        tests.append(reduce(or_, map(_has_key, sorted(wanted.keys))))
    if wanted.partition_keys:
        tests.append(f.col("partition_key").isin(*wanted.partition_keys))
    if wanted.uids:
        tests.append(f.col("uid").isin(*wanted.uids))
    return reduce(and_, tests)


def _has_key(key: bytes) -> Column:
    # A key of the kind `message` may be empty, and no null.
    return f.coalesce("key", f.lit(b"")) == f.lit(key)


def _at(ns: int) -> Column:
    return f.lit(datetime.fromtimestamp(min(max(ns, 0), _LAST_NS) / 1e9, UTC))


class Count:
    """The count of the wanted messages. It reads no values."""

    def __init__(self, kept: StoredMessages, wanted: Wanted) -> None:
        """Raises JobFailed."""
        self._by_segment = bool(kept.layouts)
        place = _SEGMENT if self._by_segment else ("topic",)
        rows = kept.read(wanted, place)
        time_ns = f.unix_micros("received_at") * 1000
        counts = rows.groupBy(*place, UNREAD.name).agg(
            f.count("*").alias("n"), f.min(time_ns).alias("first"), f.max(time_ns).alias("last")
        )
        with explained():
            found = counts.collect()
        self._rows = [row for row in found if row[UNREAD.name] is None]
        self.unread = sorted({row[UNREAD.name] for row in found} - {None})
        self.messages = sum(row.n for row in self._rows)

    @property
    def topics(self) -> list[TopicCount]:
        """By name."""
        found: dict[str, TopicCount] = {}
        for row in self._rows:
            before = found.get(row.topic) or TopicCount(row.topic, 0, row["first"], row["last"])
            found[row.topic] = TopicCount(
                row.topic,
                before.messages + row.n,
                min(before.first_ns, row["first"]),
                max(before.last_ns, row["last"]),
            )
        return [found[topic] for topic in sorted(found)]

    @property
    def rows(self) -> list[Counted]:
        """By segment; none of archives."""
        names = (*_SEGMENT, "n", "first", "last")
        return [Counted._make(row[name] for name in names) for row in self._rows] if self._by_segment else []

    def outside(self, kept: Mapping[str, set[int]], topics: Iterable[str]) -> int:
        """Messages of these topics in segments that are gone."""
        known = set(topics)
        return sum(
            row.n
            for row in self._rows
            if kept and row.topic in known and row.segment not in kept.get(row.spool, ())
        )


def dry(kept: StoredMessages, wanted: Wanted) -> Replayed:
    """Count and note the messages that a replay would send. Raises JobFailed, OSError."""
    started = time.monotonic()
    count = Count(kept, wanted)
    if kept.note:
        kept.note.write(count.rows)
    spent = time.monotonic() - started
    return Replayed(count.topics, count.messages, 0, {}, count.messages, 0, [], spent, count.unread)


def run_replay(
    kept: StoredMessages,
    wanted: Wanted,
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    *,
    to_topic: str | None = None,
    timeout_s: float | None = None,
) -> Replayed:
    """Send the messages, perhaps all to another topic; also counts those that are gone since they were noted.

    Raises Unreachable, BadProperty, BadPartitioner, JobFailed, OSError.
    """
    started = time.monotonic()
    deadline = float("inf") if timeout_s is None else time.time() + timeout_s
    count = Count(kept, wanted)
    vanished = _compare(kept.note, count, kept, wanted) if kept.note else 0
    names = [to_topic] if to_topic is not None else [one.topic for one in count.topics]
    routes = plan_routes(options, names if count.messages else [], partitioners, kept.layouts, deadline)
    delivery = Delivery(options, "replay", deadline=deadline, replayed_ms=time.time_ns() // 1_000_000)
    rows = kept.read(wanted, [name for name in COLUMNS if name != "partition"])
    rows = rows.where(f.col(UNREAD.name).isNull()).drop(UNREAD.name)
    if to_topic is not None:
        rows = rows.withColumn("topic", f.lit(to_topic))
    reasons = count_outcomes(send(rows, routes, delivery))
    there = [one for one in count.topics if (to_topic or one.topic) in routes.available]
    absent = count.messages - sum(one.messages for one in there)
    left = count.messages - sum(reasons.values())
    # A message without an outcome has an unknown topic, is gone, or was not sent in time.
    gone = min(max(0, left - absent), count.outside(kept.numbers(), (one.topic for one in there)))
    if kept.note and left == gone and not count.unread:
        kept.note.forget()
    return Replayed(
        count.topics,
        count.messages + vanished,
        reasons.get(0, 0),
        count_refused(reasons),
        left - gone,
        gone + vanished,
        sorted(set(names) - routes.available.keys()) if count.messages else [],
        time.monotonic() - started,
        count.unread,
    )


def _compare(note: Note, count: Count, kept: StoredMessages, wanted: Wanted) -> int:
    """How many of the noted messages are gone; writes the note if there is none. Raises OSError."""
    if before := note.read():
        return count_gone(before, count.rows, kept.numbers(), wanted)
    note.write(count.rows)
    return 0


def count_gone(
    before: Iterable[Counted], now: Iterable[Counted], kept: Mapping[str, set[int]], wanted: Wanted
) -> int:
    """Messages that were counted before, and whose segments are gone.

    `kept`: the segments that exist, by spool. Only messages that `wanted` still selects: "-2h" moves on.
    """
    seen = {(row.spool, row.segment) for row in now}
    return sum(
        row.messages
        for row in before
        if (row.spool, row.segment) not in seen
        and row.segment not in kept.get(row.spool, ())
        and row.last_ns >= wanted.from_ns
        and row.first_ns < wanted.to_ns
    )
