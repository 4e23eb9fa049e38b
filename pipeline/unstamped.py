"""Which message an unstamped record is, told by its content. A function of DataFrames, nothing else.

Messages and records of one topic, key, value and timestamp are alike. Of those, the first record is the first
message, and so on; records that are left over begin again with the first message, and are its duplicates.
Messages that the daemon discarded or has not delivered come last, so that what is lost among messages that
are alike is counted right, whichever of them it was.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.audit import ID, content, place, sent_ms

_ALIKE = ("content", "sent_ms")


def stamp(
    spool: DataFrame,
    kafka: DataFrame,
    *,
    discarded: DataFrame | None = None,
    backlog: DataFrame | None = None,
) -> DataFrame:
    """The records of `kafka` with the stamps (bruce_spool, bruce_sequence) of the messages that they are.

    Arguments as for `pipeline.audit.match`, which takes the result as its `kafka`. A record that is no
    message has nulls. Columns: topic, partition, offset, timestamp_ms, content, bruce_spool, bruce_sequence.
    """
    rows = _messages(spool, discarded, backlog).unionByName(_records(kafka), allowMissingColumns=True)
    alike = Window.partitionBy(*_ALIKE)
    number = f.row_number().over(
        Window.partitionBy(*_ALIKE, "is_record").orderBy("undelivered", "sequence", "spool", "place")
    )
    counted = rows.withColumns({"messages": f.count("sequence").over(alike), "number": number - 1})
    ordinal: Column = f.when(f.col("is_record"), f.try_mod("number", "messages")).otherwise(f.col("number"))
    same = Window.partitionBy(*_ALIKE, "ordinal")
    named = counted.withColumn("ordinal", ordinal).withColumns(
        {f"bruce_{name}": f.max(name).over(same) for name in ID}
    )
    return named.where("is_record").select(
        "topic", "partition", "offset", "timestamp_ms", "content", "bruce_spool", "bruce_sequence"
    )


def _messages(spool: DataFrame, discarded: DataFrame | None, backlog: DataFrame | None) -> DataFrame:
    rows = spool.select(*ID, content().alias("content"), sent_ms().alias("sent_ms"))
    undelivered = f.lit(False)
    for name, known in (("discarded", discarded), ("backlog", backlog)):
        if known is not None:
            rows = rows.join(known.select(*ID, f.lit(True).alias(name)), list(ID), "left")
            undelivered = undelivered | f.coalesce(f.col(name), f.lit(False))
    return rows.select(*ID, *_ALIKE, undelivered.alias("undelivered"), f.lit(False).alias("is_record"))


def _records(kafka: DataFrame) -> DataFrame:
    return kafka.select(
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        f.col("timestamp_ms").alias("sent_ms"),
        content().alias("content"),
        place().alias("place"),
        f.lit(True).alias("is_record"),
    )
