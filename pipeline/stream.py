"""The half of `spark.readStream.format("bruce")` that Spark talks to; `pipeline.places` does the work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.reader import read_part
from pipeline.segments import DamagedFile, Part
from pipeline.worker import freeze_imports

if TYPE_CHECKING:
    from pipeline.places import Offset, Places


class SpoolStream(DataSourceStreamReader):
    """The stream of some spools: all of it but how far a batch goes."""

    def __init__(self, places: Places, schema: StructType, mode: str) -> None:
        self._beside: Places | None = places
        self._schema, self._mode = schema, mode

    def __getstate__(self) -> dict[str, Any]:
        """What an executor needs: not the places, which need the spools' indices."""
        return {**self.__dict__, "_beside": None}

    @property
    def _places(self) -> Places:
        assert self._beside is not None
        return self._beside

    # The names are Spark's.

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def partitions(self, start: Offset, end: Offset) -> list[Part | DamagedFile]:
        return self._places.parts(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_part(partition, self._schema, self._mode)
        freeze_imports("read")


class WholeStream(SpoolStream):
    """For PySpark before 4.2: a batch takes all there is, and with availableNow a query is one batch.

    Spark says where the stream stands by `partitions` alone. Of a query that starts again, that is an empty
    batch before its first one; with Spark's own wrapper for availableNow, which is off by default, it has
    asked by then how far to go.
    """

    def __init__(self, places: Places, schema: StructType, mode: str) -> None:
        super().__init__(places, schema, mode)
        self._reached: Offset | None = None

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  (as it was before 4.2)
        self._reached = self._places.latest(self._reached or {}, None)
        return self._reached

    def partitions(self, start: Offset, end: Offset) -> list[Part | DamagedFile]:
        if self._reached is None:
            self._reached = end
        self._places.demand(end, self._reached)
        return super().partitions(start, end)
