"""`writeStream.format("bruce-kafka")`: `pipeline.writer` for each batch of a stream.

Spark does not sort a stream, so each task sorts its share of a batch, which it holds in memory. A query that
starts again from its checkpoint loses none. Its last batch comes once more, if that was not finished: with
`transactional.id` nothing of it is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.sink import sort_columns
from pipeline.writer import plan_delivery, write_rows

ROWS = 20_000
"""Handed over at a time."""


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch after the other. Raises BadSchema when rows lack a column.

    For a batch as a whole there is nothing to commit: what its tasks have sent is in Kafka.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._delivery = plan_delivery(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a batch. Raises JobFailed when Kafka will never take one of them."""
        columns = sort_columns(in_transactions=self._delivery.in_transactions)
        return write_rows(in_order(iterator, columns), self._delivery)


def in_order(batches: Iterable[pa.RecordBatch], columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The same rows, sorted by these columns."""
    rows = list(batches)
    if rows:
        whole = pa.Table.from_batches(rows).sort_by([(name, "ascending") for name in columns])
        yield from whole.to_batches(max_chunksize=ROWS)
