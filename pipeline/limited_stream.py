"""A stream of spools whose batches take no more than is wanted, as PySpark 4.2 and newer asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.stream import SpoolStream

if TYPE_CHECKING:
    from pipeline.places import Offset, Places


class LimitedStream(SpoolStream, SupportsTriggerAvailableNow):
    """The stream of some spools; `limit`: bytes of a batch, more or less."""

    def __init__(self, places: Places, schema: StructType, mode: str, limit: int | None) -> None:
        super().__init__(places, schema, mode)
        self._limit = limit

    # The names are Spark's.

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._places.stay()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return self._places.latest(start, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)
