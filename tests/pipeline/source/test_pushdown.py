"""Filters spare what footers rule out, and nothing that passes; all ranges together are the segment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import datasource as f

from pipeline.source.plan import plan_spool
from pipeline.source.pushdown import Bounds, choose, may_hold, sequences
from pipeline.source.segments import Part, SegmentReading
from spool.format.frame import POSITION
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file

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
        # A filter that is not understood, or that a damaged range passes, spares nothing.
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


MEBIBYTE = 1 << 20
SIZE = 100_000
"""The bytes of a range; marks have a distance of 64 KiB."""


@pytest.fixture
def large(tmp_path: object) -> SpoolFixture:
    """A spool of a sealed segment of 1 MiB and a live one."""
    spool = SpoolFixture(tmp_path, segment_bytes=MEBIBYTE, max_bytes=8 * MEBIBYTE)  # type: ignore[arg-type]
    for number in range(1200):
        spool.append([encode(b"t", b"%d" % number + b"v" * 1000)])
        if number % 50 == 0:
            spool.step()  # an entry of the index each
    spool.step()
    spool.crash()
    assert len(spool.layout.list_segments()) == 2
    return spool


def read(parts: list[Part]) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence numbers in the order of the parts, and the damaged ranges."""
    found, damaged = [], []
    for part in parts:
        reading = SegmentReading(part)
        for piece in reading.pieces():
            found += piece.batch.sequence.tolist()
        damaged += reading.damaged
    return found, damaged


def test_ranges_are_the_segment(large: SpoolFixture) -> None:
    """Each message is in one range, those of the live segment too; a packed segment is one."""
    parts = choose(plan_spool(large.layout), part_bytes=SIZE)
    assert read(parts) == (list(range(1200)), [])
    assert len([part for part in parts if part.number == 1]) > 5
    assert len([part for part in parts if part.number == 2]) > 1
    pack_file(large.layout.segment(0))
    parts = choose(plan_spool(large.layout), part_bytes=SIZE)
    assert len([part for part in parts if part.number == 1]) == 1
    assert read(parts) == (list(range(1200)), [])


def test_damage_at_the_edge_of_a_range(large: SpoolFixture) -> None:
    """The ranges find the same messages and the same bytes as the whole does, wherever damage is."""
    plan = plan_spool(large.layout)
    edge = choose(plan, part_bytes=SIZE)[1].start
    assert edge
    length = int(plan.segments[0].end[POSITION] - 384) // plan.parts[1].first_sequence  # type: ignore[index]
    for offsets in (
        (edge[0] + 33,),
        (edge[0] - 9,),
        (edge[0] - 9, edge[0] + 33),
        (edge[0] + 33, edge[0] + length + 33),
    ):
        data = large.layout.segment(0).read_bytes()
        with large.layout.segment(0).open("r+b") as file:
            for offset in offsets:
                file.seek(offset)
                file.write(b"\xff\xff")
        whole, lost = read(plan.parts)
        found, damaged = read(choose(plan, part_bytes=SIZE))
        assert len(whole) == 1200 - len(offsets)
        assert found == whole
        assert {at for one in damaged for at in range(*one)} == {at for one in lost for at in range(*one)}
        large.layout.segment(0).write_bytes(data)


def test_a_sequence_is_sought(large: SpoolFixture) -> None:
    """In a segment only the frames are read between whose marks the asked sequence numbers are."""
    plan = plan_spool(large.layout)
    for first, last in ((0, 0), (500, 510), (920, 930), (1199, 1199), (70, 900)):
        filters = [f.GreaterThanOrEqual(("sequence",), first), f.LessThan(("sequence",), last + 1)]
        found, _ = read(choose(plan, filters))
        assert {*range(first, last + 1)} <= {*found}
        assert len(found) <= last - first + 1 + 2 * 70
