"""The files of an Iceberg table, written by Spark; this process commits them (`pipeline.archive.iceberg`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from pyarrow import fs
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from pipeline.archive.files import Staged
from pipeline.archive.iceberg import IcebergTable, below
from pipeline.archive.spark import in_bins, in_tasks
from pipeline.source.fields import PARTITIONS
from pipeline.source.schema import ARCHIVE_SCHEMA

_FOLDERS = [f"_{name}" for name in PARTITIONS]
"""Columns that name folders are not in Spark's files, and Iceberg tells partitions by columns."""


class SparkIcebergFiles(IcebergTable):
    """Implements `pipeline.archive.files.Files`."""

    def __init__(self, session: SparkSession, table: Table) -> None:
        super().__init__(table)
        self._session = session

    def write(self, rows: DataFrame, staging: str) -> Staged:
        """Write rows below `staging`."""
        return self._write_in_order(in_tasks(rows), staging)

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        """Write the rows of each bin as one file."""
        places = list(map(self.locations, bins))
        rows = self._session.read.schema(ARCHIVE_SCHEMA).parquet(*map(hadoops, chain.from_iterable(places)))
        return self._write_in_order(in_bins(rows, [list(map(below, one)) for one in places]), staging)

    def _write_in_order(self, rows: DataFrame, staging: str) -> Staged:
        root = self.root(staging)
        named = rows.withColumns(dict(zip(_FOLDERS, map(rows.__getitem__, PARTITIONS), strict=True)))
        named.write.partitionBy(*_FOLDERS).option("compression", "zstd").parquet(hadoops(root))
        files, path = self.place(root)
        found = files.get_file_info(fs.FileSelector(path, recursive=True))
        made = [f"{root}{one.path[len(path) :]}" for one in found if one.path.endswith(".parquet")]
        # Counted from the files' footers.
        written = self._session.read.schema(ARCHIVE_SCHEMA).parquet(hadoops(root))
        counts = written.groupBy("topic").count().orderBy("topic").collect()
        return Staged(
            [(one, below(one)) for one in sorted(made)], {row["topic"]: row["count"] for row in counts}
        )


def hadoops(location: str) -> str:
    """A location of Iceberg's as Hadoop has it."""
    return location.replace("s3://", "s3a://", 1)
