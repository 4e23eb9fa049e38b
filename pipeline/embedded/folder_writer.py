"""Parquet files by topic and day, of rows that come in that order."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, pairwise
from typing import BinaryIO, NamedTuple, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.archive.files import FULL_BYTES
from pipeline.source.fields import PARTITIONS

Create = Callable[[str], BinaryIO]
ORDER = (*PARTITIONS, "spool", "sequence")
"""Of the rows."""


class Sizes(NamedTuple):
    """The sizes of what is written."""

    file_bytes: int = FULL_BYTES
    """A file ends with the row group that reaches it."""
    group_bytes: int = 64 << 20
    """Of rows in memory, until they become a row group."""
    batch_rows: int = 100_000
    """Taken from DuckDB at a time."""


SIZES = Sizes()


class FolderWriter:
    """Writes rows that come in order of their folders: topic=.../date=.../part-....zstd.parquet."""

    def __init__(self, schema: pa.Schema, create: Create, sizes: Sizes = SIZES) -> None:
        """`schema`: the columns of a file; `create` makes the file of a name."""
        self._schema, self._create, self._sizes = schema, create, sizes
        self._folder: tuple[object, ...] = ()
        self._waiting: list[pa.RecordBatch] = []
        self._sink: BinaryIO | None = None
        self._file: parquet.ParquetWriter | None = None
        self.names: list[str] = []
        self._topics: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end_file()
        # The reason is on its way, and what was written counts for nothing.
        for one in (self._file, self._sink):
            with suppress(OSError, ValueError, pa.ArrowException):
                if one:
                    one.close()

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows of `fields.ARCHIVED`."""
        for folder, rows in chain.from_iterable(map(_by_folder, batches)):
            if folder != self._folder:
                self.end_file()
                self._folder = folder
            self._topics[str(folder[0])] += len(rows)
            self._waiting.append(rows.select(self._schema.names).cast(self._schema))
            if sum(one.nbytes for one in self._waiting) >= self._sizes.group_bytes:
                self._write_group()

    def end_file(self) -> None:
        """Rows that follow go into another file."""
        self._write_group()
        if self._file and self._sink:
            self._file.close()
            self._sink.close()
            self._file = self._sink = None

    @property
    def topics(self) -> dict[str, int]:
        """Rows by topic, in order."""
        return dict(sorted(self._topics.items()))

    def _write_group(self) -> None:
        if not self._waiting:
            return
        if self._file is None:
            self._open()
        assert self._file
        assert self._sink
        self._file.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []
        if self._sink.tell() >= self._sizes.file_bytes:
            self.end_file()

    def _open(self) -> None:
        folders = "/".join(
            f"{name}={quote(str(value), safe='')}"
            for name, value in zip(PARTITIONS, self._folder, strict=True)
        )
        self.names.append(f"{folders}/part-{uuid.uuid4().hex}.zstd.parquet")
        self._sink = self._create(self.names[-1])
        self._file = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")


def _by_folder(batch: pa.RecordBatch) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The runs of rows of one folder each."""
    columns = [batch.column(name) for name in PARTITIONS]
    changes = np.zeros(len(batch), np.bool_)
    for column in columns:
        codes = np.asarray(column.dictionary_encode().indices)
        changes[1:] |= codes[1:] != codes[:-1]
    bounds = [0, *np.flatnonzero(changes).tolist(), len(batch)]
    for first, end in pairwise(bounds):
        yield tuple(column[first].as_py() for column in columns), batch.slice(first, end - first)
