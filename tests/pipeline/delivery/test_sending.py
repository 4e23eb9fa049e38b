"""The jobs' refusals to begin, and the time at which they write down what they have sent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from pipeline.delivery.sending import check_mode, count_outcomes
from pipeline.delivery.sink import Delivery, carry_all
from pipeline.errors import JobFailed
from spool.marks.outcome_file import read_outcomes
from tools.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPOOL = bytes(range(16))


def test_a_mode_that_spark_cannot_keep() -> None:
    """It is refused before anything is borrowed or sent, with what to do instead."""
    for mode in ("at_least_once", "exactly_once"):
        check_mode(DispatchOptions(mode=mode))
    with pytest.raises(JobFailed, match="deliver with `brucectl drain`"):
        check_mode(DispatchOptions(mode="at_most_once"))


def test_a_task_that_waits_writes_down_what_it_has_sent(tmp_path: Path) -> None:
    """With one broker away a task waits, perhaps for hours: what the others have is in a file meanwhile."""
    with EmbeddedKafka(brokers=2, topics=[("t", 2)]) as kafka:
        kafka.down(2)
        numbers = np.arange(100)
        rows = pa.RecordBatch.from_pydict(
            {
                "spool": pa.array([SPOOL.hex()] * 100),
                "sequence": pa.array(numbers),
                "topic": pa.array(["t"] * 100),
                "partition": pa.array(numbers % 2, pa.int32()),
                "partition_key": pa.nulls(100, pa.int32()),
                "timestamp_ms": pa.array(numbers),
                "key": pa.nulls(100, pa.binary()),
                "value": pa.array([b"%d" % n for n in numbers.tolist()]),
            }
        )
        over = threading.Event()
        options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
        delivery = Delivery(options, "job", {SPOOL.hex(): str(tmp_path)})
        told: list[int] = []

        def run() -> None:
            for _, settled in carry_all(iter([rows]), delivery):
                told.extend(settled.sequences.tolist())

        with mock.patch.object(Delivery, "over", side_effect=over.is_set):
            task = threading.Thread(target=run)
            task.start()
            try:
                wait_until(lambda: len(told) == 50, 60, "the first broker to have its messages")
                assert task.is_alive()
                written = [read_outcomes(path) for path in tmp_path.iterdir()]
                assert sum(len(one.sequences) for one in written) == 50
                kafka.up(2)
                wait_until(lambda: len(told) == 100, 60, "the second to have its own")
            finally:
                over.set()
                task.join(60)
    assert sorted(told) == list(range(100))


def test_counting_moves_nothing(spark: SparkSession) -> None:
    """Tasks' outcomes are counted where they were written: in one stage, which no lost executor undoes."""
    context = spark.sparkContext
    told = spark.createDataFrame([(0,)] * 5 + [(4,)] * 2, "reason int").repartition(2).cache()
    told.count()
    context.setJobGroup("counting", "outcomes are counted")
    assert count_outcomes(told) == {0: 5, 4: 2}
    (job,) = context.statusTracker().getJobIdsForGroup("counting")
    info = context.statusTracker().getJobInfo(job)
    assert info is not None
    stages = [context.statusTracker().getStageInfo(stage) for stage in info.stageIds]
    assert sum(stage is not None and stage.numCompletedTasks > 0 for stage in stages) == 1
    told.unpersist()
