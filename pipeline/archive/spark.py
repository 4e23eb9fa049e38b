"""An archive written by Spark, at any address that Hadoop knows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.archive.files import EVERY_S, File, Staged
from pipeline.archive.log import ArchiveLog, Store
from pipeline.errors import ArchiveConflict, JobFailed
from pipeline.source.archived import read_archive
from pipeline.source.fields import PARTITIONS
from pipeline.source.schema import ARCHIVE_SCHEMA

_ORDER = (*PARTITIONS, "spool", "sequence")


class HadoopStore:
    """Implements `pipeline.archive.log.Store`."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        """Raises JobFailed for an address that Hadoop does not understand."""
        # Spark has no public way to Hadoop's classes.
        context: Any = session.sparkContext
        gateway, configuration = context._gateway, context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._hadoop, self._text = gateway.jvm.org.apache.hadoop.fs, gateway.jvm.org.apache.commons.io
        how = getattr(self._hadoop, "Options$Rename")
        self._never_over = gateway.new_array(how, 1)
        self._never_over[0] = how.NONE
        try:
            path = self._hadoop.Path(directory)
            self._fs = path.getFileSystem(configuration)
            self._files = self._hadoop.FileContext.getFileContext(path.toUri(), configuration)
        except Py4JJavaError as error:
            raise JobFailed(f"{directory} cannot be used: {error.java_exception.getMessage()}") from error
        self._root = self._fs.makeQualified(path)
        self.address: str = self._root.toString()
        """With its scheme, as Spark's readers and writers take it."""

    def within(self, name: str) -> str:
        """The address of a name."""
        return f"{self.address}/{name}"

    def list(self, name: str) -> list[str]:
        """The names in a directory, in order; none when there is no such directory."""
        path = self._path(name)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def read(self, name: str, most: int) -> bytes:
        """A file, or as many bytes of it."""
        stream = self._fs.open(self._path(name))
        try:
            bounded = self._text.input.BoundedInputStream(stream, most)
            return bytes(self._text.IOUtils.toByteArray(bounded))
        finally:
            stream.close()

    def publish(self, name: str, text: str) -> None:
        """Write a small file, all or nothing. Raises ArchiveConflict when there is one of this name."""
        # Of its own: that of another job may be renamed at this moment.
        draft = self._path(f"{name}.{uuid.uuid4().hex}.tmp")
        stream = self._fs.create(draft, False)
        stream.write(bytearray(text.encode()))
        stream.hsync()
        stream.close()
        try:
            self._rename(draft, self._path(name))
        except Py4JJavaError as error:
            if self._fs.exists(self._path(name)):
                raise ArchiveConflict(
                    f"another job writes to {self.address}; start this one again"
                ) from error
            raise
        self._sync([os.path.dirname(name)])

    def move(self, source: str, target: str) -> None:
        """Give a file the name it keeps; no error when that was done before."""
        if not self._fs.exists(self._path(source)):
            return
        self._fs.mkdirs(self._path(target).getParent())
        self._rename(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; no error when it is gone."""
        self._fs.delete(self._path(name), True)

    def sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Sync files and their directories; only of a local disk, since other stores do it themselves."""
        files = list(names)
        self._sync([*files, *{os.path.dirname(name) for name in files}], may_be_gone=may_be_gone)

    def _sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:
        if not self.address.startswith("file:"):
            return
        directory = str(self._root.toUri().getPath())
        for name in names:
            with suppress(*([FileNotFoundError] if may_be_gone else [])):
                fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def _rename(self, source: Any, target: Any) -> None:
        """Raises Py4JJavaError when there is a file of that name: this rename overwrites nothing."""
        self._files.rename(source, target, self._never_over)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._root, name) if name else self._root


class SparkFiles:
    """Implements `pipeline.archive.files.Files`."""

    def __init__(self, session: SparkSession, target: str) -> None:
        """Raises JobFailed for an address that Hadoop does not understand."""
        self._session, self._place = session, HadoopStore(session, target)
        self.store: Store = self._place
        self.address, self.every_s = self._place.address, EVERY_S

    def open(self) -> ArchiveLog:
        return ArchiveLog(self.store)

    def write(self, rows: DataFrame, staging: str) -> Staged:
        """Few files, none of them too large."""
        return self._write_in_order(in_tasks(rows), staging)

    def visible(self) -> list[File]:
        return self._list(self.store.address)

    def count(self, names: Sequence[str]) -> int:
        return self._read(names).count()

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        """The rows of one bin are one task's."""
        rows = self._read([name for names in bins for name in names])
        return self._write_in_order(in_bins(rows, bins), staging)

    def _read(self, names: Sequence[str]) -> DataFrame:
        rows = self._session.read.schema(ARCHIVE_SCHEMA).option("basePath", self.store.address)
        return rows.parquet(*map(self._place.within, names))

    def _write_in_order(self, rows: DataFrame, staging: str) -> Staged:
        address = self._place.within(staging)
        rows.write.partitionBy(*PARTITIONS).option("compression", "zstd").parquet(address)
        moves = [(f"{staging}/{file.name}", file.name) for file in self._list(address)]
        # Counted from the files' footers.
        counts = read_archive(self._session, address).groupBy("topic").count().orderBy("topic").collect()
        return Staged(moves, {row["topic"]: row["count"] for row in counts})

    def _list(self, address: str) -> list[File]:
        """Spark lists many directories at a time."""
        found = self._session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(address)
        rows = found.select("path", "length").collect()
        return sorted((File(_below(row.path), row.length) for row in rows), key=lambda file: file.name)


def in_tasks(rows: DataFrame) -> DataFrame:
    """Spark splits partitions that are too large for one task, and joins those that are too small."""
    return rows.hint("rebalance", *PARTITIONS).sortWithinPartitions(*_ORDER)


def in_bins(rows: DataFrame, bins: Sequence[Sequence[str]]) -> DataFrame:
    """The rows of files: those of one bin, which has the last parts of their names, in one task."""
    named = [(name, number) for number, names in enumerate(bins) for name in names]
    table = rows.sparkSession.createDataFrame(named, "file string, bin int")
    # The path is an encoded URI, but nothing in its last parts needs that.
    file = f.substring_index("_metadata.file_path", "/", -(len(PARTITIONS) + 1))
    together = rows.withColumn("file", file).join(f.broadcast(table), "file").repartition(len(bins), "bin")
    return together.sortWithinPartitions(*_ORDER).drop("file", "bin")


def _below(path: str) -> str:
    """`topic=.../date=.../name` of a file's whole address."""
    return "/".join(path.split("/")[-len(PARTITIONS) - 1 :])
