"""A column computed from others by a function over Arrow arrays, whichever way this PySpark has for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from pipeline.spark_release import ARROW_FUNCTIONS, has

Function = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]
"""For each tuple, which has an array for each column, one array of as many rows: of one task, in order."""


def with_column(frame: DataFrame, name: str, kind: DataType, function: Function, *of: str) -> DataFrame:
    """`frame` with a column `name`, of type `kind`, that `function` makes of the columns `of`."""
    if not has(ARROW_FUNCTIONS):
        return _with_column_mapped(frame, name, kind, function, of)
    # Spark's own types do not know this kind of function.
    from pyspark.sql.pandas import functions  # noqa: PLC0415

    make: Any = functions.arrow_udf

    def compute(batches: Iterator[Any]) -> Iterator[Any]:
        return function(batches)

    # Spark tells by the types what kind of function it is, and cannot read them as strings.
    compute.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return frame.withColumn(name, make(compute, kind)(*of))


def _with_column_mapped(
    frame: DataFrame, name: str, kind: DataType, function: Function, of: Iterable[str]
) -> DataFrame:
    """The same by a map over whole rows: all columns go through Python, those that it needs not, too."""
    kept, wanted = frame.drop(name), list(of)
    schema = StructType([*kept.schema.fields, StructField(name, kind)])

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: deque[pa.RecordBatch] = deque()

        def columns() -> Iterator[tuple[pa.Array, ...]]:
            for batch in batches:
                waiting.append(batch)
                yield tuple(batch.column(one) for one in wanted)

        for made in function(columns()):
            batch = waiting.popleft()
            yield pa.RecordBatch.from_arrays([*batch.columns, made], names=[*batch.schema.names, name])

    return kept.mapInArrow(append, schema)
