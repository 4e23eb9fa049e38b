"""An archive in a directory of this host, written by this process."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline.archive.files import FULL_BYTES, File, Staged
from pipeline.archive.log import Store
from pipeline.embedded.engine import DuckEngine
from pipeline.engine import DataFrame
from pipeline.errors import JobFailed
from pipeline.source.fields import ARCHIVED, PARTITIONS, to_schema
from pipeline.source.remote import is_address, local_path, shown
from spool.storage.disk import sync_directory

_IN_FILE = to_schema(name for name, *_ in ARCHIVED if name not in PARTITIONS)
"""The columns of a file: its folders are the others."""
_ORDER = (*PARTITIONS, "spool", "sequence")


class Sizes(NamedTuple):
    """The sizes of what is written."""

    file_bytes: int = FULL_BYTES
    """A file ends with the row group that reaches it."""
    group_bytes: int = 64 << 20
    """Of rows in memory, until they become a row group."""
    batch_rows: int = 100_000
    """Taken from DuckDB at a time."""


_SIZES = Sizes()


class LocalStore:
    """Implements `pipeline.archive.log.Store`."""

    def __init__(self, directory: str) -> None:
        """Raises JobFailed for an address."""
        if is_address(directory) and not directory.startswith("file:"):
            raise JobFailed(
                f"{shown(directory)} is no directory of this host: brucectl spark archive writes to addresses"
            )
        self._root = Path(local_path(directory)).absolute()
        self.address = str(self._root)

    def list(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / name))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> str:
        return (self._root / name).read_text(encoding="utf-8")

    def publish(self, name: str, text: str) -> None:
        path, draft = self._root / name, self._root / f"{name}.tmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        _sync_file(draft)
        try:
            # A rename would take the place of another job's.
            os.link(draft, path)
        except FileExistsError:
            raise JobFailed(f"another job writes to {self.address}; start this one again") from None
        finally:
            draft.unlink()
        sync_directory(path.parent)

    def move(self, source: str, target: str) -> None:
        if not (self._root / source).exists():
            return
        (self._root / target).parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._root / source, self._root / target)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def sync(self, names: Iterable[str]) -> None:
        paths = [self._root / name for name in names]
        for path in paths:
            _sync_file(path)
        for folder in {path.parent for path in paths}:
            sync_directory(folder)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LocalFiles:
    """Implements `pipeline.archive.files.Files`."""

    def __init__(self, engine: DuckEngine, directory: str, sizes: Sizes = _SIZES) -> None:
        """Raises JobFailed for an address."""
        self._engine, self._sizes = engine, sizes
        self.store: Store = LocalStore(directory)
        self._root = Path(self.store.address)

    def write(self, rows: DataFrame, staging: str) -> Staged:
        with _Writer(self._root / staging, self._sizes) as writer:
            writer.add_all(self._in_order(rows))
        return writer.staged(staging)

    def visible(self) -> list[File]:
        found = self._root.glob(f"{PARTITIONS[0]}=*/{PARTITIONS[1]}=*/*.parquet")
        return sorted(
            (File(str(path.relative_to(self._root)), path.stat().st_size) for path in found),
            key=lambda file: file.name,
        )

    def count(self, names: Sequence[str]) -> int:
        return sum(parquet.read_metadata(self._root / name).num_rows for name in names)

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        with _Writer(self._root / staging, self._sizes) as writer:
            for names in bins:
                writer.add_all(
                    self._in_order(self._engine.parquet([str(self._root / name) for name in names]))
                )
                writer.end_file()
        return writer.staged(staging)

    def _in_order(self, rows: DataFrame) -> Iterator[pa.RecordBatch]:
        return self._engine.batches(rows.orderBy(*_ORDER), self._sizes.batch_rows)


class _Writer:
    """Writes rows that come in order of their folders."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self._directory, self._sizes = directory, sizes
        self._folder: tuple[object, ...] = ()
        self._waiting: list[pa.RecordBatch] = []
        self._file: parquet.ParquetWriter | None = None
        self._path = directory
        self._names: list[str] = []
        self._topics: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_file()

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows of `fields.ARCHIVED`."""
        for folder, rows in chain.from_iterable(map(_by_folder, batches)):
            if folder != self._folder:
                self.end_file()
                self._folder = folder
            self._topics[str(folder[0])] += len(rows)
            self._waiting.append(rows.select(_IN_FILE.names).cast(_IN_FILE))
            if sum(one.nbytes for one in self._waiting) >= self._sizes.group_bytes:
                self._write_group()

    def end_file(self) -> None:
        """Rows that follow go into another file."""
        self._write_group()
        if self._file:
            self._file.close()
            self._file = None

    def staged(self, staging: str) -> Staged:
        """All that was written."""
        return Staged(
            [(f"{staging}/{name}", name) for name in self._names], dict(sorted(self._topics.items()))
        )

    def _write_group(self) -> None:
        if not self._waiting:
            return
        file = self._file or self._open()
        file.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []
        if self._path.stat().st_size >= self._sizes.file_bytes:
            self.end_file()

    def _open(self) -> parquet.ParquetWriter:
        folders = "/".join(
            f"{name}={quote(str(value), safe='')}"
            for name, value in zip(PARTITIONS, self._folder, strict=True)
        )
        self._names.append(f"{folders}/part-{uuid.uuid4().hex}.zstd.parquet")
        self._path = self._directory / self._names[-1]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = parquet.ParquetWriter(self._path, _IN_FILE, compression="zstd")
        return self._file


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
