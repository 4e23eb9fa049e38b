"""What a capacity planner asks: how many, how large, how fast at most, how even. A function of DataFrames.

The rows of `measure`, for each topic and hour (in UTC), each topic (hour is null), and all (both are null):

    messages, bytes            bytes of keys and values
    median_bytes, p99_bytes    of one message, to a thousandth
    most_bytes                 of the largest
    peak                       messages in the busiest second of the hour; null of more than an hour
    keys                       how many different ones, to 5%; a partition key, where there is one, is the key
    top_keys                   the most frequent ones: key and messages, both good for a key that is frequent
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.schema import SCHEMA

READ = StructType([SCHEMA[name] for name in ("topic", "received_at", "partition_key", "key", "value")])
"""The columns of `format("bruce")` that `measure` needs."""
TOP_KEYS = 3
_TRACKED_KEYS = 1000
_TRACKED_SECONDS = 5000
"""More than an hour has, so that all are counted and the peak is exact."""
_LABEL_LETTERS = 80


def measure(stored: DataFrame) -> DataFrame:
    """The rows above, from stored messages with the columns of READ."""
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
    """What a message is spread by, as text."""
    text = f.coalesce(f.try_validate_utf8(f.col("key").cast("string")), f.hex("key"))
    return f.coalesce(f.col("partition_key").cast("string"), f.left(text, f.lit(_LABEL_LETTERS)))
