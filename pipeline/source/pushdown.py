"""The parts of a plan that a query needs: segments that can hold wanted rows, large ones in several parts.

Headers and footers give the bounds of a segment. Spark keeps every filter: a segment that may hold a row is
read, and Spark drops its other rows. An unknown filter prunes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.source.plan import Mark, Segment, SpoolPlan
from pipeline.source.segments import DamagedFile, Part, topic_name
from spool.format.segment_format import HEADER_BYTES, Footer
from spool.index.log_end import has_unlisted
from spool.read.files import CLOCK_NS, FOR_EVER

PART_BYTES = 64 << 20
"""A part has not many more: a segment of the default size is one part."""

Interval = tuple[Any, Any]
"""Minimum and maximum, both inclusive."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_TOPIC = ("topic", "timestamp_ms", "created_at")


def choose(
    plan: SpoolPlan, filters: Sequence[Any] = (), part_bytes: int = PART_BYTES
) -> list[Part | DamagedFile]:
    """The parts that may hold a message which passes all filters (of pyspark.sql.datasource).

    Damaged files are among them: a reader makes one row of such a file, nothing, or an error.
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
    """The frames of a segment that may have these sequence numbers, about `part_bytes` each."""
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
    """The beginnings of the parts after the first; none of a packed segment, which is unpacked as a whole."""
    at = start[0] if start else HEADER_BYTES
    while not packed:
        found = bisect_left(marks, at + part_bytes, key=lambda mark: mark[0])
        if found == len(marks):
            return
        yield marks[found]
        at = marks[found][0]


@dataclass(frozen=True, slots=True)
class GreaterThanOrEqual:
    """A filter like that of pyspark.sql.datasource, for when Spark does not hand one on."""

    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of the values of a segment's messages; any other column may hold anything."""

    columns: dict[str, Interval]
    topics: list[dict[str, Interval]] = field(default_factory=list)
    """Of each topic, _OF_TOPIC; none when the topics are not known."""


def bounds_of(columns: dict[str, Interval], first_sequence: int, footer: Footer | None) -> Bounds:
    """The bounds of a segment, with the given bounds of `columns`."""
    if footer is None:
        return Bounds(columns | {"sequence": (first_sequence, FOR_EVER)})
    fields, marks, topics, _ = footer
    # Times of a few frames and of the last: in no order, since clocks may be set back.
    received = [int(fields["last_received_ns"]), *marks["received_ns"].tolist()]
    known = {
        "sequence": (first_sequence, int(fields["next_sequence"]) - 1),
        "received_at": ((min(received) - CLOCK_NS) // 1000, (max(received) + CLOCK_NS) // 1000),
    }
    named = [] if has_unlisted(footer) else topics
    return Bounds(columns | known, [_topic(name, first, last) for name, _, first, last in named])


def _topic(name: bytes, first_ms: int, last_ms: int) -> dict[str, Interval]:
    text = topic_name(name)
    times = (first_ms, last_ms), (1000 * first_ms, 1000 * last_ms)
    return dict(zip(_OF_TOPIC, ((text, text), *times), strict=True))


def may_hold(bounds: Bounds, filters: Sequence[Any]) -> bool:
    """Whether a segment can hold a message that passes all filters, which are of pyspark.sql.datasource."""
    if not _passes(bounds.columns, filters):
        return False
    return not bounds.topics or any(_passes(topic, filters) for topic in bounds.topics)


def sequences(filters: Iterable[Any]) -> Interval:
    """The lowest and the highest sequence number that pass the filters."""
    least, most = 0, FOR_EVER
    for one in filters:
        if getattr(one, "attribute", None) != ("sequence",) or not hasattr(one, "value"):
            continue
        values = one.value if isinstance(one.value, (tuple, list)) else (one.value,)
        if not values or not all(isinstance(value, int) for value in values):
            continue
        kind = type(one).__name__
        if kind in ("EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual"):
            least = max(least, min(values) + (kind == "GreaterThan"))
        if kind in ("EqualTo", "EqualNullSafe", "In", "LessThan", "LessThanOrEqual"):
            most = min(most, max(values) - (kind == "LessThan"))
    return least, most


def _passes(columns: dict[str, Interval], filters: Iterable[Any]) -> bool:
    return all(_may_pass(columns, one) for one in filters)


def _may_pass(columns: dict[str, Interval], one: Any) -> bool:
    # By name: PySpark 4.0 has a Python data source, and no filters yet.
    inner = getattr(one, "child", one)
    test = _TESTS.get(("Not" if inner is not one else "") + type(inner).__name__)
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if test is None or len(path) != 1 or path[0] not in columns:
        return True
    try:
        return test(columns[path[0]], _plain(inner.value))
    except TypeError:
        return True  # a null, or of another type: Spark's to judge


def _plain(value: Any) -> Any:
    """A value in the form of bounds: a time in µs since the epoch."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value


def _in(interval: Interval, values: Any) -> bool:
    return any(interval[0] <= value <= interval[1] for value in values)


def _of_text(test: Callable[[str, str], bool]) -> Callable[[Interval, Any], bool]:
    return lambda interval, value: interval[0] != interval[1] or test(interval[0], value)


_TESTS: dict[str, Callable[[Interval, Any], bool]] = {
    "EqualTo": lambda i, value: i[0] <= value <= i[1],
    "EqualNullSafe": lambda i, value: i[0] <= value <= i[1],
    "In": _in,
    "GreaterThan": lambda i, value: i[1] > value,
    "GreaterThanOrEqual": lambda i, value: i[1] >= value,
    "LessThan": lambda i, value: i[0] < value,
    "LessThanOrEqual": lambda i, value: i[0] <= value,
    "NotEqualTo": lambda i, value: not i[0] == i[1] == value,
    "NotIn": lambda i, values: i[0] != i[1] or i[0] not in values,
    "StringStartsWith": _of_text(str.startswith),
    "StringEndsWith": _of_text(str.endswith),
    "StringContains": _of_text(str.__contains__),
}
"""Whether a value in an interval can pass, by the name of the filter. None for filters that a null passes: a
damaged range, whose row has nulls, must not be skipped with its segment."""
