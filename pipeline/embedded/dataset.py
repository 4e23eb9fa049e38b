"""Spools as a dataset of Arrow's: a reader asks for columns, and gets the rows of `pipeline.source.rows`.

DuckDB, Polars and pyarrow's own functions scan a `pyarrow.dataset.Dataset` with the columns and the condition
of a query. A scan plans when it begins: it reads all that is committed then. Parts are read by threads, a few
ahead of the reader: loops and decompression hold no lock of Python's.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
from pyarrow import dataset

from pipeline.embedded.pruning import prune
from pipeline.source.fields import DAMAGE, STORED, TIMES, UNREAD, to_schema
from pipeline.source.outcomes import tell_delivered
from pipeline.source.plan import plan_spools
from pipeline.source.pushdown import choose
from pipeline.source.rows import PERMISSIVE, read_part
from pipeline.source.segments import DamagedFile, Part

_WORD = re.compile(r"\w+")
MOST_THREADS = 4
"""A part may be 64 MiB, and its rows are in memory until they are read."""
NAMES = (*(name for name, *_ in STORED), UNREAD[0])


class SpoolDataset(dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The messages in the spools at some paths (globs and addresses, too).

    Times are in UTC and have no zone: DuckDB computes with zones only by an extension.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str] = NAMES) -> None:
        """`columns`: of NAMES, in order. Those that name damage bring its rows along, when they are read."""
        self.failure: Exception | None = None
        """The error that ended a scan: readers in other languages hand on its text alone."""
        self._paths, self._schema = list(paths), _without_zones(to_schema(columns))

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: dataset.Expression | None = None,  # noqa: A002  (pyarrow's name)
        **_: object,
    ) -> dataset.Scanner:
        """The rows that pass the filter, with these columns.

        Raises, also while it is read, NoSpool, BadOption, UnknownVersion, JobFailed, OSError.
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
            yield from self._rows(schema, condition)
        except Exception as error:
            self.failure = error
            raise

    def _rows(self, schema: pa.Schema, condition: dataset.Expression | None) -> Iterator[pa.RecordBatch]:
        parts = deque(self._parts(schema.names, condition))
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="read") as pool:
            ahead: deque[Future[list[pa.RecordBatch]]] = deque()
            try:
                while parts or ahead:
                    while parts and len(ahead) <= threads:
                        ahead.append(pool.submit(_read, parts.popleft(), schema))
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
            found += choose(tell_delivered(needed) if "delivered" in names else needed)
        return found


def _read(part: Part | DamagedFile, schema: pa.Schema) -> list[pa.RecordBatch]:
    return [rows.cast(schema) for rows in read_part(part, to_schema(schema.names), PERMISSIVE)]


def _without_zones(schema: pa.Schema) -> pa.Schema:
    naive = pa.timestamp("us")
    return pa.schema([field.with_type(naive) if field.type == TIMES else field for field in schema])
