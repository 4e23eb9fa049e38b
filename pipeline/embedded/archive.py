"""An archive in a directory of this host, written by this process."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pyarrow import parquet

from pipeline.archive.files import EVERY_S, File, Staged
from pipeline.archive.log import ArchiveLog, Store
from pipeline.embedded.dataset import parquet_of
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.folder_writer import ORDER, SIZES, FolderWriter, Sizes
from pipeline.engine import DataFrame
from pipeline.errors import ArchiveConflict, JobFailed
from pipeline.source.fields import ARCHIVED, PARTITIONS, to_schema
from pipeline.source.remote import is_address, local_path, shown
from spool.storage.disk import sync_directory

_IN_FILE = to_schema(name for name, *_ in ARCHIVED if name not in PARTITIONS)
"""The columns of a file: its folders are the others."""


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

    def read(self, name: str, most: int) -> bytes:
        with (self._root / name).open("rb") as file:
            return file.read(most)

    def publish(self, name: str, text: str) -> None:
        # Of its own: that of another job may be the same file as a commit.
        path, draft = self._root / name, self._root / f"{name}.{uuid.uuid4().hex}.tmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            _sync_file(draft)
            # A rename would take the place of another job's.
            os.link(draft, path)
        except FileExistsError:
            raise ArchiveConflict(f"another job writes to {self.address}; start this one again") from None
        finally:
            draft.unlink(missing_ok=True)
        self._sync_folders([path])

    def move(self, source: str, target: str) -> None:
        if not (self._root / source).exists():
            return
        (self._root / target).parent.mkdir(parents=True, exist_ok=True)
        # Another process may finish the same commit.
        with suppress(FileNotFoundError):
            os.rename(self._root / source, self._root / target)

    def remove(self, name: str) -> None:
        path = self._root / name
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:
        paths = [self._root / name for name in names]
        for path in paths:
            with suppress(*([FileNotFoundError] if may_be_gone else [])):
                _sync_file(path)
        self._sync_folders(paths)

    def _sync_folders(self, paths: Sequence[Path]) -> None:
        # A new folder's name is in the one above it.
        folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(self._root)}
        for folder in folders:
            sync_directory(folder)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LocalFiles:
    """Implements `pipeline.archive.files.Files`."""

    def __init__(self, engine: DuckEngine, directory: str, sizes: Sizes = SIZES) -> None:
        """Raises JobFailed for an address."""
        self._engine, self._sizes = engine, sizes
        self.store: Store = LocalStore(directory)
        self.address, self.every_s = self.store.address, EVERY_S
        self._root = Path(self.address)

    def open(self) -> ArchiveLog:
        return ArchiveLog(self.store)

    def write(self, rows: DataFrame, staging: str) -> Staged:
        return self._write([rows], staging)

    def visible(self) -> list[File]:
        return sorted(self._list(), key=lambda file: file.name)

    def _list(self) -> Iterator[File]:
        for path in self._root.glob(f"{PARTITIONS[0]}=*/{PARTITIONS[1]}=*/*.parquet"):
            # Another job may merge it.
            with suppress(FileNotFoundError):
                yield File(str(path.relative_to(self._root)), path.stat().st_size)

    def count(self, names: Sequence[str]) -> int:
        return sum(parquet.read_metadata(self._root / name).num_rows for name in names)

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        paths = [[str(self._root / name) for name in names] for names in bins]
        return self._write([self._engine.parquet(parquet_of(one)) for one in paths], staging)

    def _write(self, tables: Sequence[DataFrame], staging: str) -> Staged:
        """The rows of each table, in files of their own."""

        def create(name: str) -> BinaryIO:
            path = self._root / staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb")

        with FolderWriter(_IN_FILE, create, self._sizes) as writer:
            for rows in tables:
                writer.add_all(self._engine.batches(rows.orderBy(*ORDER), self._sizes.batch_rows))
                writer.end_file()
        return Staged([(f"{staging}/{name}", name) for name in writer.names], writer.topics)
