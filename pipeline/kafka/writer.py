"""`write.format("bruce-kafka")` and `writeStream`: rows into Kafka, by a user's own job.

    placed = route(stored, routes).where("partition >= 0")
    arrange(placed).write.format("bruce-kafka").mode("append").option("bootstrap.servers", ...).save()
    arrange(placed).writeStream.format("bruce-kafka").option("checkpointLocation", ...)....start()

The job leases no spool, and no spool records its outcomes: a daemon does not learn of them. A record that
Kafka refuses fails the task. Options are properties of librdkafka. A task or a batch that is tried again
sends its messages again, unless this option is set:

    transactional.id   names this job, and no other: each (spool, partition) goes in transactions of its own,
           under this name and its own. A second attempt at a task, or a speculative copy, finds in their
           progress records which messages are in Kafka. An attempt that comes after a later batch or job
           sends nothing, and fails. The rows must be arranged with `in_transactions=True`, and get the same
           partitions again
    bruce.progress.topic   where those records are; `bruce-progress` by default

Of two attempts at a task the one that begins last has the name, and fences the other: Kafka takes nothing
from that any more. The fenced attempt follows the new one, and ends well when that has finished. When the new
one is silent for 120 s (dispatch.transactions.runner), because it died, the fenced attempt fails, and Spark
tries the task again.

Spark does not sort a stream, so each task of a stream sorts its share of a batch, which it holds in memory. A
query that starts again from its checkpoint loses none. If its last batch was not finished, the batch comes
once more: with `transactional.id` none of it is sent twice, even by speculative copies of tasks. A new
checkpoint counts its batches from 0, and needs another `transactional.id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from dispatch.transactions.closing import epoch_of
from pipeline.delivery.sink import COLUMNS, OPTIONAL, Delivery, carry_all, sort_columns
from pipeline.delivery.task_book import open_topic, patiently
from pipeline.errors import BadSchema, JobFailed
from pipeline.source.schema import to_arrow_schema
from pipeline.spark_release import ARROW_STREAM_WRITERS, has
from spool.format.wire import reason_name
from spool.words import reason_in_words

TRANSACTIONAL_ID = "transactional.id"
PROGRESS_TOPIC = "bruce.progress.topic"


def plan_delivery(options: Mapping[str, str], schema: StructType) -> Delivery:
    """The delivery of these options. Raises BadSchema when the rows lack a column."""
    if missing := [name for name in COLUMNS if name not in (*OPTIONAL, *schema.names)]:
        raise BadSchema(
            f"to be delivered, rows need the columns {', '.join(missing)}: "
            "pass the frame through pipeline.delivery.route.route and pipeline.delivery.sink.arrange"
        )
    kafka = dict(options)
    name = kafka.pop(TRANSACTIONAL_ID, "")
    topic = kafka.pop(PROGRESS_TOPIC, DispatchOptions().progress_topic)
    mode = "exactly_once" if name else "at_least_once"
    return Delivery(DispatchOptions(kafka=kafka, mode=mode, progress_topic=topic), transactional_id=name)


class KafkaWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame, which are in order.

    Raises BadSchema when it lacks a column, Unreachable when its records must be read and Kafka is away.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        delivery = plan_delivery(options, schema)
        self._delivery = (
            replace(delivery, epoch=_next_epoch(delivery)) if delivery.in_transactions else delivery
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises JobFailed when Kafka refuses one for good."""
        return write_rows(iterator, self._delivery)


def _next_epoch(delivery: Delivery) -> int:
    """An epoch that no job of this name has had. Raises Unreachable."""
    name = f"{delivery.transactional_id}-"
    with open_topic(delivery.options, name) as topic:
        family, _ = patiently(topic.read_family)
    return 1 + epoch_of(family.values(), "", None)


def write_rows(batches: Iterator[pa.RecordBatch], delivery: Delivery) -> WriterCommitMessage:
    """Send the rows of one task. Raises JobFailed when Kafka refuses one for good."""
    for spool, (sequences, reasons) in carry_all(batches, delivery):
        refused = np.flatnonzero(reasons)
        if len(refused):
            first = int(refused[0])
            raise JobFailed(
                f"Kafka refuses message {sequences[first]} of spool {spool}: "
                f"{reason_in_words(reason_name(int(reasons[first])))}; {len(refused)} refused so far"
            )
    return WriterCommitMessage()


ROWS = 20_000
"""Rows of a sorted batch that are handed over at a time."""
_BATCH = "streaming.sql.batchId"
"""Spark's property of each task of a batch."""


class KafkaRowWriter(DataSourceStreamWriter):
    """Writes one batch after the other, for PySpark before 4.1, which hands over rows.

    Raises BadSchema when they lack a column. A batch as a whole needs no commit: all that its tasks have sent
    is in Kafka.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._delivery = plan_delivery(options, schema)
        self._schema = to_arrow_schema(schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send the rows of one task of a batch. Raises JobFailed when Kafka refuses one for good."""
        return write_batch(to_batches(iterator, self._schema), self._delivery)


if has(ARROW_STREAM_WRITERS):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class KafkaArrowWriter(DataSourceStreamArrowWriter):
        """The same for PySpark from 4.1 on, which hands over columns."""

        def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
            self._delivery = plan_delivery(options, schema)

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Send the rows of one task of a batch. Raises JobFailed when Kafka refuses one for good."""
            return write_batch(iterator, self._delivery)


def to_batches(rows: Iterator[Row], schema: pa.Schema, most: int = ROWS) -> Iterator[pa.RecordBatch]:
    """The same rows, as columns; at most `most` rows in each batch."""
    while taken := list(islice(rows, most)):
        yield pa.RecordBatch.from_pylist([row.asDict() for row in taken], schema)


def write_batch(batches: Iterator[pa.RecordBatch], delivery: Delivery) -> WriterCommitMessage:
    """Send the rows of one task of a batch. Raises JobFailed when Kafka refuses one for good."""
    if delivery.in_transactions:
        delivery = replace(delivery, epoch=_epoch())
    columns = sort_columns(in_transactions=delivery.in_transactions)
    return write_rows(in_order(batches, columns), delivery)


def _epoch() -> int:
    """The epoch of the batch; an attempt that begins after the next batch finds out that it is late."""
    task = TaskContext.get()
    number = task.getLocalProperty(_BATCH) if task else None
    if number is None:
        raise JobFailed("Spark does not tell which batch of the stream this is: leave transactional.id away")
    return 2 * int(number)


def in_order(batches: Iterable[pa.RecordBatch], columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The same rows, sorted by these columns."""
    rows = list(batches)
    if rows:
        whole = pa.Table.from_batches(rows).sort_by([(name, "ascending") for name in columns])
        yield from whole.to_batches(max_chunksize=ROWS)
