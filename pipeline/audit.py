"""Spool against Kafka: what became of each stored message. Functions of DataFrames, nothing else.

    match      one row for each message, stored or found in Kafka
    summarise  one row for each topic of each spool, counts by finding

A stored message is found again by the header `bruce-id`: spool uuid and sequence. Of each:

    once        one record in Kafka
    duplicated  more than one
    discarded   none, and the daemon says that it discarded it after acceptance
    backlog     none, and the daemon says that it was not delivered yet
    lost        none, and nobody says why

which add up to `stored`. Beside them, of those that are in Kafka:

    altered     topic, key, value or timestamp of a record are not the message's
    reordered   a later message with the same partition key came first (by first appearances, in one
                partition of the topic)

and `foreign`: records that belong to no stored message, unstamped ones included. They are no fault: others
write to the topic, or the segment that held the message is gone.

Keys and values are compared by a hash of 64 bits, made before anything is moved: what is shuffled has the
same few bytes for each message, however large it was. Sequences come first in every sort, since the sort
is by the first 8 bytes and looks further only where they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

FATES = ("once", "duplicated", "discarded", "backlog", "lost")
COUNTS = ("stored", *FATES, "altered", "reordered", "foreign")
"""The columns of `summarise`, beside `spool` (null for what is foreign) and `topic`."""

DIMENSIONS = ("partition", "hour", "host")
"""What counts may be told apart by, beside the topic: the partition of the first record, null for what is not
in Kafka; the hour of reception in UTC, and the spool's host, null for what is foreign."""

ID = ("sequence", "spool")
_OFFSET_BITS = 48
"""Of a place, which is a partition and an offset in one number."""
_NO_LANES = 4096
"""Groups for the messages that keep no order: one would be one task's, one for each would be slow."""


def match(
    spool: DataFrame,
    kafka: DataFrame,
    *,
    discarded: DataFrame | None = None,
    backlog: DataFrame | None = None,
    by: Sequence[str] = (),
) -> DataFrame:
    """What became of each message: sequence, spool, topic, fate, altered, reordered, copies; and `by`.

    `spool` has the columns of `pipeline.schema.SCHEMA` and `kafka` those of KAFKA_SCHEMA, as far as they
    are used here. `discarded` and `backlog` name messages by (spool, sequence). `fate` is null for what
    is foreign. `by`: of the DIMENSIONS; for `hour` and `host`, `spool` needs received_at and host. `kafka`
    may have the hash `content` instead of key and value.
    """
    rows = _stored(spool, by).unionByName(_found(kafka), allowMissingColumns=True)
    for name, known in (("discarded", discarded), ("backlog", backlog)):
        if known is not None:
            rows = rows.unionByName(known.select(*ID, f.lit(1).alias(name)), allowMissingColumns=True)
        else:
            rows = rows.withColumn(name, f.lit(None).cast("int"))
    # One exchange and one sort for all: the aggregation takes over both.
    gathered = rows.repartition(*ID).sortWithinPartitions(*ID).groupBy(*ID).agg(*_gather(by))
    judged = gathered.where("stored or copies > 0").select(
        *ID,
        "topic",
        _fate().alias("fate"),
        _altered().alias("altered"),
        "copies",
        "place",
        _lane().alias("lane"),
        *(_DIMENSION[name]().alias(name) for name in by),
    )
    return judged.select(*ID, "topic", "fate", "altered", _late().alias("reordered"), "copies", *by)


def summarise(matched: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """The COUNTS of each spool and topic, and of each of `by`."""
    counts = [f.count_if(f.col("fate") == name).alias(name) for name in FATES]
    spool = f.when(f.col("fate").isNotNull(), f.col("spool")).alias("spool")
    return matched.groupBy(spool, "topic", *by).agg(
        f.count("fate").alias("stored"),
        *counts,
        f.count_if("altered").alias("altered"),
        f.count_if("reordered").alias("reordered"),
        f.sum(f.when(f.col("fate").isNull(), f.col("copies")).otherwise(0)).alias("foreign"),
    )


def _stored(spool: DataFrame, by: Sequence[str]) -> DataFrame:
    return spool.select(
        *ID,
        f.lit(True).alias("is_stored"),
        f.col("topic").alias("stored_topic"),
        "partition_key",
        sent_ms().alias("sent_ms"),
        content().alias("content"),
        *(_SEEN[name]().alias(name) for name in by if name in _SEEN),
    )


def _found(kafka: DataFrame) -> DataFrame:
    stamped = f.col("bruce_sequence").isNotNull()
    # A record without a stamp is a message of its own; all of them in one group would be one task's.
    return kafka.select(
        f.when(stamped, f.col("bruce_sequence")).otherwise(-1 - f.col("offset")).alias("sequence"),
        f.when(stamped, f.col("bruce_spool"))
        .otherwise(f.concat_ws(":", "topic", "partition"))
        .alias("spool"),
        f.col("topic").alias("found_topic"),
        place().alias("place"),
        f.col("timestamp_ms").alias("found_ms"),
        (f.col("content") if "content" in kafka.columns else content()).alias("found_content"),
    )


def place() -> Column:
    """Where a record is, as one number."""
    return f.shiftleft(f.col("partition").cast("long"), _OFFSET_BITS).bitwiseOR(f.col("offset"))


def sent_ms() -> Column:
    """The timestamp a message goes out with: librdkafka reads 0 as "now", so that is sent as 1."""
    return f.when(f.col("timestamp_ms") == 0, 1).otherwise(f.col("timestamp_ms"))


def content() -> Column:
    """A hash of topic, key and value. A null adds nothing to a hash: the lengths tell it from no bytes."""
    sizes = [f.coalesce(f.length(name), f.lit(-1)) for name in ("key", "value")]
    return f.xxhash64("topic", *sizes, "key", "value")


def _gather(by: Sequence[str]) -> list[Column]:
    return [
        *(f.max(name).alias(name) for name in by if name in _SEEN),
        f.coalesce(f.max("is_stored"), f.lit(False)).alias("stored"),
        f.count("place").alias("copies"),
        f.coalesce(f.max("stored_topic"), f.min("found_topic")).alias("topic"),
        f.max("partition_key").alias("partition_key"),
        f.min("place").alias("place"),
        f.max("sent_ms").alias("sent_ms"),
        f.min("found_ms").alias("first_ms"),
        f.max("found_ms").alias("last_ms"),
        f.max("content").alias("content"),
        f.min("found_content").alias("least_content"),
        f.max("found_content").alias("most_content"),
        f.max("discarded").isNotNull().alias("discarded"),
        f.max("backlog").isNotNull().alias("backlog"),
    ]


def _partition() -> Column:
    return f.shiftright("place", _OFFSET_BITS)


# Not columns but what makes them: a column needs a session. The hour is a number until the exchange is over.
_SEEN: dict[str, Callable[[], Column]] = {
    "hour": lambda: f.unix_seconds("received_at") - f.unix_seconds("received_at") % 3600,
    "host": lambda: f.col("host"),
}
_DIMENSION: dict[str, Callable[[], Column]] = {
    "partition": lambda: _partition().cast("int"),
    "hour": lambda: f.date_format(f.timestamp_seconds("hour"), "yyyy-MM-dd'T'HH:mm:ss'Z'"),
    "host": lambda: f.col("host"),
}


def _fate() -> Column:
    return (
        f.when(~f.col("stored"), None)
        .when(f.col("copies") == 1, "once")
        .when(f.col("copies") > 1, "duplicated")
        .when(f.col("discarded"), "discarded")
        .when(f.col("backlog"), "backlog")
        .otherwise("lost")
    )


def _altered() -> Column:
    """Whether any of the copies differs: then the least or the most of them does."""
    differs = (
        (f.col("content") != f.col("least_content"))
        | (f.col("content") != f.col("most_content"))
        # Null where the broker wrote its own time.
        | ~f.coalesce(f.col("sent_ms") == f.col("first_ms"), f.lit(True))
        | ~f.coalesce(f.col("sent_ms") == f.col("last_ms"), f.lit(True))
    )
    return f.col("stored") & (f.col("copies") > 0) & differs


def _lane() -> Column:
    """What a message keeps its order in, as a pair: whether it has any, and a hash of which it is."""
    ordered = f.col("stored") & f.col("place").isNotNull() & f.col("partition_key").isNotNull()
    lane = f.when(ordered, f.xxhash64("topic", "spool", _partition(), "partition_key"))
    return f.struct(
        f.coalesce(ordered, f.lit(False)).alias("ordered"),
        lane.otherwise(f.pmod("sequence", f.lit(_NO_LANES))).alias("number"),
    )


def _late() -> Column:
    """Whether a message with a higher sequence comes before it in its lane."""
    before = (
        Window.partitionBy("lane.number", "lane.ordered")
        .orderBy("place")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    late = f.col("lane.ordered") & (f.max("sequence").over(before) > f.col("sequence"))
    return f.coalesce(late, f.lit(False))
