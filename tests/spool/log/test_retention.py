"""Removal to make room: delivered segments, oldest first, and nothing else."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from spool.errors import ReadFailed, SpoolFull
from spool.format.packed import is_packed
from spool.format.segment import Identity
from spool.format.wire import encode
from spool.layout import SEGMENT, SENT, Layout
from spool.log import retention
from spool.log.retention import (
    AFTER_S,
    LOOK_S,
    SAVE_S,
    Ages,
    Packer,
    Stock,
    capacity,
    delivered,
    expired,
    removable,
    seconds_until_full,
    waiting_bytes,
)
from spool.options import Full, Space, SpoolOptions
from spool.shared.state import Change
from spool.storage.disk import allocated_bytes
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import messages

named = st.lists(
    st.tuples(st.integers(0, 1000), st.sampled_from((SEGMENT, SENT))), unique_by=lambda p: p[0]
).map(sorted)


@given(named, st.integers(0, 1100))
def test_only_what_lies_wholly_below_the_floor_is_delivered(
    pairs: list[tuple[int, str]], low_watermark: int
) -> None:
    """A segment is called sent when the next one begins at or below the low watermark; the last never is."""
    done = delivered(pairs, low_watermark)
    for i, (first, suffix) in enumerate(pairs):
        behind = pairs[i + 1][0] if i + 1 < len(pairs) else None
        assert (first in done) == (suffix == SEGMENT and behind is not None and behind <= low_watermark)


@given(named)
def test_the_oldest_delivered_segment_goes_first(pairs: list[tuple[int, str]]) -> None:
    """The removable segment is the sent one with the lowest sequence, or none."""
    sent = [first for first, suffix in pairs if suffix == SENT]
    assert removable(pairs) == (min(sent) if sent else None)


sent = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 100), st.floats(0, 1e9)), max_size=12).map(
    lambda rows: [(first, size, age) for first, (_, size, age) in enumerate(rows)]
)


@given(sent, st.none() | st.integers(0, 500), st.none() | st.floats(0, 1e9))
def test_the_oldest_go_and_no_more_than_need_to(
    rows: list[tuple[int, int, float]], keep_bytes: int | None, keep_s: float | None
) -> None:
    """The removed part is the beginning of the log; the rest is within the bytes, its first within the hours.

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
    """Three delivered segments of 100 bytes, and a limit at, below and above their sum."""
    assert 3 - len(expired([(n, 100, 0.0) for n in range(3)], keep, None)) == left


@pytest.fixture
def stock(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """Four segments of 100 bytes, the first two sent, and room for no more."""
    layout = Layout(Path("/spool"))
    for first, suffix in ((0, SENT), (10, SENT), (20, SEGMENT), (30, SEGMENT)):
        fs.create_file(layout.segment(first, suffix))
    options = SpoolOptions(layout.directory, max_bytes=400, segment_bytes=100)
    # These segments are empty, and the book of sums has a test of its own.
    monkeypatch.setattr("spool.log.departures.Departures.note", lambda *_: None)
    return Stock(layout, Identity(bytes(16), bytes(16), bytes(16)), options)


def make(stock: Stock, made: list[int]) -> None:
    """make_spare with files that take 100 bytes each; `made` collects the numbers."""
    with (
        mock.patch("spool.log.retention.allocated_bytes", return_value=100),
        mock.patch("spool.log.retention.free_bytes", return_value=(1 << 40, 1 << 40)),
        mock.patch("spool.log.retention.sync_directory"),
        mock.patch("spool.log.retention.create_spare", side_effect=lambda *a: made.append(a[2])),
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
        mock.patch("spool.log.retention.allocated_bytes", return_value=100),
        mock.patch("spool.log.retention.free_bytes", return_value=(1 << 40, 1 << 40)),
        mock.patch("spool.log.retention.sync_directory"),
        mock.patch("spool.log.retention.create_spare", side_effect=[SpoolFull("disk"), None]) as create,
    ):
        stock.make_spare(7)
    assert create.call_count == 2
    assert stock.layout.list_segments()[0] == (10, SENT)


def test_retiring_twice_changes_nothing(stock: Stock) -> None:
    """Calling segments sent is the same whether done once or again after a crash."""
    with mock.patch("spool.log.retention.sync_directory"):
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
        mock.patch("spool.log.retention.free_bytes", free_bytes),
        mock.patch("spool.log.retention.sync_directory"),
    ):
        assert stock.give_back_reserve() == 4 - left
    assert [first for first, _ in stock.layout.list_segments()] == [0, 10, 20, 30][4 - left :]


def test_the_reserve_is_not_taken_for_a_spare(stock: Stock) -> None:
    """One byte less than the reserve would be left: delivered segments go, and then the spool is full."""
    stock.options = dataclasses.replace(stock.options, max_bytes=10**6, min_free_bytes=1000)
    with (
        mock.patch("spool.log.retention.free_bytes", return_value=(1099, 1 << 40)),
        mock.patch("spool.log.retention.sync_directory"),
        pytest.raises(SpoolFull, match="min_free_bytes") as refused,
    ):
        stock.make_spare(7)
    assert refused.value.why == Full.RESERVE
    assert [first for first, _ in stock.layout.list_segments()] == [20, 30]


TEN_YEARS_S = 10 * 365 * 86400


class Clock:
    """Seconds since the host started."""

    def __init__(self, now: float = 5000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_ages_that_the_disk_does_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments count as new then, and stay for longer."""

    def refuse(path: Path, *_: object) -> None:
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(retention, "read_text", refuse)
    assert Ages(tmp_path / "ages", clock=Clock()).note([10]) == {10: 0.0}


def test_a_segment_ages_while_bruce_runs(tmp_path: Path) -> None:
    """From the first sight of it as delivered; over restarts and reboots, without downtime."""
    clock = Clock()
    kept = Ages(tmp_path / "ages", clock=clock)
    assert kept.note([10]) == {10: 0.0}
    clock.now += 3600
    assert kept.note([10, 20]) == {10: 3600.0, 20: 0.0}
    kept.save()
    later = Clock(7.0)
    again = Ages(tmp_path / "ages", clock=later)
    later.now += 100
    assert again.note([10, 20, 30]) == {10: 3700.0, 20: 100.0, 30: 0.0}


@pytest.mark.parametrize("jump", [TEN_YEARS_S, -TEN_YEARS_S])
def test_the_wall_clock_is_no_matter(tmp_path: Path, jump: int) -> None:
    """Set ten years forth or back, with a restart in between: no age changes."""
    clock = Clock()
    kept = Ages(tmp_path / "ages", clock=clock)
    kept.note([10])
    with mock.patch("time.time", return_value=time.time() + jump):
        clock.now += 60
        assert kept.note([10]) == {10: 60.0}
        kept.save()
        assert Ages(tmp_path / "ages", clock=clock).note([10]) == {10: 60.0}


@pytest.mark.parametrize(
    "data", [b"", b"clock 99999999\n10 0\n", b"\xff\x00", b"clock 1\n10 0\n0123456789abcdef\n"]
)
def test_a_lost_or_damaged_file_makes_all_of_them_new(tmp_path: Path, data: bytes) -> None:
    """No segment looks endlessly old at a restart."""
    (tmp_path / "ages").write_bytes(data)
    assert Ages(tmp_path / "ages", clock=Clock()).note([10]) == {10: 0.0}


def test_a_keeper_that_is_killed_forgets_a_minute(tmp_path: Path) -> None:
    """The ages are saved now and then, and those of removed segments are forgotten."""
    clock = Clock()
    kept = Ages(tmp_path / "ages", clock=clock)
    kept.note([10, 20])
    clock.now += SAVE_S
    kept.note([20])
    clock.now += SAVE_S - 1
    kept.note([20])
    assert Ages(tmp_path / "ages", clock=clock).note([10, 20]) == {10: 0.0, 20: SAVE_S}


def test_no_room_for_them_is_no_error(tmp_path: Path) -> None:
    """On a full disk they are not saved, and the keeper goes on."""
    kept = Ages(tmp_path / "none" / "ages", clock=Clock())
    kept.note([10])
    kept.save()


SEGMENTS = [(0, 100), (10, 60), (30, 200)]


@pytest.mark.parametrize(
    ("low_watermark", "taken"),
    [(0, 210), (5, 160), (9, 120), (10, 110)],
)
def test_what_waits(low_watermark: int, taken: int) -> None:
    """Whole segments; of the first, the part above the low watermark; of the last, the written part."""
    assert waiting_bytes(SEGMENTS, 40, 50, low_watermark) == taken


def test_nothing_waits() -> None:
    """If only the last segment may wait, and all of it is delivered, no byte waits."""
    assert waiting_bytes(SEGMENTS[-1:], 40, 50, 40) == 0
    assert waiting_bytes([], 40, 50, 40) == 0
    assert waiting_bytes([(40, 200)], 40, 5, 40) == 5


def test_capacity() -> None:
    """max_bytes, or the filesystem's space without the reserve; the space of present segments counts."""
    assert capacity(Space(used=300, free=1000, size=10_000), 900, 100) == 900
    assert capacity(Space(used=300, free=400, size=10_000), 900, 100) == 600
    assert capacity(Space(used=0, free=10, size=10_000), 900, 100) == 0


def change(seconds: float, growth: int) -> Change:
    """The backlog grows by this many bytes."""
    return Change(seconds, 0, 0, 0, growth)


def test_until_full() -> None:
    """Of a steady growth at the faster of two rates; never while the backlog shrinks, or without rates."""
    assert seconds_until_full(6000, change(60, 60), change(900, 900), steady=True) == 6000
    assert seconds_until_full(6000, change(60, 600), change(900, 900), steady=True) == 600
    assert seconds_until_full(6000, change(60, 60), change(900, 9000), steady=True) == 600
    assert seconds_until_full(6000, change(60, 60), change(900, -900), steady=True) == 6000
    assert seconds_until_full(6000, change(60, 0), change(900, 9000), steady=True) is None
    assert seconds_until_full(6000, change(60, -60), change(900, 9000), steady=True) is None
    assert seconds_until_full(6000, None, None, steady=True) is None
    assert seconds_until_full(0, change(60, 60), change(900, 900), steady=True) == 0


def test_a_burst_is_no_rate() -> None:
    """Without a steady growth only a rate over most of a quarter of an hour counts."""
    assert seconds_until_full(6000, change(10, 600), change(10, 600), steady=False) is None
    assert seconds_until_full(6000, change(60, 600), change(300, 600), steady=False) is None
    assert seconds_until_full(6000, change(60, 600), change(900, 600), steady=False) == 9000
    assert seconds_until_full(6000, change(60, 600), change(900, -600), steady=False) is None


class PackerClock:
    """Time that passes when a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Plant:
    """A spool with three sealed segments and one in use, and its packer."""

    def __init__(self, directory: Path) -> None:
        self.spool = SpoolFixture(directory, segment_bytes=65536, max_bytes=16 * 65536)
        self.sent = self.spool.fill(260)
        self.spool.step()
        self.clock = PackerClock()
        self.packer = Packer(self.spool.layout, clock=self.clock)

    def pass_time(self, seconds: float = AFTER_S + LOOK_S) -> None:
        """Look twice, so that the backlog has been seen for this long; and let the thread finish."""
        self.packer.step()
        self.clock.now += seconds
        self.packer.step()
        self.finish()

    def finish(self) -> None:
        while self.packer._task:
            task = self.packer._task[1]
            while not task.done():
                time.sleep(0.001)
            self.clock.now += LOOK_S
            self.packer.step()

    def packed(self) -> list[bool]:
        """For each named segment, in order, whether it is packed."""
        found = []
        for pair in self.spool.layout.list_segments():
            with self.spool.layout.segment(*pair).open("rb") as file:
                found.append(is_packed(file.fileno()))
        return found


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """A plant for one test."""
    made = Plant(tmp_path)
    yield made
    made.packer.close()
    made.spool.crash()


def test_what_waits_is_packed(plant: Plant) -> None:
    """All but the last are packed; the disk gains the difference; every message is read as before."""
    paths = [plant.spool.layout.segment(*pair) for pair in plant.spool.layout.list_segments()[:-1]]
    before = sum(map(allocated_bytes, paths))
    plant.pass_time()
    assert plant.packed() == [True] * len(paths) + [False]
    assert sum(map(allocated_bytes, paths)) < before / 2
    assert messages(plant.spool.layout) == plant.sent


def test_it_is_left_alone_for_a_while(plant: Plant) -> None:
    """Segments that Kafka takes within a minute are not packed."""
    plant.pass_time(AFTER_S - 1)
    assert not any(plant.packed())


def test_delivered_while_it_is_packed(plant: Plant) -> None:
    """The segment was renamed: the renamed file is replaced, and the former does not come back."""
    plant.packer.step()
    plant.clock.now += AFTER_S + LOOK_S
    plant.packer.step()
    first = plant.spool.layout.list_segments()[0][0]
    os.rename(plant.spool.layout.segment(first), plant.spool.layout.segment(first, SENT))
    plant.finish()
    assert plant.spool.layout.list_segments()[0] == (first, SENT)
    assert not plant.spool.layout.segment(first).exists()
    assert messages(plant.spool.layout) == plant.sent


def test_removed_while_it_is_packed(plant: Plant) -> None:
    """It does not come back, and leaves nothing."""
    plant.packer.step()
    plant.clock.now += AFTER_S + LOOK_S
    plant.packer.step()
    first = plant.spool.layout.list_segments()[0][0]
    plant.spool.layout.segment(first).unlink()
    plant.finish()
    assert plant.spool.layout.list_segments()[0][0] != first
    assert not list(plant.spool.layout.segments.glob("*.tmp"))


def test_a_half_packed_file_is_removed_by_the_next_start(plant: Plant) -> None:
    """After a kill in the middle, the segment is unchanged."""
    path = plant.spool.layout.segment(*plant.spool.layout.list_segments()[0])
    packed = plant.packer._pack(path)
    assert packed
    os.truncate(packed, 500)
    plant.spool.reopen()
    assert not packed.exists()
    assert messages(plant.spool.layout) == plant.sent


def test_what_does_not_get_smaller_is_kept(tmp_path: Path) -> None:
    """Packing it would only slow down reading."""
    spool = SpoolFixture(tmp_path, segment_bytes=65536, max_bytes=16 * 65536)
    while len(spool.layout.list_segments()) < 2:
        spool.append([encode(b"t", os.urandom(900)) for _ in range(4)])
        spool.step()
    packer = Packer(spool.layout)
    assert packer._pack(spool.layout.segment(*spool.layout.list_segments()[0])) is None
    assert not list(spool.layout.segments.glob("*.tmp"))
    packer.close()
    spool.crash()


def test_a_full_disk_leaves_the_segment(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packer tries again later; nothing is left behind."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        plant.packer.step()
        plant.clock.now += AFTER_S + LOOK_S
        plant.packer.step()
        assert plant.packer._task
        while not plant.packer._task[1].done():
            time.sleep(0.001)
        plant.packer.step()
    assert not any(plant.packed())
    assert not list(plant.spool.layout.segments.glob("*.tmp"))
    plant.pass_time()
    assert any(plant.packed())
