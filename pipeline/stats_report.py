"""What `brucectl spark stats` says, as JSON has it.

    {"version": 1, "total": FIGURES,
     "topics": [{"topic": name, FIGURES, "hours": [{"hour": "...Z", FIGURES}]}]}

FIGURES: messages, bytes, median_bytes, p99_bytes, most_bytes, peak, keys, top_keys, as `pipeline.stats`
defines them; the peak of more than an hour is the highest of its hours, and of all topics not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from pipeline.errors import MissingSpark
from pipeline.failure import explained
from pipeline.plan import find_spools
from pipeline.spark_release import TOP_VALUES, has, version
from pipeline.stats import READ, measure

VERSION = 1
Figures = dict[str, Any]


def run_stats(session: SparkSession, paths: Iterable[str], topics: Sequence[str] | None = None) -> Figures:
    """The document above, of the spools at these paths (globs, too). Raises NoSpool, JobFailed.

    And MissingSpark, for a PySpark that cannot count the most frequent values.
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
    """Rows of `measure`, by topic and hour."""
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
