"""The effect of tasks on the worker that runs them, and a function over Arrow columns with any PySpark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pipeline.computed import Computed
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import os
import signal
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from pipeline.errors import JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def test_the_first_task_of_a_kind_freezes_what_is_imported(spool: SpoolFixture) -> None:
    """After a part was read, the collector passes over what is there; further ones change nothing."""
    pytest.importorskip("pyspark")
    from pipeline.job import freeze_imports
    from pipeline.source.groups import Group
    from pipeline.source.plan import plan_spool
    from pipeline.source.reader import SegmentReader
    from pipeline.source.rows import PERMISSIVE
    from pipeline.source.schema import SCHEMA

    spool.fill(200)
    spool.step()
    reader = SegmentReader(lambda _: plan_spool(spool.layout).parts, SCHEMA, PERMISSIVE)
    first, second, *_ = (Group((part,)) for group in reader.partitions() for part in group.parts)
    freeze_imports.cache_clear()
    gc.unfreeze()
    try:
        assert sum(batch.num_rows for batch in reader.read(first))
        frozen = gc.get_freeze_count()
        assert frozen > len(gc.get_objects())
        assert sum(batch.num_rows for batch in reader.read(second))
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
        freeze_imports.cache_clear()


LARGE = (1 << 62) + 1
"""A float has no such number."""


@pytest.mark.spark
@pytest.mark.parametrize("version", ["4.0.0", "4.1.0"])
def test_each_row_keeps_its_own(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Over many batches of many tasks, nulls and large numbers; a column of that name is replaced."""
    from pipeline import spark_release
    from pipeline.job import with_column

    monkeypatch.setattr(spark_release, "version", lambda: version)

    def less(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        before = 0
        for numbers, least in batches:
            # The batches of one task, in order: what a function has learned holds for the batches behind.
            assert before <= least[0].as_py()
            before = least[0].as_py()
            yield pa.array([None if n is None else n - 1 for n in numbers.to_pylist()], pa.int64())

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "7")
    try:
        rows = spark.range(0, 100, 1, 3).selectExpr(
            "id", f"if(id % 3 = 0, null, id + {LARGE}) n", "cast(id as string) text", "1 made"
        )
        found = with_column(rows, Computed("made", pa.int64(), less, ("n", "id"))).collect()
    finally:
        spark.conf.unset(setting)
    assert [row.asDict() for row in sorted(found, key=lambda row: row.id)] == [
        {"id": i, "n": n, "text": str(i), "made": None if n is None else n - 1}
        for i, n in ((i, None if i % 3 == 0 else i + LARGE) for i in range(100))
    ]


def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As whoever the kernel kills for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


@pytest.mark.spark
def test_a_worker_that_dies(spark: SparkSession) -> None:
    """Not what the JVM noticed first, a connection reset, but that the process is gone, and what to do."""
    from pipeline.job import explained

    with (
        pytest.raises(JobFailed, match=r"^Spark lost the process of a task .*has memory for it"),
        explained(),
    ):
        spark.range(4).mapInArrow(die, "id long").collect()


def test_an_executor_that_is_lost() -> None:
    """As Spark reports it, of executors in processes of their own; the reason is in the sentence."""
    from pipeline.job import explained

    said = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost "
        "task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 2): ExecutorLostFailure (executor 2 exited caused "
        "by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:\n\tat org"
    )
    with pytest.raises(JobFailed, match="exited with code 137\\): see") as failed, explained():
        raise PySparkException(said)
    assert "\n" not in str(failed.value)
