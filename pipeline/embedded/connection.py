"""A connection to DuckDB in this process, which reads what it is given, and nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.errors import BadQuery

Work = Callable[[Callable[[], Any]], Any]
"""Carries out a step, and returns its result."""
_SETTINGS = (
    # It would go to standard output.
    "SET enable_progress_bar = false; SET enable_external_access = false; SET lock_configuration = true"
)


@contextmanager
def connect() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB puts into a temporary folder whatever does not fit the memory.

    It opens no other file or address, and loads no extension.
    """
    with tempfile.TemporaryDirectory(prefix="bruce-query-") as folder:
        connection = duckdb.connect(config={"temp_directory": folder, "python_enable_replacements": "false"})
        try:
            connection.execute(_SETTINGS)
            yield connection
        finally:
            connection.close()


@contextmanager
def working(connection: duckdb.DuckDBPyConnection) -> Iterator[Work]:
    """Has another thread work: DuckDB's own code would let no signal through to this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="query") as thread:

        def work(step: Callable[[], Any]) -> Any:
            try:
                return thread.submit(step).result()
            except KeyboardInterrupt:
                connection.interrupt()
                raise

        yield work


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a result: times with their zone, whole numbers of any size as such.

    Raises BadQuery for a time that Python cannot have.
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        raise BadQuery(
            "a time in the answer is not within the years 1 to 9999: select it as text, or leave it out"
        ) from None
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return [value and value.replace(tzinfo=UTC) for value in values]
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [value if value is None else int(value) for value in values]
    return values
