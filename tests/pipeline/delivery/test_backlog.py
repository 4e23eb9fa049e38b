"""The messages that no daemon has delivered, as runs of sequence numbers by which Spark filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pipeline.delivery.backlog import Runs, undelivered
from tests.pipeline.delivery.test_drain import fill
from tests.pipeline.delivery.test_route_plan import numbers
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6), st.integers(0, 50))
def test_runs_hold_what_lies_in_them(gaps: list[tuple[int, int]], end: int) -> None:
    """As a set of numbers would, below their end."""
    runs, at = [], 0
    for gap, length in gaps:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    numbers = {n for first, last in runs for n in range(first, last) if n < end}
    made = Runs.of(runs, end)
    assert len(made) == len(numbers)
    assert set(np.flatnonzero(made.hold(np.arange(60))).tolist()) == numbers


@pytest.mark.spark
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


def test_runs_without_some() -> None:
    """Sequences cut out of runs leave the numbers on both sides."""
    runs = Runs.of([(0, 5), (7, 8), (10, 20)], 18)
    left = runs.without(numbers(0, 2, 3, 6, 7, 12, 17, 19))
    assert np.flatnonzero(left.hold(np.arange(30))).tolist() == [1, 4, 10, 11, 13, 14, 15, 16]
    assert len(left) == 8
