"""What is removed to make room: delivered segments, oldest first, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from spool.errors import SpoolFull
from spool.fullness import Full
from spool.layout import SEGMENT, SENT, Layout
from spool.options import SpoolOptions
from spool.retention import Stock, delivered, expired, removable
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


sent = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 100), st.floats(0, 1e9)), max_size=12).map(
    lambda rows: [(first, size, age) for first, (_, size, age) in enumerate(rows)]
)


@given(sent, st.none() | st.integers(0, 500), st.none() | st.floats(0, 1e9))
def test_the_oldest_go_and_no_more_than_need_to(
    rows: list[tuple[int, int, float]], keep_bytes: int | None, keep_s: float | None
) -> None:
    """What goes is the beginning of the log; what stays is within the bytes, its first within the hours.

    One segment less removed would break one of the two. Without limits all stay.
    """
    gone = expired(rows, keep_bytes, keep_s)
    assert gone == [first for first, _, _ in rows[: len(gone)]]

    def within(kept: list[tuple[int, int, float]]) -> bool:
        few = keep_bytes is None or sum(size for _, size, _ in kept) <= keep_bytes
        return few and (keep_s is None or not kept or kept[0][2] < keep_s)

    assert within(rows[len(gone) :])
    assert not gone or not within(rows[len(gone) - 1 :])


@pytest.mark.parametrize(("keep", "left"), [(300, 3), (299, 2), (301, 3), (0, 0), (100, 1), (99, 0)])
def test_bytes_are_kept_to_the_byte(keep: int, left: int) -> None:
    """Three delivered segments of 100 bytes, and a limit at, below and above what they take."""
    assert 3 - len(expired([(n, 100, 0.0) for n in range(3)], keep, None)) == left


@pytest.fixture
def stock(fs: FakeFilesystem) -> Stock:
    """Four segments of 100 bytes, the first two sent, and room for no more."""
    layout = Layout(Path("/spool"))
    for first, suffix in ((0, SENT), (10, SENT), (20, SEGMENT), (30, SEGMENT)):
        fs.create_file(layout.segment(first, suffix))
    options = SpoolOptions(layout.directory, max_bytes=400, segment_bytes=100)
    return Stock(layout, Identity(bytes(16), bytes(16), bytes(16)), options)


def make(stock: Stock, made: list[int]) -> None:
    """make_spare with files that take 100 bytes each; `made` collects the numbers."""
    with (
        mock.patch("spool.retention.allocated_bytes", return_value=100),
        mock.patch("spool.retention.free_bytes", return_value=(1 << 40, 1 << 40)),
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
        mock.patch("spool.retention.free_bytes", return_value=(1 << 40, 1 << 40)),
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


@pytest.mark.parametrize(("free", "left"), [(1000, 4), (999, 3), (899, 2)])
def test_the_reserve_is_given_back_by_what_is_delivered(stock: Stock, free: int, left: int) -> None:
    """Others take the reserve, to the byte: delivered segments go, one by one, and only those."""
    stock.options = dataclasses.replace(stock.options, min_free_bytes=1000)

    def free_bytes(_: Path) -> tuple[int, int]:
        return free + 100 * (4 - len(stock.layout.list_segments())), 1 << 40

    with (
        mock.patch("spool.retention.free_bytes", free_bytes),
        mock.patch("spool.retention.sync_directory"),
    ):
        assert stock.give_back_reserve() == 4 - left
    assert [first for first, _ in stock.layout.list_segments()] == [0, 10, 20, 30][4 - left :]


def test_the_reserve_is_not_taken_for_a_spare(stock: Stock) -> None:
    """One byte less than the reserve would be left: delivered segments go, and then the spool is full."""
    stock.options = dataclasses.replace(stock.options, max_bytes=10**6, min_free_bytes=1000)
    with (
        mock.patch("spool.retention.free_bytes", return_value=(1099, 1 << 40)),
        mock.patch("spool.retention.sync_directory"),
        pytest.raises(SpoolFull, match="min_free_bytes") as refused,
    ):
        stock.make_spare(7)
    assert refused.value.why == Full.RESERVE
    assert [first for first, _ in stock.layout.list_segments()] == [20, 30]
