"""SQL over spools and archives, by DuckDB in this process.

    spool     the messages in some spools: the columns of `pipeline.source.fields`
    archive   the rows of an archive: `pipeline.archive`

The SQL is somebody's who may read the spools, and no more: it writes nothing, either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset

from pipeline.archive.log import is_iceberg
from pipeline.embedded.connection import Work, connect, values_of, working
from pipeline.embedded.dataset import NAMES, SpoolDataset, parquet_of
from pipeline.errors import BadQuery, JobFailed
from pipeline.source.fields import CONTENT, DAMAGE, UNREAD
from pipeline.source.remote import is_address, local_path, remote, shown

_WORD = re.compile(r"[A-Za-z_]+")
_QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}


class Answer:
    """The answer to a question, while its connection is open."""

    def __init__(self, reader: pa.RecordBatchReader, work: Work) -> None:
        self._reader, self._work = reader, work
        self.columns: list[str] = reader.schema.names

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, as they come: times with their zone, whole numbers of any size as such.

        Raises as `ask` does.
        """
        while (batch := self._work(self._next)) is not None:
            yield from zip(*map(values_of, batch.columns), strict=True)

    def _next(self) -> pa.RecordBatch | None:
        return next(iter(self._reader), None)


@contextmanager
def ask(sql: str, paths: Sequence[str], archive: str | None = None) -> Iterator[Answer]:
    """The answer, to be read within the context; KeyboardInterrupt ends the work on it.

    Raises BadQuery for SQL that is wrong, or is no query; also while the answer is read, JobFailed, NoSpool,
    BadOption, UnknownVersion, OSError.
    """
    spool = SpoolDataset(paths, columns_of(sql))
    with connect() as connection:
        connection.register("spool", spool)
        if archive is not None:
            connection.register("archive", open_archive(archive))
        try:
            _check(connection.extract_statements(sql))
            with working(connection) as work:
                yield Answer(work(lambda: connection.sql(sql).to_arrow_reader()), work)
        except (duckdb.Error, pa.ArrowException) as error:
            # An error of ours reaches this through other libraries, which made a text of it.
            if spool.failure:
                raise spool.failure from None
            lacking = archive is None and "Table with name archive" in str(error)
            hint = "; give --archive DIR" if lacking else ""
            raise BadQuery(str(error).splitlines()[0] + hint) from error


def _check(statements: Sequence[duckdb.Statement]) -> None:
    """Raise BadQuery unless this is one query."""
    if len(statements) != 1 or statements[0].type not in _QUERIES:
        raise BadQuery("this is no query: one SELECT is, and nothing that writes or sets something")


def columns_of(sql: str) -> list[str]:
    """The columns of `spool`: those that tell of damage only if the SQL names them, since they bring rows."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return [name for name in NAMES if name in words or name not in (*DAMAGE, UNREAD[0], CONTENT[0])]


def open_archive(address: str) -> dataset.Dataset:
    """The Parquet files of an archive. Raises JobFailed when there are none."""
    if is_iceberg(address):
        return _open_iceberg(address)
    try:
        place = remote(address) if is_address(address) else None
        files, path = (place.files, place.directory) if place else (None, local_path(address))
        found = parquet_of(path, files)
    except pa.ArrowInvalid as error:
        raise JobFailed(f"{shown(address)} holds no archive: not all of its files are Parquet") from error
    except OSError as error:
        raise JobFailed(f"{shown(address)} cannot be read: {error.strerror or error}") from error
    if "sequence" not in found.schema.names:
        raise JobFailed(f"{shown(address)} holds no archive")
    return found


def _open_iceberg(directory: str) -> dataset.Dataset:
    from pipeline.archive.iceberg import TABLE, explained  # noqa: PLC0415  (pyiceberg)
    from pipeline.archive.iceberg_changes import ArchiveReader  # noqa: PLC0415

    reader = ArchiveReader(directory, "", TABLE)
    if not reader.find():
        raise JobFailed(f"{directory} holds no archive")
    try:
        with explained(directory):
            files = [local_path(file) for file in reader.files()]
        if not files:
            raise JobFailed(f"{directory} holds no archive: nothing was committed to its table yet")
        return parquet_of(files, folders=None)
    finally:
        reader.close()
