"""The readers of `format("bruce")`: of parts, on the executors, and of a stream, on the driver.

A stream finds its offsets by `pipeline.source.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.errors import SegmentGone
from pipeline.job import freeze_imports
from pipeline.source.groups import Group, group, parts_of
from pipeline.source.rows import read_part
from pipeline.source.schema import to_arrow_schema
from pipeline.source.segments import DamagedFile, Part
from pipeline.spark_release import READ_LIMITS, has

if TYPE_CHECKING:
    from pipeline.source.offsets import Offset, StreamOffsets


Planner = Callable[[Sequence[Any]], list[Part | DamagedFile]]
"""From filters (pyspark.sql.datasource) to the parts that may hold rows that pass them."""


class SegmentReader(DataSourceReader):
    """Reads parts into Arrow batches."""

    def __init__(self, plan: Planner, schema: StructType, mode: str, *, fail_on_loss: bool = True) -> None:
        self._plan: Planner | None = plan
        self._filters: list[Any] = []
        self._schema = schema
        self._mode, self._fail_on_loss = mode, fail_on_loss

    def __getstate__(self) -> dict[str, Any]:
        """The state for an executor: without the plan, which needs the spool's index."""
        return {**self.__dict__, "_plan": None, "_filters": []}

    def partitions(self) -> list[Group]:
        assert self._plan is not None
        return group(self._plan(self._filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema)
        for part in parts_of(partition):
            try:
                yield from read_part(part, schema, self._mode)
            except SegmentGone:
                if self._fail_on_loss:
                    raise
        freeze_imports("read")


class PruningReader(SegmentReader):
    """The same, for a DataFrame that is read once.

    PySpark 4.3 keeps the result of `pushFilters` for all uses of a DataFrame: a second use, also in the same
    query, would silently lack the rows that the first one filtered out. So users must enable it.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802  (Spark's name)
        """Keep them for the plan. Spark applies all of them, too: here they choose segments, not rows."""
        self._filters = filters
        return filters


class SpoolStream(DataSourceStreamReader):
    """The stream of some spools; subclasses choose how far a batch goes."""

    def __init__(self, offsets: StreamOffsets, schema: StructType, mode: str) -> None:
        self._on_driver: StreamOffsets | None = offsets
        self._schema, self._mode = schema, mode

    def __getstate__(self) -> dict[str, Any]:
        """The state for an executor: without the offsets, which need the spools' indices."""
        return {**self.__dict__, "_on_driver": None}

    @property
    def _offsets(self) -> StreamOffsets:
        assert self._on_driver is not None
        return self._on_driver

    # The names are Spark's.

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def partitions(self, start: Offset, end: Offset) -> list[Group]:
        return group(self._offsets.parts(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema)
        for part in parts_of(partition):
            yield from read_part(part, schema, self._mode)
        freeze_imports("read")


class WholeStream(SpoolStream):
    """For PySpark before 4.2: a batch takes all there is, and with availableNow a query is one batch.

    Spark tells only by `partitions` how far the stream is. For a query that starts again, that is an empty
    batch before its first one; Spark's own wrapper for availableNow, which is off by default, asks before
    that how far to go.
    """

    def __init__(self, offsets: StreamOffsets, schema: StructType, mode: str) -> None:
        super().__init__(offsets, schema, mode)
        self._reached: Offset | None = None

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  (as it was before 4.2)
        self._reached = self._offsets.latest(self._reached or {}, None)
        return self._reached

    def partitions(self, start: Offset, end: Offset) -> list[Group]:
        if self._reached is None:
            self._reached = end
        self._offsets.demand(end, self._reached)
        return super().partitions(start, end)


if has(READ_LIMITS):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    class LimitedStream(SpoolStream, SupportsTriggerAvailableNow):
        """For PySpark from 4.2 on, which asks how far a batch goes; `limit`: its bytes, more or less."""

        def __init__(self, offsets: StreamOffsets, schema: StructType, mode: str, limit: int | None) -> None:
            super().__init__(offsets, schema, mode)
            self._limit = limit
            self._start: Offset = {}

        # The names are Spark's.

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadMaxBytes(self._limit) if self._limit else ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._offsets.stay()

        def reportLatestOffset(self) -> Offset:  # noqa: N802
            """The end of what is committed, for the progress of the query: batches may be behind it."""
            return self._offsets.latest(self._start, None)

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
            self._start = start
            return self._offsets.latest(start, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)
