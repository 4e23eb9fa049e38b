"""`format("bruce")` in every PySpark session that finds this package: Spark looks for the name `pyspark_*`.

    spark.read.format("bruce").load("/var/lib/bruce")
    CREATE TEMPORARY VIEW spool USING bruce OPTIONS (path '/var/lib/bruce')

Spark imports all packages of such names before a session's first Python source is used, in a worker. An error
here would break all of them, and what is imported here they wait for: so the source itself
(`pipeline.source.source`) is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from pipeline.source.source import BruceSource


class DefaultSource(DataSource):
    """The messages that spools store."""

    @classmethod
    def name(cls) -> str:
        """As in `format`."""
        return "bruce"

    def schema(self) -> StructType:
        """All columns."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a DataFrame."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Of a stream."""
        return self._source().streamReader(schema)

    def _source(self) -> BruceSource:
        try:
            from pipeline.source.source import BruceSource  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                'format("bruce") needs bruce-spool[spark] whole in the Python that Spark runs '
                f"(PYSPARK_PYTHON): {error}"
            ) from error
        return BruceSource(self.options)
