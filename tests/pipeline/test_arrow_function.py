"""A function over Arrow columns gives the same whichever way this PySpark has for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = (1 << 62) + 1
"""A float has no such number."""


@pytest.mark.spark
@pytest.mark.parametrize("version", ["4.0.0", "4.1.0"])
def test_each_row_keeps_its_own(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Over many batches of many tasks, nulls and large numbers; a column of that name is replaced."""
    from pyspark.sql.types import LongType

    from pipeline import spark_release
    from pipeline.arrow_function import with_column

    monkeypatch.setattr(spark_release, "version", lambda: version)

    def less(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        before = 0
        for numbers, least in batches:
            # Of one task, in order: what a function has learned holds for the batches behind.
            assert before <= least[0].as_py()
            before = least[0].as_py()
            yield pa.array([None if n is None else n - 1 for n in numbers.to_pylist()], pa.int64())

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "7")
    try:
        rows = spark.range(0, 100, 1, 3).selectExpr(
            "id", f"if(id % 3 = 0, null, id + {LARGE}) n", "cast(id as string) text", "1 made"
        )
        found = with_column(rows, "made", LongType(), less, "n", "id").collect()
    finally:
        spark.conf.unset(setting)
    assert [row.asDict() for row in sorted(found, key=lambda row: row.id)] == [
        {"id": i, "n": n, "text": str(i), "made": None if n is None else n - 1}
        for i, n in ((i, None if i % 3 == 0 else i + LARGE) for i in range(100))
    ]
