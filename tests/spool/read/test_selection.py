"""A part of the log: exactly the committed and kept messages of a span."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import SegmentsGone
from spool.format.batch import Topics
from spool.format.wire import encode
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.layout import Layout
from spool.read.files import FOR_EVER, Span
from spool.read.selection import Selection, Sought
from tests.spool.fixture import SpoolFixture


@pytest.fixture
def layout(spool: SpoolFixture) -> Layout:
    """270 messages in five segments, the last one unsealed; then three that are not committed."""
    for _ in range(30):
        spool.fill(3)
        spool.step()
    spool.append([encode(b"t0", b"not committed")])
    spool.crash()
    return spool.layout


def read(layout: Layout, span: Span) -> list[int]:
    """The sequence numbers of a span."""
    reader = Selection(SegmentList(layout), Topics(), span)
    found: list[int] = []
    while batch := reader.next():
        found += batch.sequence[span.rows(batch)].tolist()
    assert reader.exhausted
    reader.close()
    return found


@pytest.mark.parametrize(
    ("first", "end"),
    [(0, FOR_EVER), (0, 1), (65, 67), (66, 132), (100, 200), (264, FOR_EVER), (270, 400), (5, 5)],
)
def test_a_range(layout: Layout, first: int, end: int) -> None:
    """From the first, up to and not including the end, across segments."""
    assert read(layout, Span(first, end)) == list(range(first, min(end, 270)))


def test_how_far_it_is(layout: Layout) -> None:
    """By the bytes read, not the messages found: a rare topic progresses like a frequent one."""
    span = Span(30, 200, topics=frozenset([b"t1"]))
    reader = Selection(SegmentList(layout), Topics(), span)
    seen = [reader.progress]
    while reader.next():
        seen.append(reader.progress)
    reader.close()
    assert seen[0] == (0, 170)
    assert seen[-1] == (170, 170)
    assert len(seen) > 3
    assert seen == sorted(set(seen))


def test_topics(layout: Layout) -> None:
    """One topic of two; one that no footer names is not even looked for."""
    both = read(layout, Span(topics=frozenset([b"t0", b"t1"])))
    assert both == list(range(270))
    assert read(layout, Span(topics=frozenset([b"t1"]))) == [n for n in range(270) if n % 3 == 1]
    assert read(layout, Span(topics=frozenset([b"other"]))) == []


def test_times(layout: Layout) -> None:
    """By time of reception; behind the last and before the first there is nothing."""
    reader = Selection(SegmentList(layout), Topics(), Span())
    columns = [batch.received_ns.copy() for batch in iter(reader.next, None)]
    received = np.concatenate(columns)
    reader.close()
    middle = int(received[135])
    earlier, later = read(layout, Span(to_ns=middle)), read(layout, Span(from_ns=middle))
    assert earlier + later == list(range(270))
    assert received[earlier[-1]] < middle <= received[later[0]]
    assert read(layout, Span(from_ns=int(received[-1]) + 1)) == []
    assert read(layout, Span(to_ns=int(received[0]))) == []


def test_without_an_index(layout: Layout) -> None:
    """In a copy of segments alone every whole frame counts, those of the segment that was in use, too."""
    whole = read(layout, Span())
    assert whole[-1] >= layout.list_segments()[-1][0]
    for file in layout.index.iterdir():
        file.unlink()
    assert read(layout, Span()) == [*whole, whole[-1] + 1]


@pytest.mark.parametrize("gone", [2, 3])
def test_segments_that_go_meanwhile(layout: Layout, gone: int) -> None:
    """Removal of unread segments is an error; a segment that is being read is read to its end."""
    reader = Selection(SegmentList(layout), Topics(), Span())
    assert reader.next() is not None
    for pair in layout.list_segments()[:gone]:
        layout.segment(*pair).unlink()
    with pytest.raises(SegmentsGone, match="messages from 66 on were removed from"):
        list(iter(reader.next, None))
    reader.close()


def test_back_to_what_is_gone(layout: Layout) -> None:
    """Going back to a removed segment is an error, too; the error names the first that is kept."""
    reader = Selection(SegmentList(layout), Topics(), Span())
    assert reader.kept_from == 0
    layout.segment(0).unlink()
    with pytest.raises(SegmentsGone):
        reader.seek(3)
    reader.close()
    later = Selection(SegmentList(layout), Topics(), Span(first=3))
    assert (later.kept_from, later.start) == (66, 66)
    later.close()


SEGMENTS = [SegmentInfo(first, number, first, number) for number, first in enumerate((0, 100, 1 << 32), 1)]
SEQUENCES = st.sets(
    st.one_of(st.integers(0, 99), st.integers(100, 180), st.integers(1 << 32, (1 << 32) + 60)), max_size=80
)


@given(SEQUENCES, SEQUENCES, st.lists(st.sampled_from([0, 5, 99, 100, 131, 1 << 32, (1 << 32) + 61])))
def test_left_is_what_is_sought_and_not_resolved(
    sought: set[int], resolved: set[int], watermarks: list[int]
) -> None:
    """Over segments, epochs and a rising low watermark; a segment may give several batches."""
    segment_list = SegmentList(Layout(Path("/nowhere")))
    segment_list.segments = SEGMENTS
    kept, bits = Sought(), {}
    for info, end in zip(SEGMENTS, (100, 1 << 32, 1 << 40), strict=True):
        inside = sorted(s for s in sought if info.first_sequence <= s < end)
        for batch in (inside[: len(inside) // 2], inside[len(inside) // 2 :]):
            kept.add(segment_list, np.array(batch, np.int64))
        flags = np.zeros(100, np.uint8)
        flags[[s - info.first_sequence for s in resolved if info.first_sequence <= s < end]] = 1
        bits[info.number] = np.packbits(flags, bitorder="little")
    assert kept.total == len(sought)
    for low_watermark in sorted(watermarks):
        left = [s for s in sought if s >= low_watermark and s not in resolved]
        for info in SEGMENTS:
            below = sum(s < info.first_sequence for s in left)
            assert kept.left_below((low_watermark, bits), info.first_sequence) == below
        assert kept.left((low_watermark, bits)) == len(left)
