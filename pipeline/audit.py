"""Spool against Kafka: the outcome of each stored message. Functions of DataFrames of either engine.

    stamp      which message a record without the header is; only when headers were lost
    match      one row for each message, stored or found in Kafka
    summarise  one row for each topic of each spool, counts by finding

The header `bruce-id`, spool uuid and sequence, identifies a stored message. Its outcome is one of:

    once        one record in Kafka
    duplicated  more than one
    discarded   none, and the daemon recorded that it discarded it after acceptance
    backlog     none, and the daemon recorded that it was not delivered yet
    withheld    none that may be read yet: it is in Kafka behind a transaction that is open
    expired     none, the marks say that it was delivered, and Kafka has dropped records of its age
    lost        none, and nothing says why

which add up to `stored`. Beside them, of those that are in Kafka:

    altered     topic, key, value, headers or timestamp of a record are not the message's
    reordered   a later message with the same partition key came first (by first appearances, in one
                partition of the topic)
    misplaced   a record is in another partition than the message's own, or than the one that its topic's
                partitioner chooses: then a consumer may see messages of one key out of order

`unreadable` messages are in none of these: they are in Kafka, by their headers, and the segment that should
hold them does not give them.

Kafka drops the oldest records of a partition: by its retention, or because somebody had it do so. A message
is as old as these if its time is not after that of the first record left of any such partition of its topic,
or its number is before that record's, which is of the same spool. Which of them were dropped no one can tell:
`expired` are at most as many as were, and a message beyond that is lost (`pipeline.audit_report`).

`foreign` counts records that belong to no message of the segments, unstamped ones included. They are no
fault: another producer writes to the topic, or the segment that held the message is gone.

Keys, values and headers are compared by a hash of 64 bits, which the sources make: a row has the same few
bytes for each message, however large it was. A replay adds the header `bruce-replay`, so headers of
that name are not compared. Sequences come first in every sort, since Spark sorts by the
first 8 bytes and looks further only when they are equal.

Without the header, `stamp` tells messages by their content. Messages and records of one topic, key, value,
headers and timestamp are alike, whatever headers `bruce-id` they have: the one that is missing may be the
sender's. Of those, the first record is the first message, and so on; records that are left over
begin again with the first message, and are its duplicates. Messages that the daemon discarded or has not
delivered, and those that are withheld, come last: so the count of lost messages is right, whichever of the
equal ones was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from dispatch.header_names import HEADER_NAME, REPLAY_NAME
from pipeline.engine import Column, DataFrame, Window, f, hour_of, together

OUTCOMES = ("once", "duplicated", "discarded", "backlog", "withheld", "expired", "lost")
UNREADABLE = "unreadable"
"""The outcome of a message that only Kafka has; it is not among the `stored` ones, which were read."""
FINDINGS = ("altered", "reordered", "misplaced")
"""Of messages that are in Kafka."""
COUNTS = ("stored", *OUTCOMES, *FINDINGS, "foreign", UNREADABLE)
"""The columns of `summarise`, beside `spool` (null for foreign records) and `topic`."""

DIMENSIONS = ("partition", "hour", "host")
"""Counts may be grouped by these, beside the topic: the partition of the first record, null without a record
in Kafka; the hour of reception (seconds since the epoch) and the spool's host, null for foreign records."""

ID = ("sequence", "spool")
_OFFSETS = 1 << 48
"""Of a partition, in a position, which is both in one number."""
_STAMPED = (REPLAY_NAME.decode(),)
_UNSTAMPED = (*_STAMPED, HEADER_NAME.decode())
"""Names of headers that are not compared: where records have our `bruce-id`, and where it may be lost."""
_UNORDERED_GROUPS = 4096
"""Groups for the messages that keep no order: one would be one task's, one for each would be slow."""


SPOOLS = pa.schema(
    [("spool", pa.string()), ("first", pa.int64()), ("end", pa.int64()), ("marked", pa.bool_())]
)
"""The numbers [first, end) that a spool's segments hold, readable or not; whether its marks are known."""
AGES = pa.schema([("topic", pa.string()), ("until_ms", pa.int64())])
"""The time of the first record left of a topic, of the partition where that is latest."""
PLACES = pa.schema([("topic", pa.string()), ("spool", pa.string()), ("until", pa.int64())])
"""The number of that record, if it is of the spool, of the partition where that is highest."""


class Told(NamedTuple):
    """Messages by (spool, sequence) of which something is known; None: of no message."""

    discarded: DataFrame | None = None
    backlog: DataFrame | None = None
    withheld: DataFrame | None = None


class Dropped(NamedTuple):
    """How old records are that Kafka has dropped: tables of AGES and of PLACES."""

    ages: DataFrame
    places: DataFrame


NOTHING_TOLD = Told()


def match(
    spool: DataFrame,
    kafka: DataFrame,
    *,
    told: Told = NOTHING_TOLD,
    spools: DataFrame | None = None,
    dropped: Dropped | None = None,
    by: Sequence[str] = (),
) -> DataFrame:
    """The outcome of each message: sequence, spool, topic, outcome, the FINDINGS, copies; and `by`.

    `spool` has columns of `pipeline.source.fields.STORED` and `kafka` of RECORDS, those that are used here;
    and the `partition` of `pipeline.delivery.choice`, without which none is misplaced.
    `spools`: SPOOLS, a row for each. `outcome` is null for foreign records.
    `by`: of the DIMENSIONS; for `hour` and `host`, `spool` needs received_at and host. Both may
    have `content_hash` instead of key, value and headers, and `kafka` the hash `content`, as the result of
    `stamp` has it.
    """
    rows = _stored(spool, by, _UNSTAMPED if "content" in kafka.columns else _STAMPED).unionByName(
        _found(kafka), allowMissingColumns=True
    )
    for name, known in told._asdict().items():
        if known is not None:
            rows = rows.unionByName(known.select(*ID, f.lit(1).alias(name)), allowMissingColumns=True)
        else:
            rows = rows.withColumn(name, f.lit(None).cast("int"))
    # One exchange and one sort for all: the aggregation takes over both.
    gathered = together(rows, *ID).groupBy(*ID).agg(*_gather(by))
    known = gathered.where("stored or copies > 0")
    known = _looked_up(known, spools, ["spool"], {"first": "long", "end": "long", "marked": "boolean"})
    ages, places = dropped or (None, None)
    known = _looked_up(known, ages, ["topic"], {"until_ms": "long"})
    known = _looked_up(known, places, ["topic", "spool"], {"until": "long"})
    judged = known.select(
        *ID,
        "topic",
        _outcome().alias("outcome"),
        _altered().alias("altered"),
        _misplaced().alias("misplaced"),
        "copies",
        "position",
        _order_group().alias("order_group"),
        *(_DIMENSION[name]().alias(name) for name in by),
    )
    return judged.select(
        *ID, "topic", "outcome", "altered", _late().alias("reordered"), "misplaced", "copies", *by
    )


def summarise(matched: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """The COUNTS of each spool and topic, and of each of `by`; last_expired: the highest number of those."""
    counts = [_count_if(f.col("outcome") == name).alias(name) for name in OUTCOMES]
    spool = f.when(f.col("outcome").isNotNull(), f.col("spool")).alias("spool")
    return matched.groupBy(spool, "topic", *by).agg(
        _count_if(f.col("outcome").isin(*OUTCOMES)).alias("stored"),
        *counts,
        *(_count_if(name).alias(name) for name in FINDINGS),
        f.sum(f.when(f.col("outcome").isNull(), f.col("copies")).otherwise(0)).alias("foreign"),
        _count_if(f.col("outcome") == UNREADABLE).alias(UNREADABLE),
        f.max(f.when(f.col("outcome") == "expired", f.col("sequence"))).alias("last_expired"),
    )


def _count_if(condition: Column | str) -> Column:
    """Rows for which it holds; DuckDB's own has a null for none."""
    return f.coalesce(f.count_if(condition), f.lit(0))


def _stored(spool: DataFrame, by: Sequence[str], ours: Sequence[str]) -> DataFrame:
    return spool.select(
        *ID,
        f.lit(True).alias("is_stored"),
        f.col("topic").alias("stored_topic"),
        "partition_key",
        _sent_ms().alias("sent_ms"),
        (f.col("content_hash") if "content_hash" in spool.columns else _content(ours)).alias("content"),
        (f.col("partition") if "partition" in spool.columns else f.lit(None).cast("int")).alias("chosen"),
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
        _position().alias("position"),
        (f.col("placed") if "placed" in kafka.columns else _placed(kafka)).alias("placed"),
        f.col("timestamp_ms").alias("found_ms"),
        _found_content(kafka).alias("found_content"),
    )


def _position() -> Column:
    """The partition and offset of a record, as one number."""
    return f.col("partition").cast("long") * f.lit(_OFFSETS).cast("long") + f.col("offset")


def _placed(kafka: DataFrame) -> Column:
    """The partition of a record; null for a replay's, which goes by the partition count of its day."""
    if "replayed" in kafka.columns:
        return f.when(~f.col("replayed"), f.col("partition"))
    replays = f.size(f.filter("headers", lambda one: one["key"] == REPLAY_NAME.decode()))
    return f.when(replays <= 0, f.col("partition"))


def _found_content(kafka: DataFrame) -> Column:
    """The hash of a record: by `stamp`, by the source, or by an expression of the engine."""
    for name in ("content", "content_hash"):
        if name in kafka.columns:
            return f.col(name)
    return _content(_STAMPED)


def _sent_ms() -> Column:
    """The timestamp a message goes out with: librdkafka reads 0 as "now", so that is sent as 1."""
    return f.when(f.col("timestamp_ms") == 0, 1).otherwise(f.col("timestamp_ms"))


def _content(ours: Sequence[str]) -> Column:
    """A hash of topic, key, value and headers, but for those of the names `ours`.

    Without those of `bruce-replay` it is Spark's form of `pipeline.source.content_hash`.
    A null adds nothing to a hash: the lengths tell it from no bytes. Most messages have no headers, and the
    functions that go through them are not compiled: they are left out then.
    """
    sizes = [f.coalesce(f.octet_length(name), f.lit(-1)) for name in ("key", "value")]
    own = f.filter("headers", lambda one: ~one["key"].isin(*ours))
    lengths = f.transform(own, lambda one: f.coalesce(f.octet_length(one["value"]), f.lit(-1)))
    headers = f.when((f.size("headers") > 0) & (f.size(own) > 0), f.xxhash64(lengths, own))
    return f.xxhash64("topic", *sizes, "key", "value", headers)


def _gather(by: Sequence[str]) -> list[Column]:
    return [
        *(f.max(name).alias(name) for name in by if name in _SEEN),
        f.coalesce(f.max("is_stored"), f.lit(False)).alias("stored"),
        f.count("position").alias("copies"),
        f.coalesce(f.max("stored_topic"), f.min("found_topic")).alias("topic"),
        f.max("partition_key").alias("partition_key"),
        f.min("position").alias("position"),
        f.max("chosen").alias("chosen"),
        f.min("placed").alias("least_placed"),
        f.max("placed").alias("most_placed"),
        f.max("sent_ms").alias("sent_ms"),
        f.min("found_ms").alias("first_ms"),
        f.max("found_ms").alias("last_ms"),
        f.max("content").alias("content"),
        f.min("found_content").alias("least_content"),
        f.max("found_content").alias("most_content"),
        f.max("discarded").isNotNull().alias("discarded"),
        f.max("backlog").isNotNull().alias("backlog"),
        f.max("withheld").isNotNull().alias("withheld"),
    ]


def _partition() -> Column:
    return ((f.col("position") - f.col("position") % f.lit(_OFFSETS)) / f.lit(_OFFSETS)).cast("long")


# Not columns but what makes them: a column needs a session.
_SEEN: dict[str, Callable[[], Column]] = {
    "hour": lambda: hour_of("received_at"),
    "host": lambda: f.col("host"),
}
_DIMENSION: dict[str, Callable[[], Column]] = {
    "partition": lambda: _partition().cast("int"),
    "hour": lambda: f.col("hour"),
    "host": lambda: f.col("host"),
}


def _looked_up(
    rows: DataFrame, table: DataFrame | None, on: list[str], columns: Mapping[str, str]
) -> DataFrame:
    """`rows` with columns of a small table; nulls where it has no row, or there is none."""
    if table is None:
        return rows.withColumns({name: f.lit(None).cast(kind) for name, kind in columns.items()})
    # Named again: in SQL made of this, a name would be that of the table otherwise.
    joined = rows.join(f.broadcast(table.select(*on, *columns)), on, "left")
    return joined.select(*rows.columns, *columns)


def _outcome() -> Column:
    held = f.coalesce(
        (f.col("sequence") >= f.col("first")) & (f.col("sequence") < f.col("end")), f.lit(False)
    )
    by_time = f.coalesce(f.col("sent_ms") <= f.col("until_ms"), f.lit(False))
    by_place = f.coalesce(f.col("sequence") < f.col("until"), f.lit(False))
    return (
        f.when(~f.col("stored"), f.when(held, UNREADABLE))
        .when(f.col("copies") == 1, "once")
        .when(f.col("copies") > 1, "duplicated")
        .when(f.col("discarded"), "discarded")
        .when(f.col("backlog"), "backlog")
        .when(f.col("withheld"), "withheld")
        .when(f.coalesce("marked", f.lit(False)) & (by_time | by_place), "expired")
        .otherwise("lost")
    )


def _altered() -> Column:
    """Whether any of the copies differs: then the least or the most of them does."""
    differs = (
        (f.col("content") != f.col("least_content"))
        | (f.col("content") != f.col("most_content"))
        # Null when the broker wrote its own time.
        | ~f.coalesce(f.col("sent_ms") == f.col("first_ms"), f.lit(True))
        | ~f.coalesce(f.col("sent_ms") == f.col("last_ms"), f.lit(True))
    )
    return f.col("stored") & (f.col("copies") > 0) & differs


def _misplaced() -> Column:
    """Whether any of the copies is elsewhere: then the least or the most of their partitions is.

    The partition counts that messages were routed by are in the marks.
    """
    elsewhere = (f.col("least_placed") != f.col("chosen")) | (f.col("most_placed") != f.col("chosen"))
    return f.coalesce(f.col("marked") & (f.col("chosen") >= 0) & elsewhere, f.lit(False))


def _order_group() -> Column:
    """The group in which a message keeps its order, as a pair: whether there is one, and its hash."""
    ordered = f.col("stored") & f.col("position").isNotNull() & f.col("partition_key").isNotNull()
    group = f.when(ordered, f.xxhash64("topic", "spool", _partition(), "partition_key"))
    return f.struct(
        f.coalesce(ordered, f.lit(False)).alias("ordered"),
        group.otherwise(f.abs("sequence") % f.lit(_UNORDERED_GROUPS)).alias("number"),
    )


def _late() -> Column:
    """Whether a message with a higher sequence comes before it in its group."""
    before = (
        Window.partitionBy("order_group.number", "order_group.ordered")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    late = f.col("order_group.ordered") & (f.max("sequence").over(before) > f.col("sequence"))
    return f.coalesce(late, f.lit(False))


_ALIKE = ("content", "sent_ms")


def stamp(
    spool: DataFrame,
    kafka: DataFrame,
    told: Told = NOTHING_TOLD,
) -> DataFrame:
    """The records of `kafka` with the stamps (bruce_spool, bruce_sequence) of the messages that they are.

    Arguments as for `match`, which takes the result as its `kafka`. A record that is no
    message has nulls. Columns: topic, partition, placed, offset, timestamp_ms, content, bruce_spool,
    bruce_sequence.
    """
    rows = _messages(spool, told).unionByName(_records(kafka), allowMissingColumns=True)
    alike = Window.partitionBy(*_ALIKE)
    number = f.row_number().over(
        Window.partitionBy(*_ALIKE, "is_record").orderBy("undelivered", "sequence", "spool", "position")
    )
    counted = rows.withColumns({"messages": f.count("sequence").over(alike), "number": number - 1})
    ordinal: Column = f.when(
        f.col("is_record"), f.col("number") % f.when(f.col("messages") > 0, f.col("messages"))
    ).otherwise(f.col("number"))
    same = Window.partitionBy(*_ALIKE, "ordinal")
    named = counted.withColumn("ordinal", ordinal).withColumns(
        {f"bruce_{name}": f.max(name).over(same) for name in ID}
    )
    return named.where("is_record").select(
        "topic", "partition", "placed", "offset", "timestamp_ms", "content", "bruce_spool", "bruce_sequence"
    )


def _messages(spool: DataFrame, told: Told) -> DataFrame:
    rows = spool.select(*ID, _content(_UNSTAMPED).alias("content"), _sent_ms().alias("sent_ms"))
    undelivered = f.lit(False)
    for name, known in told._asdict().items():
        if known is not None:
            rows = rows.join(known.select(*ID, f.lit(True).alias(name)), list(ID), "left")
            undelivered = undelivered | f.coalesce(f.col(name), f.lit(False))
    return rows.select(*ID, *_ALIKE, undelivered.alias("undelivered"), f.lit(False).alias("is_record"))


def _records(kafka: DataFrame) -> DataFrame:
    return kafka.select(
        "topic",
        "partition",
        _placed(kafka).alias("placed"),
        "offset",
        "timestamp_ms",
        f.col("timestamp_ms").alias("sent_ms"),
        _content(_UNSTAMPED).alias("content"),
        _position().alias("position"),
        f.lit(True).alias("is_record"),
    )
