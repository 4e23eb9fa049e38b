"""The shape of an archive: Parquet files by topic and day. Functions of DataFrames, nothing else.

    ARCHIVE/topic=orders/date=2026-11-21/part-....zstd.parquet

One row for each message, with the columns of SCHEMA; `date` is the day it was received, in UTC. A topic
that Kafka could not have (its rules are TOPIC) stands in `bad_topic`, and its directory is `topic=~`.
Nothing of a message is changed: key, value, partition key and timestamp_ms are what its sender wrote.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, StringType, StructField, StructType

from pipeline.schema import SCHEMA as STORED

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
    "key",
    "value",
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


def shelve(stored: DataFrame) -> DataFrame:
    """The rows of an archive, SCHEMA, from stored messages with the columns of READ."""
    fits: Column = f.col("topic").rlike(TOPIC)
    return stored.select(
        *_TAKEN_OVER,
        f.when(~fits, f.col("topic")).alias("bad_topic"),
        f.when(fits, f.col("topic")).otherwise(NO_TOPIC).alias("topic"),
        f.to_date("received_at").alias("date"),
    )


def gather(rows: DataFrame) -> DataFrame:
    """Rows so distributed that they make few files, none of them too large; in order of sequence.

    Spark splits what is too much for one task and joins what is too little (`rebalance`).
    """
    together = rows.hint("rebalance", *PARTITIONS)
    return together.sortWithinPartitions(*PARTITIONS, "spool", "sequence")
