"""Which segments can hold what a query asks for, told from their headers and footers.

Spark keeps every filter: a segment that may hold a row is read, and what is in it beside is for Spark to
drop. A filter that is not understood prunes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.segments import topic_name
from spool.files import CLOCK_NS, FOR_EVER
from spool.live import Footer, has_unlisted

Interval = tuple[Any, Any]
"""Least and most, both of them among the values."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_TOPIC = ("topic", "timestamp_ms", "created_at")


@dataclass(frozen=True, slots=True)
class GreaterThanOrEqual:
    """A filter as pyspark.sql.datasource has it, for who cannot wait for Spark to hand it on."""

    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class Bounds:
    """Within what the values of a segment's messages lie; a column that is not named may hold anything."""

    columns: dict[str, Interval]
    topics: list[dict[str, Interval]] = field(default_factory=list)
    """Of each topic, _OF_TOPIC; none when the topics are not known."""


def bounds_of(columns: dict[str, Interval], first_sequence: int, footer: Footer | None) -> Bounds:
    """The bounds of a segment, and what else is known of `columns`."""
    if footer is None:
        return Bounds(columns | {"sequence": (first_sequence, FOR_EVER)})
    fields, marks, topics = footer
    # Times of a few frames and of the last: no order among them, since clocks are set.
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
    """Within what the sequence numbers lie that filters let through."""
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
    """A value as bounds have it: of a time the µs since the epoch."""
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
"""Whether a value in an interval can pass, by the name of the filter. None for what a null passes: a damaged
range, whose row has nulls, must not be passed over with its segment."""
