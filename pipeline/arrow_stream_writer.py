"""`pipeline.stream_writer` where Spark hands over columns: from PySpark 4.1 on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.stream_writer import write_batch
from pipeline.writer import plan_delivery


class KafkaArrowWriter(DataSourceStreamArrowWriter):
    """Writes one batch after the other. Raises BadSchema when rows lack a column.

    For a batch as a whole there is nothing to commit: what its tasks have sent is in Kafka.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._delivery = plan_delivery(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a batch. Raises JobFailed when Kafka will never take one of them."""
        return write_batch(iterator, self._delivery)
