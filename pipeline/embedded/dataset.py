"""Spools as a dataset of Arrow's: a reader asks for columns, and gets the rows of `pipeline.source.rows`.

DuckDB, Polars and pyarrow's own functions scan a `pyarrow.dataset.Dataset` with the columns and the condition
of a query. A scan plans when it begins: it reads all that is committed then. Parts are read by threads, a few
ahead of the reader: loops and decompression hold no lock of Python's.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from pipeline.computed import Computed
from pipeline.embedded.pruning import prune
from pipeline.source.fields import ARCHIVED, CONTENT, DAMAGE, PARTITIONS, STORED, TIMES, UNREAD, to_schema
from pipeline.source.outcomes import tell_delivered
from pipeline.source.plan import plan_spools
from pipeline.source.pushdown import GreaterThanOrEqual, choose
from pipeline.source.rows import PERMISSIVE, read_part
from pipeline.source.segments import DamagedFile, Part

_WORD = re.compile(r"\w+")
MOST_THREADS = 4
"""A part may be 64 MiB, and its rows are in memory until they are read."""
FOLDERS = dataset.partitioning(to_schema(PARTITIONS), flavor="hive")
"""The folders of an archive."""
# Of archives that were written with Spark's default.
_FORMAT = dataset.ParquetFileFormat(read_options=dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
_PLAIN = (*(name for name, *_ in STORED), UNREAD[0])
NAMES = (*_PLAIN, CONTENT[0])


class Scanned(dataset.Dataset, ABC):  # type: ignore[misc]  # pyarrow has no types
    """A dataset whose rows are made when they are read."""

    def __init__(self, schema: pa.Schema) -> None:
        """`schema`: of all columns."""
        self.failure: Exception | None = None
        """The error that ended a scan: readers in other languages hand on its text alone."""
        self.read = self.rows_known = 0
        """Rows of all scans so far, and about how many they will have."""
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self._schema

    @abstractmethod
    def rows(self, schema: pa.Schema, condition: dataset.Expression | None) -> Iterator[pa.RecordBatch]:
        """The rows with these columns; those that do not meet the condition may be left out."""

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,  # noqa: A002  (pyarrow's name)
        **_: object,
    ) -> dataset.Scanner:
        """The rows that pass the filter, with these columns.

        Raises, also while it is read, what `rows` does.
        """
        wanted = list(self._schema.names if columns is None else columns)
        # Expressions do not tell their columns: a name that is only in a text does no harm.
        named = set(_WORD.findall(str(filter))).difference(wanted) if filter is not None else set()
        read = pa.schema([field for field in self._schema if field.name in {*wanted, *named}])
        return dataset.Scanner.from_batches(
            self._told(read, filter), schema=read, columns=wanted, filter=filter
        )

    def _told(self, schema: pa.Schema, condition: dataset.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self.rows(schema, condition):
                self.read += len(rows)
                yield rows
        except Exception as error:
            self.failure = error
            raise


class SpoolDataset(Scanned):
    """The messages in the spools at some paths (globs and addresses, too).

    Times are in UTC and have no zone: DuckDB computes with zones only by an extension.
    """

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] = _PLAIN,
        computed: Computed | None = None,
        begun: Mapping[str, int] | None = None,
    ) -> None:
        """`columns`: of NAMES, in order. Those that name damage bring its rows along, when they are read.

        `computed`: a column beside them, made of some of NAMES. `begun`: by spool, a sequence number:
        segments before it stay closed.
        """
        more = [pa.field(computed.name, computed.kind)] if computed else []
        super().__init__(pa.schema([*_without_zones(to_schema(columns)), *more]))
        self._paths, self._computed, self._begun = list(paths), computed, begun or {}

    def rows(self, schema: pa.Schema, condition: dataset.Expression | None) -> Iterator[pa.RecordBatch]:
        """Reads parts ahead. Raises NoSpool, BadOption, UnknownVersion, JobFailed, OSError."""
        computed = self._computed if self._computed and self._computed.name in schema.names else None
        names = _needed(schema.names, computed)
        parts = deque(self._parts(names, condition))
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="read") as pool:
            ahead: deque[Future[list[pa.RecordBatch]]] = deque()
            try:
                while parts or ahead:
                    while parts and len(ahead) <= threads:
                        ahead.append(pool.submit(_read, parts.popleft(), names, schema, computed))
                    yield from ahead.popleft().result()
            finally:
                # A reader may have enough before the end.
                pool.shutdown(wait=False, cancel_futures=True)

    def _parts(self, names: Sequence[str], condition: dataset.Expression | None) -> list[Part | DamagedFile]:
        found: list[Part | DamagedFile] = []
        for plan in plan_spools(self._paths, skip_read_errors=UNREAD[0] in names):
            # A footer tells nothing of damaged ranges.
            prunes = condition is not None and not {*DAMAGE, UNREAD[0]}.intersection(names)
            needed = prune(plan, condition, self._schema) if prunes else plan
            first = self._begun.get(plan.spool, 0)
            self.rows_known += sum(max(0, end - max(start, first)) for start, end in needed.runs)
            begin = GreaterThanOrEqual(("sequence",), first)
            found += choose(tell_delivered(needed) if "delivered" in names else needed, [begin])
        return found


def _needed(wanted: Sequence[str], computed: Computed | None) -> list[str]:
    """The columns to read, in order."""
    return [name for name in NAMES if name in wanted or (computed and name in computed.of)]


def _read(
    part: Part | DamagedFile, names: Sequence[str], schema: pa.Schema, computed: Computed | None
) -> list[pa.RecordBatch]:
    found = []
    for rows in read_part(part, to_schema(names), PERMISSIVE):
        whole = rows
        if computed:
            made = next(computed.function(iter([tuple(rows.column(name) for name in computed.of)])))
            whole = rows.append_column(computed.name, made)
        found.append(whole.select(schema.names).cast(schema))
    return found


def parquet_of(
    source: str | Sequence[str], filesystem: Any = None, folders: dataset.Partitioning = FOLDERS
) -> dataset.Dataset:
    """The rows of an archive, or of some of its files, whichever engine wrote them; times have no zone.

    `folders`: the columns that are in the names of files; None: none are. Raises OSError, and pa.ArrowInvalid
    for other files.
    """
    found = dataset.dataset(source, filesystem=filesystem, format=_FORMAT, partitioning=folders)
    if "sequence" not in found.schema.names:
        return found
    return dataset.dataset(found.files, _ARCHIVED, _FORMAT, found.filesystem, folders)


def _without_zones(schema: pa.Schema) -> pa.Schema:
    naive = pa.timestamp("us")
    return pa.schema([field.with_type(naive) if field.type == TIMES else field for field in schema])


_ARCHIVED = _without_zones(to_schema(name for name, *_ in ARCHIVED))
