"""A job on Spark: our code in its Python workers, and its failure as one sentence where possible.

A worker computes columns. A reused worker collects garbage after each task (`pyspark.daemon`). The collector
looks at every object, also those of all imported libraries. That took longer than to read a segment and make
its columns: `freeze_imports` hides these objects from the collector.
"""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from pipeline.computed import Computed
from pipeline.errors import JobFailed
from pipeline.spark_release import ARROW_FUNCTIONS, has

_KINDS: dict[pa.DataType, DataType] = {
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
}
_OUR_ERROR = re.compile(r"^(?:pipeline|dispatch|spool)\.errors\.\w+: (.+)$", re.MULTILINE)
_LOST = re.compile(r"ExecutorLostFailure \(.+?\)(?: Reason: .+)?|Python worker exited unexpectedly")
_REFUSED = re.compile(
    r"(?:java\.io\.FileNotFoundException|java\.nio\.file\.AccessDeniedException|java\.net\.\w+Exception"
    r"|org\.apache\.hadoop\.[\w.]+Exception|java\.io\.IOException): (.+)"
)


def with_column(frame: DataFrame, computed: Computed) -> DataFrame:
    """`frame` with this column."""
    kind = _KINDS[computed.kind]
    if not has(ARROW_FUNCTIONS):
        return _with_column_mapped(frame, computed, kind)
    # Spark's own types do not know this kind of function.
    from pyspark.sql.pandas import functions  # noqa: PLC0415

    make: Any = functions.arrow_udf

    def compute(batches: Iterator[Any]) -> Iterator[Any]:
        yield from computed.function(batches)
        freeze_imports(computed.name)

    # Spark tells by the types what kind of function it is, and cannot read them as strings.
    compute.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return frame.withColumn(computed.name, make(compute, kind)(*computed.of))


def _with_column_mapped(frame: DataFrame, computed: Computed, kind: DataType) -> DataFrame:
    """The same by a map over whole rows: all columns go through Python, also those that it does not need."""
    kept, wanted = frame.drop(computed.name), list(computed.of)
    schema = StructType([*kept.schema.fields, StructField(computed.name, kind)])

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: deque[pa.RecordBatch] = deque()

        def columns() -> Iterator[tuple[pa.Array, ...]]:
            for batch in batches:
                waiting.append(batch)
                yield tuple(batch.column(one) for one in wanted)

        for made in computed.function(columns()):
            batch = waiting.popleft()
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, made], names=[*batch.schema.names, computed.name]
            )

    return kept.mapInArrow(append, schema)


@cache
def freeze_imports(kind: str) -> None:  # noqa: ARG001  (another kind of task has imported more)
    """At the end of a task: from now on the collector skips the objects that exist.

    Runs once for each `kind` of task in a process. Objects are still freed, except for cycles among those
    that existed.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def explained() -> Iterator[None]:
    """Raise JobFailed for our own errors on an executor, for a lost executor, and for errors of files.

    Spark wraps our error in the whole traceback of a worker.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if found := _OUR_ERROR.findall(text):
            raise JobFailed(found[-1]) from error
        if lost := _LOST.search(text):
            raise JobFailed(
                f"Spark lost the process of a task each time it tried ({lost[0].strip()}): see whether its "
                "host has memory for it; the same command may be given again"
            ) from error
        if refused := _REFUSED.search(text):
            raise JobFailed(f"Spark: {refused[1]}") from error
        raise
