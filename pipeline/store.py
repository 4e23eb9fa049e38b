"""A directory wherever Spark can write: a disk, HDFS, an object store. Asked through Hadoop's FileSystem."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.errors import JobFailed


class Store:
    """Names are paths below the directory."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        """Raises JobFailed for an address that Hadoop cannot make anything of."""
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
        """What is in a directory, in order; nothing when it is not there."""
        path = self._path(name)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def read(self, name: str) -> str:
        """A small file."""
        stream = self._fs.open(self._path(name))
        try:
            return str(self._text.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def publish(self, name: str, text: str) -> None:
        """Write a small file, all or nothing. Raises JobFailed when there is one of this name."""
        draft = self._path(f"{name}.tmp")
        stream = self._fs.create(draft, True)
        stream.write(bytearray(text.encode()))
        stream.hsync()
        stream.close()
        try:
            self._rename(draft, self._path(name))
        except Py4JJavaError as error:
            if self._fs.exists(self._path(name)):
                raise JobFailed(f"another job writes to {self.address}; start this one again") from error
            raise
        self._sync([os.path.dirname(name)])

    def move(self, source: str, target: str) -> None:
        """Give a file the name it keeps; done already is well done, too."""
        if not self._fs.exists(self._path(source)):
            return
        self._fs.mkdirs(self._path(target).getParent())
        self._rename(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        """A file, or a directory with all that is in it; gone already is well gone, too."""
        self._fs.delete(self._path(name), True)

    def sync(self, names: Iterable[str]) -> None:
        """Have files on the disk, and the directories they are in: of a local disk only, others see to it."""
        files = list(names)
        self._sync([*files, *{os.path.dirname(name) for name in files}])

    def _sync(self, names: Iterable[str]) -> None:
        if not self.address.startswith("file:"):
            return
        directory = str(self._root.toUri().getPath())
        for name in names:
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
