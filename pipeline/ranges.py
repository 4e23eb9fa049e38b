"""The parts that a query needs of a plan: segments that can hold something of it, large ones in several."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipeline.plan import Mark, Segment, SpoolPlan
from pipeline.pushdown import bounds_of, may_hold, sequences
from pipeline.segments import DamagedFile, Part
from spool.format import HEADER_BYTES

PART_BYTES = 64 << 20
"""A part has not many more: a segment as it is by default is one."""


def choose(
    plan: SpoolPlan, filters: Sequence[Any] = (), part_bytes: int = PART_BYTES
) -> list[Part | DamagedFile]:
    """The parts that may hold a message which passes all filters (of pyspark.sql.datasource).

    Damaged files among them: whoever reads those has one row, nothing, or an error.
    """
    within = sequences(filters)
    damaged = [
        one.file
        for one in plan.damaged
        if may_hold(bounds_of(_named(one.file), one.file.first_sequence, one.footer), filters)
    ]
    return damaged + [
        piece
        for part, segment in zip(plan.parts, plan.segments, strict=True)
        if may_hold(bounds_of(_named(part), part.first_sequence, segment.footer), filters)
        for piece in _cut(part, segment, within, part_bytes)
    ]


def _named(part: Part | DamagedFile) -> dict[str, tuple[Any, Any]]:
    found = {"spool": part.spool, "segment": part.number, "host": part.host}
    return {name: (value, value) for name, value in found.items() if value is not None}


def _cut(part: Part, segment: Segment, within: tuple[int, int], part_bytes: int) -> Iterator[Part]:
    """The frames of a segment that may have these sequence numbers, some `part_bytes` each."""
    if part.end is None:
        yield part
        return
    begin = part.start[0] if part.start else HEADER_BYTES
    marks = [mark for mark in segment.marks if begin < mark[0] < part.end]
    first = bisect_right(marks, within[0], key=lambda mark: mark[1])
    last = bisect_right(marks, within[1], key=lambda mark: mark[1])
    start = marks[first - 1] if first else part.start
    end = marks[last][0] if last < len(marks) else part.end
    starts = [start, *_steps(marks[first:last], start, part_bytes, packed=segment.packed)]
    ends = [*(mark[0] for mark in starts[1:] if mark), end]
    for here, there in zip(starts, ends, strict=True):
        yield replace(part, start=here, end=there)


def _steps(marks: list[Mark], start: Mark | None, part_bytes: int, *, packed: bool) -> Iterator[Mark]:
    """Where the parts behind the first begin; a packed segment is unpacked as a whole, and so is one."""
    at = start[0] if start else HEADER_BYTES
    while not packed:
        found = bisect_left(marks, at + part_bytes, key=lambda mark: mark[0])
        if found == len(marks):
            return
        yield marks[found]
        at = marks[found][0]
