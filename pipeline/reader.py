"""The half of `format("bruce")` that travels to the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.columns import to_arrow
from pipeline.segments import Part, SegmentReading


class SegmentReader(DataSourceReader):
    """Reads parts into Arrow batches."""

    def __init__(self, plan: Callable[[], list[Part]], schema: StructType) -> None:
        self._plan: Callable[[], list[Part]] | None = plan
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """What an executor needs: not the plan, which needs the spool's index."""
        return {"_plan": None, "_schema": self._schema}

    def partitions(self) -> list[Part]:
        assert self._plan is not None
        return self._plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without any part Spark makes one of its own.
        if not isinstance(partition, Part):
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for piece in SegmentReading(partition).pieces():
            yield to_arrow(piece, partition, schema)
