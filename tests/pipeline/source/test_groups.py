"""Small parts are one task; large ones, and those of unknown size, are not put together."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark.sql.datasource import InputPartition

from pipeline.source.groups import LEAST_BYTES, MOST_BYTES, MOST_PARTS, TASKS, Group, group, parts_of
from pipeline.source.segments import DamagedFile, Part
from spool.format.segment_format import HEADER_BYTES

SIZES = st.lists(st.none() | st.integers(0, 100 << 20) | st.integers(0, 4 << 30), max_size=200)


def part(number: int, size: int | None) -> Part:
    """A segment with that many bytes of frames."""
    end = None if size is None else HEADER_BYTES + size
    return Part(directory="/s", spool="ab", host=None, number=number, first_sequence=0, end=end)


@given(SIZES)
def test_groups(sizes: list[int | None]) -> None:
    """They have every part once, in order; none is too large or has too many, unless it is one part.

    And no two that follow one another could have been one.
    """
    parts = [part(number, size) for number, size in enumerate(sizes)]
    found = group(parts)
    assert [one for group in found for one in group.parts] == parts
    known = [MOST_BYTES if size is None else size for size in sizes]
    limit = min(max(sum(known) // TASKS, LEAST_BYTES), MOST_BYTES)
    held = [[known[one.number] for one in group.parts if isinstance(one, Part)] for group in found]
    for here in held:
        assert 0 < len(here) <= MOST_PARTS
        assert len(here) == 1 or sum(here) <= limit
    for here, there in pairwise(held):
        assert len(here) == MOST_PARTS or sum(here) + there[0] > limit


@pytest.mark.parametrize(
    ("count", "size", "tasks"),
    [(500, 16 << 10, 8), (75, 1 << 20, 5), (32, 64 << 20, 32), (10_000, 64 << 20, 1250)],
)
def test_tasks(count: int, size: int, tasks: int) -> None:
    """A fleet of little, a young spool, a spool of segments of the default size, and a large fleet."""
    assert len(group([part(number, size) for number in range(count)])) == tasks


def test_damaged_segments_go_along() -> None:
    """Nothing is read of them. A plan without parts is one partition of Spark's own, with none."""
    damaged = DamagedFile("/s", "ab", None, 1, 0, ".seg", 1 << 40)
    assert group([part(0, 5), damaged, part(2, 5)]) == [Group((part(0, 5), damaged, part(2, 5)))]
    assert group([]) == []
    assert list(parts_of(InputPartition(0))) == []
