"""`writeStream.format("bruce-kafka")`: `pipeline.writer` for each batch of a stream.

Spark does not sort a stream, so each task sorts its share of a batch, which it holds in memory. A query that
starts again from its checkpoint loses none. Its last batch comes once more, if that was not finished: with
`transactional.id` nothing of it is sent twice, nor by copies of tasks that speculation makes. A checkpoint
that is made anew counts its batches anew, and needs another `transactional.id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.errors import JobFailed
from pipeline.schema import to_arrow_schema
from pipeline.sink import Delivery, sort_columns
from pipeline.writer import plan_delivery, write_rows

ROWS = 20_000
"""Handed over at a time."""
_BATCH = "streaming.sql.batchId"
"""Spark's property of each task of a batch."""


class KafkaRowWriter(DataSourceStreamWriter):
    """Writes one batch after the other, for PySpark before 4.1, which hands over rows.

    Raises BadSchema when they lack a column. For a batch as a whole there is nothing to commit: what its
    tasks have sent is in Kafka.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._delivery = plan_delivery(options, schema)
        self._schema = to_arrow_schema(schema)

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send the rows of one task of a batch. Raises JobFailed when Kafka will never take one of them."""
        return write_batch(to_batches(iterator, self._schema), self._delivery)


def to_batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows, as columns."""
    while taken := list(islice(rows, ROWS)):
        yield pa.RecordBatch.from_pylist([row.asDict() for row in taken], schema)


def write_batch(batches: Iterator[pa.RecordBatch], delivery: Delivery) -> WriterCommitMessage:
    """Send the rows of one task of a batch. Raises JobFailed when Kafka will never take one of them."""
    if delivery.in_transactions:
        delivery = replace(delivery, epoch=_epoch())
    columns = sort_columns(in_transactions=delivery.in_transactions)
    return write_rows(in_order(batches, columns), delivery)


def _epoch() -> int:
    """That of the batch; an attempt that begins when the next one has its own finds that out."""
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
