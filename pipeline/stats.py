"""The figures of spools: rates, sizes and the skew of keys, as the JSON document of `brucectl stats`.

    {"version": 1, "total": FIGURES,
     "topics": [{"topic": name, FIGURES, "hours": [{"hour": "...Z", FIGURES}]}]}

Hours are in UTC. FIGURES:

    messages, bytes            bytes of keys and values
    median_bytes, p99_bytes    of one message, to a thousandth
    most_bytes                 of the largest
    peak                       messages in the busiest second: of an hour; of a topic, the highest of its
                               hours; of all topics not known
    keys                       how many different ones, to 5%; a partition key, where there is one, is the key
    top_keys                   the most frequent ones: key and messages
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.engine import Column, DataFrame, Engine, Window, f, hour_of, second_of, show_hour, text_of
from pipeline.source.plan import find_spools

VERSION = 1

READ = ("topic", "received_at", "partition_key", "key", "value")
"""The columns of a spool that are measured."""
TOP_KEYS = 3
_LABEL_LETTERS = 80
Figures = dict[str, Any]
Group = tuple[str | None, int | None]
"""The topic, and the hour in seconds since the epoch; None: all."""


def run_stats(engine: Engine, paths: Iterable[str], topics: Sequence[str] | None = None) -> Figures:
    """The document above, of the spools at these paths (globs, too). Raises NoSpool, JobFailed."""
    directories = [str(layout.directory) for layout in find_spools(paths)]
    with engine.working():
        stored = engine.spools(directories, READ)
        if topics:
            stored = stored.where(f.col("topic").isin(*topics))
        rows = engine.kept(marked(stored))
        figures, peaks, keys = (engine.collect(ask(rows)) for ask in (measure, count_peaks, rank_keys))
    return document(figures, peaks, keys)


def document(
    figures: Iterable[Mapping[str, Any]],
    peaks: Iterable[Mapping[str, Any]],
    keys: Iterable[Mapping[str, Any]],
) -> Figures:
    """The document, from rows of `measure`, `count_peaks` and `rank_keys`."""
    busiest = {_group(row): row["peak"] for row in peaks}
    top: dict[Group, list[Figures]] = defaultdict(list)
    for row in sorted(keys, key=lambda row: row["place"]):
        top[_group(row)].append({"key": row["label"], "messages": row["count"]})
    found: Figures = {"version": VERSION, "total": None, "topics": []}
    by_topic: dict[str, Figures] = {}
    for row in sorted(figures, key=_place):
        group = _group(row)
        told = {name: value for name, value in row.items() if name not in ("topic", "hour", "keys")}
        told |= {"peak": busiest.get(group), "keys": row["keys"], "top_keys": top[group]}
        if row["topic"] is None:
            found["total"] = told
        elif row["hour"] is None:
            by_topic[row["topic"]] = {"topic": row["topic"], **told, "hours": []}
        else:
            by_topic[row["topic"]]["hours"].append({"hour": show_hour(row["hour"]), **told})
    for topic in by_topic.values():
        topic["peak"] = max(hour["peak"] for hour in topic["hours"])
        found["topics"].append(topic)
    return found


def _place(row: Mapping[str, Any]) -> tuple[object, ...]:
    """In order by topic, the row of all its hours first."""
    return row["topic"] or "", row["hour"] is not None, row["hour"] or 0


def _group(row: Mapping[str, Any]) -> Group:
    return row["topic"], row["hour"]


def marked(stored: DataFrame) -> DataFrame:
    """Of rows of READ: topic, hour and second, size, and label, the key as text."""
    return stored.select(
        "topic",
        hour_of("received_at").alias("hour"),
        second_of("received_at").alias("second"),
        (f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0)))
        .cast("long")
        .alias("size"),
        _label().alias("label"),
    )


def _label() -> Column:
    """The key by which a message chooses its partition, as text."""
    text = f.coalesce(text_of("key"), f.hex("key"))
    return f.coalesce(f.col("partition_key").cast("string"), f.left(text, f.lit(_LABEL_LETTERS)))


def measure(rows: DataFrame) -> DataFrame:
    """FIGURES, but for the peak and the keys, of each topic and hour, each topic (hour is null), and all."""
    figures = (
        f.count(f.lit(1)).alias("messages"),
        f.sum("size").alias("bytes"),
        f.percentile_approx("size", 0.5, 1000).alias("median_bytes"),
        f.percentile_approx("size", 0.99, 1000).alias("p99_bytes"),
        f.max("size").alias("most_bytes"),
        f.approx_count_distinct("label").alias("keys"),
    )
    hours = rows.groupBy("topic", "hour").agg(*figures)
    topics = rows.groupBy("topic").agg(*figures)
    return _levels(hours, topics, rows.agg(*figures).where("messages > 0"))


def _levels(hours: DataFrame, topics: DataFrame, whole: DataFrame) -> DataFrame:
    """Rows of each topic and hour, of each topic, and of all, as one table."""
    both = hours.unionByName(topics.withColumn("hour", f.lit(None).cast("long")))
    return both.unionByName(
        whole.withColumns({"topic": f.lit(None).cast("string"), "hour": f.lit(None).cast("long")})
    )


def count_peaks(rows: DataFrame) -> DataFrame:
    """The messages of the busiest second of each topic and hour."""
    seconds = rows.groupBy("topic", "hour", "second").agg(f.count(f.lit(1)).alias("count"))
    return seconds.groupBy("topic", "hour").agg(f.max("count").alias("peak"))


def rank_keys(rows: DataFrame) -> DataFrame:
    """The TOP_KEYS of each topic and hour, each topic, and all: label, count, and place from 1 on."""
    named = rows.where(f.col("label").isNotNull())
    hours = named.groupBy("topic", "hour", "label").agg(f.count(f.lit(1)).alias("count"))
    topics = hours.groupBy("topic", "label").agg(f.sum("count").alias("count"))
    whole = topics.groupBy("label").agg(f.sum("count").alias("count"))
    place = f.row_number().over(Window.partitionBy("topic", "hour").orderBy(f.desc("count"), "label"))
    return _levels(hours, topics, whole).withColumn("place", place).where(f.col("place") <= TOP_KEYS)
