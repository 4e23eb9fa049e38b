"""SQL over the views `spool` and `archive`, and the JSON document of `brucectl spark stats`.

`spool` has the columns of `pipeline.source.schema`. Only those that the SQL can mean are read: Spark asks a
Python data source for all. Damaged ranges are rows of it if the SQL names `damaged`.

The document:

    {"version": 1, "total": FIGURES,
     "topics": [{"topic": name, FIGURES, "hours": [{"hour": "...Z", FIGURES}]}]}

Hours are in UTC. FIGURES:

    messages, bytes            bytes of keys and values
    median_bytes, p99_bytes    of one message, to a thousandth
    most_bytes                 of the largest
    peak                       messages in the busiest second: of an hour; of a topic, the highest of its
                               hours; of all topics not known
    keys                       how many different ones, to 5%; a partition key, where there is one, is the key
    top_keys                   the most frequent ones: key and messages, both good for a key that is frequent
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.archive import read_archive
from pipeline.errors import BadQuery, MissingSpark
from pipeline.job import explained
from pipeline.source.outcomes import read_discarded
from pipeline.source.plan import Segment, find_spools, plan_spool
from pipeline.source.schema import SCHEMA
from pipeline.source.segments import Part, SegmentReading
from pipeline.spark_release import TOP_VALUES, has, version
from spool.format.frame import FRAME_FIRST, FRAME_RECEIVED
from spool.format.wire import DEAD_LETTERED
from spool.layout import Layout
from spool.log.intake_totals import HOUR_NS, read_refused

VERSION = 1

READ = StructType([SCHEMA[name] for name in ("topic", "received_at", "partition_key", "key", "value")])
"""The columns of `format("bruce")` that `measure` needs."""
TOP_KEYS = 3
_TRACKED_KEYS = 1000
_TRACKED_SECONDS = 5000
"""More than an hour has, so that all are counted and the peak is exact."""
_LABEL_LETTERS = 80
Figures = dict[str, Any]
Numbers = npt.NDArray[np.int64]
_DAMAGE = frozenset({"damaged", "damaged_bytes"})
_WORD = re.compile(r"\w+")
_ALL = re.compile(r"\btable\b|\|>", re.IGNORECASE)
"""Beside a star, the other ways to ask for all columns without their names."""
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_SENTENCE = re.compile(r"\s*\[[\w.]+\] (.+?)\.?(?: SQLSTATE:| Verify|\n)")
_PLACE = re.compile(r"SQLSTATE: \w+;? ?\(?(line \d+),? (pos \d+)")


def run_stats(session: SparkSession, paths: Iterable[str], topics: Sequence[str] | None = None) -> Figures:
    """The document above, of the spools at these paths (globs, too).

    Raises NoSpool, JobFailed, and MissingSpark for a PySpark that cannot count the most frequent values.
    """
    if not has(TOP_VALUES):
        raise MissingSpark(
            f"brucectl spark stats needs pyspark 4.1 or newer, and this is {version()}: Spark counts "
            "the most frequent keys only from then on"
        )
    directories = [str(layout.directory) for layout in find_spools(paths)]
    stored = session.read.format("bruce").schema(READ).load(directories)
    if topics:
        stored = stored.where(f.col("topic").isin(*topics))
    with explained():
        return document(measure(stored).orderBy("topic", "hour").collect())


def document(rows: Iterable[Row]) -> Figures:
    """The document, from rows of `measure` in order of topic and hour."""
    found: Figures = {"version": VERSION, "total": None, "topics": []}
    by_topic: dict[str, Figures] = {}
    hours: dict[str, list[Figures]] = {}
    for row in rows:
        figures = _figures(row)
        if row.topic is None:
            found["total"] = figures
        elif row.hour is None:
            by_topic[row.topic] = figures
        else:
            hours.setdefault(row.topic, []).append({"hour": row.hour, **figures})
    for topic, figures in by_topic.items():
        figures["peak"] = max(hour["peak"] for hour in hours[topic])
        found["topics"].append({"topic": topic, **figures, "hours": hours[topic]})
    return found


def _figures(row: Row) -> Figures:
    names = ("messages", "bytes", "median_bytes", "p99_bytes", "most_bytes", "peak", "keys")
    top = [{"key": key, "messages": count} for key, count in row.top_keys or ()]
    return {**{name: row[name] for name in names}, "top_keys": top}


def measure(stored: DataFrame) -> DataFrame:
    """FIGURES for each topic and hour, each topic (hour is null), and all (both are null).

    `stored`: messages with the columns of READ. Of more than an hour, `peak` is null.
    """
    rows = stored.select(
        "topic",
        f.date_format("received_at", "yyyy-MM-dd'T'HH:00:00'Z'").alias("hour"),
        f.unix_seconds("received_at").alias("second"),
        (f.coalesce(f.octet_length("key"), f.lit(0)) + f.octet_length("value")).cast("long").alias("size"),
        _label().alias("label"),
    )
    return rows.rollup("topic", "hour").agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum("size").alias("bytes"),
        f.percentile_approx("size", 0.5, 1000).alias("median_bytes"),
        f.percentile_approx("size", 0.99, 1000).alias("p99_bytes"),
        f.max("size").alias("most_bytes"),
        f.when(
            f.grouping("hour") == 0, f.expr(f"approx_top_k(second, 1, {_TRACKED_SECONDS})[0].count")
        ).alias("peak"),
        f.approx_count_distinct("label").alias("keys"),
        f.expr(f"approx_top_k(label, {TOP_KEYS}, {_TRACKED_KEYS}) FILTER (WHERE label IS NOT NULL)").alias(
            "top_keys"
        ),
    )


def _label() -> Column:
    """The key by which a message chooses its partition, as text."""
    text = f.coalesce(f.try_validate_utf8(f.col("key").cast("string")), f.hex("key"))
    return f.coalesce(f.col("partition_key").cast("string"), f.left(text, f.lit(_LABEL_LETTERS)))


def discard_hours(layout: Layout) -> Counter[tuple[int, int]]:
    """Discarded messages by (hour of reception since the epoch, reason of spool.format.wire).

    Only kept segments have hours: frames have the time of refused datagrams, marks the discarded stored
    messages, and segments the time when those were received. The ledger (messages discarded while the spool
    was full) and the totals of removed segments have first and last times only. Raises BadSpool,
    UnknownVersion, OSError.
    """
    found = Counter({(hour, reason): count for (reason, hour), count in read_refused(layout).hours.items()})
    plan = plan_spool(layout)
    sequences, reasons = read_discarded(layout)
    for part, segment, (first, end) in zip(plan.parts, plan.segments, plan.runs, strict=True):
        mine = slice(*np.searchsorted(sequences, (first, end)))
        if mine.start == mine.stop:
            continue
        hours = _received(part, segment, sequences[mine]) // HOUR_NS
        both = np.stack((hours, reasons[mine] & ~DEAD_LETTERED))
        pairs, counts = np.unique(both, axis=1, return_counts=True)
        for (hour, reason), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            found[hour, reason] += count
    return found


def _received(part: Part, segment: Segment, sequences: Numbers) -> Numbers:
    """When these were received (ns), to the hour: by the footer's marks, where no hour ends between two."""
    if segment.footer:
        fields, marks, _ = segment.footer
        at = np.searchsorted(marks["first_sequence"].astype(np.int64), sequences, "right") - 1
        times = np.append(marks["received_ns"], fields["last_received_ns"]).astype(np.int64)
        if (times[at] // HOUR_NS == times[at + 1] // HOUR_NS).all():
            return np.asarray(times[at])
    # Copied: the next piece reuses the table.
    pieces = SegmentReading(part).pieces()
    tables = [piece.frames[:, [FRAME_FIRST, FRAME_RECEIVED]].copy() for piece in pieces]
    frames = np.concatenate([np.zeros((1, 2), np.int64), *tables])
    return np.asarray(frames[np.searchsorted(frames[:, 0], sequences, "right") - 1, 1])


def query(session: SparkSession, sql: str, spools: Sequence[str], archive: str | None) -> DataFrame:
    """The result of the SQL; spools are looked up when they are read. Raises BadQuery for wrong SQL.

    Only queries: a statement that writes, creates or sets something is refused.
    """
    schema = StructType([SCHEMA[name] for name in columns_of(sql)])
    session.read.format("bruce").schema(schema).load(list(spools)).createOrReplaceTempView("spool")
    with wrong_sql():
        if archive is not None:
            read_archive(session, archive).createOrReplaceTempView("archive")
        # Spark has no public way to tell a query from a command.
        session._jsparkSession.sessionState().sqlParser().parseQuery(sql)  # noqa: SLF001
        return session.sql(sql)


@contextmanager
def wrong_sql() -> Iterator[None]:
    """Raise BadQuery, one sentence, for an error that fills a screen in Spark."""
    try:
        yield
    except PySparkException as error:
        if (found := _SENTENCE.match(str(error))) is None:
            raise
        place = f" ({' '.join(where.groups())})" if (where := _PLACE.search(str(error))) else ""
        hint = "; give --archive DIR" if "view `archive`" in found[1] else ""
        raise BadQuery(f"{found[1]}{place}{hint}") from error


def columns_of(sql: str) -> list[str]:
    """The columns of `spool` that a query can mean, in order: those that it names, or all."""
    words = {word.lower() for word in _WORD.findall(sql)}
    starred = "*" in _COUNT.sub("", sql) or "select" not in words or _ALL.search(sql)
    wanted = set(SCHEMA.names) - _DAMAGE if starred else {"sequence"}
    return [name for name in SCHEMA.names if name in wanted | words]
