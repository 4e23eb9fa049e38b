"""`DataFrame.mapInArrow` without pandas, which Spark's own asks for and does not use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """A DataFrame of what `function` makes of each task's batches, with the columns of `schema` (DDL)."""
    made = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    # The JVM's half has no public name.
    inner: Any = frame._jdf  # noqa: SLF001
    columns: Any = made(*[frame[name] for name in frame.columns])
    return DataFrame(inner.mapInArrow(columns._jc, False, None), frame.sparkSession)  # noqa: SLF001
