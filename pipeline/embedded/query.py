"""SQL over spools and archives, by DuckDB in this process.

    spool     the messages in some spools: the columns of `pipeline.source.fields`
    archive   the rows of an archive: `pipeline.archive`

The SQL is somebody's who may read the spools, and no more: it opens no other file or address, loads no
extension, and writes nothing. DuckDB puts into a temporary folder whatever does not fit the memory.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset

from pipeline.embedded.dataset import NAMES, SpoolDataset
from pipeline.errors import BadQuery, JobFailed
from pipeline.source.fields import DAMAGE, UNREAD
from pipeline.source.remote import is_address, local_path, remote, shown

Work = Callable[[Callable[[], Any]], Any]
"""Carries out a step, and returns its result."""
_SETTINGS = (
    # It would go to standard output.
    "SET enable_progress_bar = false; SET enable_external_access = false; SET lock_configuration = true"
)
_WORD = re.compile(r"[A-Za-z_]+")
_QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_FOLDERS = dataset.partitioning(pa.schema([("topic", pa.string()), ("date", pa.date32())]), flavor="hive")


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
            yield from zip(*map(_values, batch.columns), strict=True)

    def _next(self) -> pa.RecordBatch | None:
        return next(iter(self._reader), None)


@contextmanager
def ask(sql: str, paths: Sequence[str], archive: str | None = None) -> Iterator[Answer]:
    """The answer, to be read within the context; KeyboardInterrupt ends the work on it.

    Raises BadQuery for SQL that is wrong, or is no query; also while the answer is read, JobFailed, NoSpool,
    BadOption, UnknownVersion, OSError.
    """
    spool = SpoolDataset(paths, columns_of(sql))
    with tempfile.TemporaryDirectory(prefix="bruce-query-") as folder, _connect(folder) as connection:
        connection.register("spool", spool)
        if archive is not None:
            connection.register("archive", open_archive(archive))
        try:
            _check(connection.extract_statements(sql))
            connection.execute(_SETTINGS)
            with _working(connection) as work:
                yield Answer(work(lambda: connection.sql(sql).to_arrow_reader()), work)
        except (duckdb.Error, pa.ArrowException) as error:
            # An error of ours reaches this through other libraries, which made a text of it.
            if spool.failure:
                raise spool.failure from None
            lacking = archive is None and "Table with name archive" in str(error)
            hint = "; give --archive DIR" if lacking else ""
            raise BadQuery(str(error).splitlines()[0] + hint) from error


@contextmanager
def _working(connection: duckdb.DuckDBPyConnection) -> Iterator[Work]:
    """Has another thread work: DuckDB's own code would let no signal through to this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="query") as thread:

        def work(step: Callable[[], Any]) -> Any:
            try:
                return thread.submit(step).result()
            except KeyboardInterrupt:
                connection.interrupt()
                raise

        yield work


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return [value and value.replace(tzinfo=UTC) for value in values]
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [value if value is None else int(value) for value in values]
    return values


@contextmanager
def _connect(folder: str) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(config={"temp_directory": folder, "python_enable_replacements": "false"})
    try:
        yield connection
    finally:
        connection.close()


def _check(statements: Sequence[duckdb.Statement]) -> None:
    """Raise BadQuery unless this is one query."""
    if len(statements) != 1 or statements[0].type not in _QUERIES:
        raise BadQuery("this is no query: one SELECT is, and nothing that writes or sets something")


def columns_of(sql: str) -> list[str]:
    """The columns of `spool`: those that tell of damage only if the SQL names them, since they bring rows."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return [name for name in NAMES if name in words or name not in (*DAMAGE, UNREAD[0])]


def open_archive(address: str) -> dataset.Dataset:
    """The Parquet files of an archive. Raises JobFailed when there are none."""
    try:
        place = remote(address) if is_address(address) else None
        files, path = (place.files, place.directory) if place else (None, local_path(address))
        found = dataset.dataset(path, filesystem=files, format="parquet", partitioning=_FOLDERS)
    except pa.ArrowInvalid as error:
        raise JobFailed(f"{shown(address)} holds no archive: not all of its files are Parquet") from error
    except OSError as error:
        raise JobFailed(f"{shown(address)} cannot be read: {error.strerror or error}") from error
    if "sequence" not in found.schema.names:
        raise JobFailed(f"{shown(address)} holds no archive")
    return found
