"""Sending messages again, from spools or from an archive. Nothing is written down: it may be done twice.

    stored ─► asked ─► route ─► arrange ─► deliver

Each record has a header `bruce-replay` beside its own, the time of the replay in ms since the epoch.

No segment is held back for it: room for new messages comes first. Messages are counted before they are sent,
by segment, so that it can be told how many went with segments that were removed in between: since a dry run,
too, or since the replay was interrupted (`pipeline.replay_note`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.archive import NO_TOPIC
from pipeline.archive_files import read_archive
from pipeline.failure import explained
from pipeline.plan import find_spools
from pipeline.replay_note import Counted, Note, count_gone
from pipeline.route_plan import plan_routes
from pipeline.schema import SCHEMA, UNREAD
from pipeline.segments import topic_name
from pipeline.sending import count_outcomes, count_refused, send
from pipeline.sink import COLUMNS, Delivery
from spool.catalogue import Catalogue
from spool.files import FOR_EVER
from spool.identity import read_identity
from spool.sought import TopicCount
from spool.wanted import Wanted

_LAST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999, behind which SQL has no times."""
_SEGMENT = ("spool", "segment", "topic")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it, or would."""

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
    """Segments that the disk gives an error for, and the error: that counts nowhere."""


class Kept:
    """What is kept at some places: of spools, or in archives."""

    def __init__(self, session: SparkSession, paths: Iterable[str], *, archive: bool) -> None:
        """Raises NoSpool."""
        self._session, self._paths = session, list(paths)
        self.layouts = [] if archive else find_spools(self._paths)
        self._archive = archive
        self.note: Note | None = None
        """Where it is kept in mind what was counted."""

    def read(self, wanted: Wanted, columns: Sequence[str]) -> DataFrame:
        """These columns of what is asked for, and UNREAD, by which rows tell what the disk does not give.

        Raises JobFailed.
        """
        # A Python source reads every column of its schema.
        names = list(dict.fromkeys([*columns, *_asked_by(wanted)]))
        stored = self._read_archives() if self._archive else self._read_spools(names)
        return stored.where(f.col(UNREAD.name).isNotNull() | asked(wanted))

    def _read_spools(self, columns: Sequence[str]) -> DataFrame:
        schema = StructType([*(SCHEMA[name] for name in columns), UNREAD])
        # What goes between being planned and being read is counted, and ends nothing.
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
        for catalogue in map(Catalogue, self.layouts):
            found[read_identity(catalogue.layout).hex()] = {info.number for info in catalogue.segments}
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
    return f.col("key") == f.lit(key) if key else f.col("key").isNull()


def _at(ns: int) -> Column:
    return f.lit(datetime.fromtimestamp(min(max(ns, 0), _LAST_NS) / 1e9, UTC))


class Count:
    """What is asked for, counted. No value is read for it."""

    def __init__(self, kept: Kept, wanted: Wanted) -> None:
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
        """By segment; nothing of archives."""
        names = (*_SEGMENT, "n", "first", "last")
        return [Counted._make(row[name] for name in names) for row in self._rows] if self._by_segment else []

    def outside(self, kept: Mapping[str, set[int]], topics: Iterable[str]) -> int:
        """Messages of these topics in segments that are kept no more."""
        known = set(topics)
        return sum(
            row.n
            for row in self._rows
            if kept and row.topic in known and row.segment not in kept.get(row.spool, ())
        )


def dry(kept: Kept, wanted: Wanted) -> Replayed:
    """What would be sent, which is noted. Raises JobFailed, OSError."""
    started = time.monotonic()
    count = Count(kept, wanted)
    if kept.note:
        kept.note.write(count.rows)
    spent = time.monotonic() - started
    return Replayed(count.topics, count.messages, 0, {}, count.messages, 0, [], spent, count.unread)


def run_replay(
    kept: Kept,
    wanted: Wanted,
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    *,
    to_topic: str | None = None,
    timeout_s: float | None = None,
) -> Replayed:
    """Send it, perhaps all to another topic; what is gone since it was noted counts, too.

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
    # What came to no end is of a topic that is not there, is gone, or stays for want of time.
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


def _compare(note: Note, count: Count, kept: Kept, wanted: Wanted) -> int:
    """How many of those noted are there no more; where none were, these are from now on. Raises OSError."""
    if before := note.read():
        return count_gone(before, count.rows, kept.numbers(), wanted)
    note.write(count.rows)
    return 0
