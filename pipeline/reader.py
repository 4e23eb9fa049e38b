"""The half of `format("bruce")` that travels to the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.columns import damage_to_arrow, to_arrow
from pipeline.errors import JobFailed, SegmentGone
from pipeline.schema import UNREAD, to_arrow_schema
from pipeline.segments import DamagedFile, Part, SegmentReading
from pipeline.worker import freeze_imports
from spool.errors import ReadFailed

PERMISSIVE, DROPMALFORMED, FAILFAST = MODES = ("permissive", "dropmalformed", "failfast")
"""What becomes of damaged frames, as Spark's own readers name it: rows, nothing, an error."""

_UNREAD = "the disk gives an error for {}; see to it, and start the job again"

BATCH_BYTES = 1 << 20
"""Of a batch handed to Spark, about. The JVM writes it down and then looks at each row of it: what fits the
cache of one core costs it a tenth less. The columns are made of larger chunks, and cut without a copy."""

Planner = Callable[[Sequence[Any]], list[Part | DamagedFile]]
"""From filters (pyspark.sql.datasource) to the parts that may hold what passes them."""


class SegmentReader(DataSourceReader):
    """Reads parts into Arrow batches."""

    def __init__(self, plan: Planner, schema: StructType, mode: str, *, fail_on_loss: bool = True) -> None:
        self._plan: Planner | None = plan
        self._filters: list[Any] = []
        self._schema = schema
        self._mode, self._fail_on_loss = mode, fail_on_loss

    def __getstate__(self) -> dict[str, Any]:
        """What an executor needs: not the plan, which needs the spool's index."""
        return {**self.__dict__, "_plan": None, "_filters": []}

    def partitions(self) -> list[Part | DamagedFile]:
        assert self._plan is not None
        return self._plan(self._filters)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_part(partition, self._schema, self._mode)
        except SegmentGone:
            if self._fail_on_loss:
                raise
        freeze_imports("read")


class PruningReader(SegmentReader):
    """The same, for a DataFrame that is read once.

    PySpark 4.3 keeps what `pushFilters` led to for all readers of a DataFrame: one that is used again, or
    twice in a query, would silently lack what another use of it was not interested in. So this is asked for.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802  (Spark's name)
        """Keep them for the plan. All stay with Spark, too: they choose segments, and no rows."""
        self._filters = filters
        return filters


def read_part(partition: InputPartition, schema: StructType, mode: str) -> Iterator[pa.RecordBatch]:
    """The messages of a part, and what of it is damaged, as `mode` (MODES) wants it.

    A damaged range is a row only where the schema has `damaged` to tell it by: who does not ask for it wants
    messages. Raises SegmentGone when it is not there any more, JobFailed with FAILFAST when it is damaged.
    JobFailed, too, for what the disk gives an error for, unless `passes_by`: then that is a row.
    """
    arrow = to_arrow_schema(schema)
    if isinstance(partition, DamagedFile):
        yield from _read_nothing(partition, arrow, mode)
    # Without any part Spark makes one of its own.
    if not isinstance(partition, Part):
        return
    reading = SegmentReading(partition, passing=passes_by(schema, mode))
    try:
        for piece in reading.pieces():
            _refuse(reading, mode)
            yield from _cut(to_arrow(piece, partition, arrow))
    except ReadFailed as error:
        raise JobFailed(_UNREAD.format(_named(error))) from error
    _refuse(reading, mode)
    if reading.error:
        yield damage_to_arrow(reading.unread, partition, arrow, _named(reading.error))
    if mode == PERMISSIVE and reading.damaged and "damaged" in schema.names:
        yield damage_to_arrow(reading.damaged, partition, arrow)


def _read_nothing(file: DamagedFile, schema: pa.Schema, mode: str) -> Iterator[pa.RecordBatch]:
    """That a segment has no header which could be read."""
    whole = [(0, file.bytes)]
    if file.error:
        # It was planned so for who passes it by.
        yield damage_to_arrow(whole, file, schema, f"{file.place}: {file.error}")
    elif mode == FAILFAST:
        raise JobFailed(
            f"{file.place} has a damaged header, and nothing of it can be read; "
            "mode = permissive makes a row of it, dropmalformed passes it over"
        )
    elif mode == PERMISSIVE and "damaged" in schema.names:
        yield damage_to_arrow(whole, file, schema)


def passes_by(schema: StructType, mode: str) -> bool:
    """Whether what the disk gives an error for ends nothing: who names the column UNREAD sees what it is."""
    return UNREAD.name in schema.names and mode != FAILFAST


def _named(error: ReadFailed) -> str:
    return f"{error.filename}: {error.strerror}"


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about BATCH_BYTES, and of eight rows at least."""
    # A multiple of 8: bitmaps are then cut between bytes, and need no copy.
    count = max(1, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)) + 7 & ~7
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


def _refuse(reading: SegmentReading, mode: str) -> None:
    if mode == FAILFAST and reading.damaged:
        (start, end), part = reading.damaged[0], reading.part
        raise JobFailed(
            f"segment {part.number} of {part.place} is damaged: {end - start} bytes at offset {start} "
            "hold no good frame; mode = permissive makes a row of it, dropmalformed passes it over"
        )
