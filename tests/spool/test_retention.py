"""What is removed to make room: delivered segments, oldest first, and nothing else."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from spool.errors import SpoolFull
from spool.layout import SEGMENT, SENT, Layout
from spool.options import SpoolOptions
from spool.retention import Stock, delivered, most_spares, removable
from spool.segment import Identity

named = st.lists(
    st.tuples(st.integers(0, 1000), st.sampled_from((SEGMENT, SENT))), unique_by=lambda p: p[0]
).map(sorted)


@given(named, st.integers(0, 1100))
def test_only_what_lies_wholly_below_the_floor_is_delivered(pairs: list[tuple[int, str]], floor: int) -> None:
    """A segment is called sent when the next one begins at or below the floor; the last one never."""
    done = delivered(pairs, floor)
    for i, (first, suffix) in enumerate(pairs):
        behind = pairs[i + 1][0] if i + 1 < len(pairs) else None
        assert (first in done) == (suffix == SEGMENT and behind is not None and behind <= floor)


@given(named)
def test_the_oldest_delivered_segment_goes_first(pairs: list[tuple[int, str]]) -> None:
    """Removable is the sent segment with the lowest sequence, or none."""
    sent = [first for first, suffix in pairs if suffix == SENT]
    assert removable(pairs) == (min(sent) if sent else None)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 30))
def test_spares_take_a_quarter_at_most_and_one_at_least(max_bytes: int, segment_bytes: int) -> None:
    """Without a spare nothing could be appended; with more than a quarter there would be little room."""
    spares = most_spares(SpoolOptions(Path("/s"), max_bytes=max_bytes, segment_bytes=segment_bytes))
    assert spares >= 1
    assert spares == 1 or spares * segment_bytes <= max_bytes // 4


@pytest.fixture
def stock(fs: FakeFilesystem) -> Stock:
    """Four segments of 100 bytes, the first two sent, and room for no more."""
    layout = Layout(Path("/spool"))
    for first, suffix in ((0, SENT), (10, SENT), (20, SEGMENT), (30, SEGMENT)):
        fs.create_file(layout.segment(first, suffix))
    options = SpoolOptions(layout.directory, max_bytes=400, segment_bytes=100)
    return Stock(layout, Identity(bytes(16), bytes(16)), options)


def make(stock: Stock, made: list[int]) -> None:
    """make_spare with files that take 100 bytes each; `made` collects the numbers."""
    with (
        mock.patch("spool.retention.allocated_bytes", return_value=100),
        mock.patch("spool.retention.sync_directory"),
        mock.patch("spool.retention.create_spare", side_effect=lambda *a: made.append(a[2])),
    ):
        stock.make_spare(7)


def test_a_delivered_segment_makes_room(stock: Stock) -> None:
    """At max_bytes the oldest delivered segment goes, and no more of them than needed."""
    made: list[int] = []
    make(stock, made)
    assert made == [7]
    assert stock.layout.list_segments() == [(10, SENT), (20, SEGMENT), (30, SEGMENT)]


def test_what_is_not_delivered_is_never_removed(stock: Stock) -> None:
    """Without a delivered segment the spool is full, and every segment stays."""
    for first in (0, 10):
        stock.layout.segment(first, SENT).rename(stock.layout.segment(first))
    with pytest.raises(SpoolFull, match="max_bytes"):
        make(stock, [])
    assert [first for first, _ in stock.layout.list_segments()] == [0, 10, 20, 30]


def test_a_full_disk_makes_room_in_the_same_way(stock: Stock) -> None:
    """ENOSPC below max_bytes removes a delivered segment and tries again."""
    stock.options = SpoolOptions(stock.layout.directory, max_bytes=10**6, segment_bytes=100)
    with (
        mock.patch("spool.retention.allocated_bytes", return_value=100),
        mock.patch("spool.retention.sync_directory"),
        mock.patch("spool.retention.create_spare", side_effect=[SpoolFull("disk"), None]) as create,
    ):
        stock.make_spare(7)
    assert create.call_count == 2
    assert stock.layout.list_segments()[0] == (10, SENT)


def test_retiring_twice_changes_nothing(stock: Stock) -> None:
    """Calling segments sent is the same whether done once or again after a crash."""
    with mock.patch("spool.retention.sync_directory"):
        assert stock.retire(30) == 1
        assert stock.retire(30) == 0
    assert stock.layout.list_segments() == [(0, SENT), (10, SENT), (20, SENT), (30, SEGMENT)]
