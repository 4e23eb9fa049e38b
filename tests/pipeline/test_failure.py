"""A job that fails says why in one sentence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from pipeline.errors import JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As whoever the kernel kills for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


@pytest.mark.spark
def test_a_worker_that_dies(spark: SparkSession) -> None:
    """Not what the JVM noticed first, a connection reset, but that the process is gone, and what to do."""
    from pipeline.failure import explained

    with (
        pytest.raises(JobFailed, match=r"^Spark lost the process of a task .*has memory for it"),
        explained(),
    ):
        spark.range(4).mapInArrow(die, "id long").collect()


def test_an_executor_that_is_lost() -> None:
    """As Spark tells it, of executors in processes of their own; the reason stands in the sentence."""
    from pipeline.failure import explained

    said = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost "
        "task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 2): ExecutorLostFailure (executor 2 exited caused "
        "by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:\n\tat org"
    )
    with pytest.raises(JobFailed, match="exited with code 137\\): see") as failed, explained():
        raise PySparkException(said)
    assert "\n" not in str(failed.value)
