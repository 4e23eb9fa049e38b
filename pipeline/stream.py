"""The half of `spark.readStream.format("bruce")` that Spark talks to; `pipeline.places` does the work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.reader import read_part
from pipeline.segments import DamagedFile, Part
from pipeline.worker import freeze_imports

if TYPE_CHECKING:
    from pipeline.places import Offset, Places


class SpoolStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of some spools; `limit`: bytes of a batch, more or less."""

    def __init__(self, places: Places, schema: StructType, mode: str, limit: int | None) -> None:
        self._places: Places | None = places
        self._schema, self._mode, self._limit = schema, mode, limit

    def __getstate__(self) -> dict[str, Any]:
        """What an executor needs: not the places, which need the spools' indices."""
        return {**self.__dict__, "_places": None}

    # The names are Spark's.

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        assert self._places is not None
        self._places.stay()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        assert self._places is not None
        return self._places.latest(start, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)

    def partitions(self, start: Offset, end: Offset) -> list[Part | DamagedFile]:
        assert self._places is not None
        return self._places.parts(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_part(partition, self._schema, self._mode)
        freeze_imports("read")
