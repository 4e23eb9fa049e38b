"""Ranges of frames: together they are the segment, whatever is damaged."""

from __future__ import annotations

import pytest
from pyspark.sql import datasource as f

from pipeline.plan import plan_spool
from pipeline.ranges import choose
from pipeline.segments import Part, SegmentReading
from spool.frame import POSITION
from spool.wire import encode
from tests.spool.rig import Rig
from tests.spool.stored import pack_file

MEBIBYTE = 1 << 20
SIZE = 100_000
"""Of a range; marks have a distance of 64 KiB."""


@pytest.fixture
def large(tmp_path: object) -> Rig:
    """A spool of a sealed segment of 1 MiB and a live one."""
    rig = Rig(tmp_path, segment_bytes=MEBIBYTE, max_bytes=8 * MEBIBYTE)  # type: ignore[arg-type]
    for number in range(1200):
        rig.append([encode(b"t", b"%d" % number + b"v" * 1000)])
        if number % 50 == 0:
            rig.step()  # an entry of the index each
    rig.step()
    rig.crash()
    assert len(rig.layout.list_segments()) == 2
    return rig


def read(parts: list[Part]) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence numbers in the order of the parts, and the damaged ranges."""
    found, damaged = [], []
    for part in parts:
        reading = SegmentReading(part)
        for piece in reading.pieces():
            found += piece.batch.sequence.tolist()
        damaged += reading.damaged
    return found, damaged


def test_ranges_are_the_segment(large: Rig) -> None:
    """Each message is in one range, those of the live segment too; a packed segment is one."""
    parts = choose(plan_spool(large.layout), part_bytes=SIZE)
    assert read(parts) == (list(range(1200)), [])
    assert len([part for part in parts if part.number == 1]) > 5
    assert len([part for part in parts if part.number == 2]) > 1
    pack_file(large.layout.segment(0))
    parts = choose(plan_spool(large.layout), part_bytes=SIZE)
    assert len([part for part in parts if part.number == 1]) == 1
    assert read(parts) == (list(range(1200)), [])


def test_damage_at_the_edge_of_a_range(large: Rig) -> None:
    """Wherever damage lies, the ranges find the same messages and the same bytes as the whole does."""
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


def test_a_sequence_is_sought(large: Rig) -> None:
    """Of a segment only the frames are read between whose marks the asked sequence numbers lie."""
    plan = plan_spool(large.layout)
    for first, last in ((0, 0), (500, 510), (920, 930), (1199, 1199), (70, 900)):
        filters = [f.GreaterThanOrEqual(("sequence",), first), f.LessThan(("sequence",), last + 1)]
        found, _ = read(choose(plan, filters))
        assert {*range(first, last + 1)} <= {*found}
        assert len(found) <= last - first + 1 + 2 * 70
