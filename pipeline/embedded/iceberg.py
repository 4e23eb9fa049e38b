"""The files of an Iceberg table, written by this process (`pipeline.archive.iceberg`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

from pyarrow import fs
from pyiceberg.table import Table

from pipeline.archive.files import Staged
from pipeline.archive.iceberg import COLUMNS, IcebergTable
from pipeline.embedded.dataset import parquet_of
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.folder_writer import ORDER, SIZES, FolderWriter, Sizes
from pipeline.engine import DataFrame


class IcebergFiles(IcebergTable):
    """Implements `pipeline.archive.files.Files`."""

    def __init__(self, engine: DuckEngine, table: Table, sizes: Sizes = SIZES) -> None:
        super().__init__(table)
        self._engine, self._sizes = engine, sizes

    def write(self, rows: DataFrame, staging: str) -> Staged:
        """Write rows below `staging`."""
        return self._write([rows], staging)

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        """Write the rows of each bin as one file."""
        return self._write([self._read(self.locations(names)) for names in bins], staging)

    def _read(self, locations: Sequence[str]) -> DataFrame:
        files, _ = self.place(locations[0])
        return self._engine.parquet(parquet_of([self.place(one)[1] for one in locations], files, None))

    def _write(self, tables: Sequence[DataFrame], staging: str) -> Staged:
        """The rows of each table, in files of their own."""
        root = self.root(staging)
        files, path = self.place(root)

        def create(name: str) -> BinaryIO:
            files.create_dir(f"{path}/{name.rpartition('/')[0]}")
            made: BinaryIO = files.open_output_stream(f"{path}/{name}")
            return made

        with FolderWriter(COLUMNS, create, self._sizes) as writer:
            for rows in tables:
                writer.add_all(self._engine.batches(rows.orderBy(*ORDER), self._sizes.batch_rows))
                writer.end_file()
        if isinstance(files, fs.LocalFileSystem):
            for name in writer.names:
                _sync(f"{path}/{name}")
        return Staged([(f"{root}/{name}", name) for name in writer.names], writer.topics)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
