"""`format("bruce-kafka")` in every PySpark session that finds this package; see `pyspark_bruce`.

spark.read.format("bruce-kafka").option("bootstrap.servers", "kafka-1:9092").option("topics", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from pipeline.kafka.source import KafkaSource


class DefaultSource(DataSource):
    """The records of Kafka, and routed messages on their way there."""

    @classmethod
    def name(cls) -> str:
        """As in `format`."""
        return "bruce-kafka"

    def schema(self) -> StructType:
        """All columns."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a DataFrame."""
        return self._source().reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  (Spark's own)
        """Of a DataFrame that `pipeline.delivery.route` has placed."""
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Of a stream of such rows."""
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> KafkaSource:
        try:
            from pipeline.kafka.source import KafkaSource  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                'format("bruce-kafka") needs bruce-spool[spark] whole in the Python that Spark runs '
                f"(PYSPARK_PYTHON): {error}"
            ) from error
        return KafkaSource(self.options)
