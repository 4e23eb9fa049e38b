"""What filters spare is told from footers, and never anything that passes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import datasource as f

from pipeline.pushdown import Bounds, may_hold, sequences

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
BOUNDS = Bounds(
    {"sequence": (10, 20), "received_at": (NOON_US, NOON_US + 5)},
    [
        {"topic": ("a", "a"), "timestamp_ms": (1, 5)},
        {"topic": ("b", "b"), "timestamp_ms": (50, 60)},
    ],
)


@pytest.mark.parametrize(
    ("expected", "filters"),
    [
        (True, []),
        (True, [f.EqualTo(("sequence",), 20)]),
        (False, [f.EqualTo(("sequence",), 21)]),
        (False, [f.EqualNullSafe(("sequence",), 9)]),
        (True, [f.GreaterThan(("sequence",), 19)]),
        (False, [f.GreaterThan(("sequence",), 20)]),
        (True, [f.GreaterThanOrEqual(("sequence",), 20)]),
        (False, [f.LessThan(("sequence",), 10)]),
        (True, [f.LessThanOrEqual(("sequence",), 10)]),
        (False, [f.In(("sequence",), (1, 9, 21))]),
        (False, [f.In(("topic",), ("c", "d"))]),
        (False, [f.EqualTo(("topic",), "c")]),
        (True, [f.EqualTo(("topic",), "b"), f.GreaterThan(("timestamp_ms",), 59)]),
        (False, [f.EqualTo(("topic",), "a"), f.GreaterThan(("timestamp_ms",), 59)]),
        (True, [f.Not(f.EqualTo(("topic",), "a"))]),
        (False, [f.Not(f.In(("topic",), ("a", "b")))]),
        (False, [f.StringStartsWith(("topic",), "x")]),
        (True, [f.StringContains(("topic",), "b")]),
        (True, [f.LessThanOrEqual(("received_at",), NOON)]),
        (False, [f.LessThan(("received_at",), NOON)]),
        (False, [f.GreaterThan(("received_at",), NOON + timedelta(microseconds=5))]),
        # What is not understood, or what a damaged range passes, spares nothing.
        (True, [f.EqualTo(("value",), b"x")]),
        (True, [f.EqualTo(("sequence",), "21")]),
        (True, [f.EqualNullSafe(("sequence",), None)]),
        (True, [f.In(("topic",), (None, "c"))]),
        (True, [f.IsNull(("topic",))]),
        (True, [f.Not(f.EqualNullSafe(("sequence",), 15))]),
        (True, [f.EqualTo(("received_at",), datetime(2020, 1, 1))]),  # noqa: DTZ001
    ],
)
def test_what_may_be_there(expected: bool, filters: list[f.Filter]) -> None:  # noqa: FBT001
    """A segment is spared when all filters together let nothing of it through, and only then."""
    assert may_hold(BOUNDS, filters) is expected


def test_sequences_are_narrowed() -> None:
    """All filters on the sequence count, others do not."""
    filters = [
        f.GreaterThan(("sequence",), 5),
        f.LessThan(("sequence",), 100),
        f.In(("sequence",), (7, 9, 2)),
        f.EqualTo(("segment",), 3),
        f.Not(f.EqualTo(("sequence",), 1)),
        f.EqualNullSafe(("sequence",), None),
    ]
    assert sequences(filters) == (6, 9)
