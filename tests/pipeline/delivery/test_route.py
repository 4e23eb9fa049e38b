"""Spark's rows get the partition that the router chooses, and only the backlog goes there."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.delivery.choice import NOWHERE, Routes, Runs
from pipeline.delivery.route import route, undelivered
from spool.format.wire import encode
from tests.pipeline.delivery.test_drain import fill
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.oldest_spark
def test_spark_chooses_by_it(spark: SparkSession, spool: SpoolFixture) -> None:
    """Over a spool's rows, value and all: each row has the partition that its key asks for."""
    spool.append([encode(b"t0", b"%d" % i, key=b"k%d" % i) for i in range(20)])
    spool.append([encode(b"gone", b"")])
    spool.step()
    frame = spark.read.format("bruce").load(str(spool.options.directory))
    rows = (
        route(frame, Routes({"t0": np.ones(7, np.bool_)}, {"t0": "crc32"}))
        .select("sequence", "value", "partition")
        .collect()
    )
    assert {row.sequence: row.partition for row in rows} == {
        **{i: zlib.crc32(b"k%d" % i) % 7 for i in range(20)},
        20: NOWHERE,
    }
    assert all(row.value == b"%d" % row.sequence for row in rows if row.sequence < 20)


def test_only_the_backlog_is_kept(
    spark: SparkSession, spool: SpoolFixture, second_spool: SpoolFixture
) -> None:
    """Rows of runs are kept, others not; of a spool that no run named, none."""
    fill(spool, 40)
    fill(second_spool, 40)
    stored = spark.read.format("bruce").load([str(r.options.directory) for r in (spool, second_spool)])
    backlog = {spool.identity.spool.hex(): Runs.of([(3, 5), (20, 99)], 30)}
    rows = undelivered(stored, backlog).collect()
    assert sorted(row.sequence for row in rows) == [3, 4, *range(20, 30)]
    assert {row.spool for row in rows} == {spool.identity.spool.hex()}
