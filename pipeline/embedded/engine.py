"""DuckDB as the engine of a job, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset
from sqlframe.base.session import _BaseSession
from sqlframe.duckdb import DuckDBSession, Window

from pipeline.computed import Computed
from pipeline.embedded.connection import connect, values_of, working
from pipeline.embedded.dataset import Scanned, SpoolDataset
from pipeline.embedded.records import RecordDataset
from pipeline.embedded.words import Functions, text_of
from pipeline.engine import DataFrame, Records, Words, using
from pipeline.errors import JobFailed
from pipeline.kafka.ends import uncommitted
from pipeline.kafka.ranges import Range, plan_ranges
from pipeline.kafka.records import OURS


class DuckEngine:
    """Implements `pipeline.engine.Engine`: a connection for each job, which takes its tables along."""

    def __init__(self) -> None:
        self._scanned: list[Scanned] = []

    def progress(self) -> tuple[int, int]:
        """Of the present job, or the last one: the rows read, and those known; more may become known."""
        return sum(one.read for one in self._scanned), sum(one.rows_known for one in self._scanned)

    @contextmanager
    def working(self) -> Iterator[None]:
        self._scanned = []
        self._names = (f"bruce_{number}" for number in count())
        try:
            with self._connected(), using(Words(Functions(), Window, self._as_view, text_of)):
                yield
        except (duckdb.Error, pa.ArrowException) as error:
            # An error of ours reaches this through other libraries, which made a text of it.
            for one in self._scanned:
                if one.failure:
                    raise one.failure from None
            raise JobFailed(f"DuckDB: {str(error).splitlines()[0]}") from error

    @contextmanager
    def _connected(self) -> Iterator[None]:
        # SQLFrame keeps one session, and would have the second engine of a process use the first one's.
        before, _BaseSession._instance = _BaseSession._instance, None  # noqa: SLF001
        with connect() as self._connection, working(self._connection) as self._work:
            self._session = DuckDBSession(conn=self._connection)
            try:
                yield
            finally:
                self._session.stop()
                _BaseSession._instance = before  # noqa: SLF001

    def table(self, rows: pa.Table) -> DataFrame:
        return self._register(rows)

    def spools(
        self,
        directories: Sequence[str],
        columns: Sequence[str],
        computed: Computed | None = None,
        begun: Mapping[str, int] | None = None,
    ) -> DataFrame:
        return self._scan(SpoolDataset(directories, columns, computed, begun))

    def records(
        self,
        properties: Mapping[str, str],
        topics: Sequence[str],
        columns: Sequence[str],  # noqa: ARG002  (a query reads those that it needs)
    ) -> Records:
        ranges = plan_ranges(properties, topics)
        return Records(self._scan(RecordDataset(properties, lambda: ranges)), OURS)

    def withheld(self, properties: Mapping[str, str], ranges: Sequence[Range]) -> DataFrame:
        return self._scan(RecordDataset(uncommitted(properties), lambda: ranges))

    def kept(self, frame: DataFrame) -> DataFrame:
        name, sql = next(self._names), _sql_of(frame)
        self._work(lambda: self._connection.execute(f"CREATE TEMPORARY TABLE {name} AS {sql}"))
        return self._named(name)

    def collect(self, frame: DataFrame) -> list[dict[str, Any]]:
        sql = _sql_of(frame)
        rows: pa.Table = self._work(lambda: self._connection.sql(sql).to_arrow_table())
        columns = map(values_of, rows.columns)
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def batches(self, frame: DataFrame, rows: int) -> Iterator[pa.RecordBatch]:
        """Its rows in their order, so many at a time."""
        sql = _sql_of(frame)
        reader = self._work(lambda: self._connection.sql(sql).to_arrow_reader(rows))
        while (batch := self._work(lambda: next(iter(reader), None))) is not None:
            yield batch

    def parquet(self, files: dataset.Dataset) -> DataFrame:
        """The rows of files."""
        return self._register(files)

    def _as_view(self, frame: DataFrame, *_: str) -> DataFrame:
        """The same rows by a name: SQLFrame copies at each step all steps before it."""
        name = next(self._names)
        self._connection.execute(f"CREATE TEMPORARY VIEW {name} AS {_sql_of(frame)}")
        return self._named(name)

    def _scan(self, rows: Scanned) -> DataFrame:
        self._scanned.append(rows)
        return self._register(rows)

    def _register(self, rows: pa.Table | dataset.Dataset) -> DataFrame:
        name = next(self._names)
        self._connection.register(name, rows)
        return self._named(name)

    def _named(self, name: str) -> DataFrame:
        described = self._connection.table(name)
        kinds = map(str, described.types)
        self._session.catalog.add_table(name, dict(zip(described.columns, kinds, strict=True)))
        found: Any = self._session.table(name)
        return found


def _sql_of(frame: DataFrame) -> str:
    any_frame: Any = frame
    # Its optimizer knows no parameters of functions, and DuckDB has one.
    return str(any_frame.sql(dialect="duckdb", optimize=False))
