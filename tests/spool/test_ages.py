"""Ages of delivered segments: by a clock that nobody sets, over restarts, and safe when it is lost."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest

from spool.ages import SAVE_S, Ages

TEN_YEARS_S = 10 * 365 * 86400


class Clock:
    """Seconds since the host started."""

    def __init__(self, now: float = 5000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_segment_ages_while_bruce_runs(tmp_path: Path) -> None:
    """From when it was first seen as delivered; over restarts and reboots, downtime left out."""
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
    """Set ten years forth or back, with a restart in between: nothing is older or younger for it."""
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
    """Nothing looks endlessly old at a restart."""
    (tmp_path / "ages").write_bytes(data)
    assert Ages(tmp_path / "ages", clock=Clock()).note([10]) == {10: 0.0}


def test_a_keeper_that_is_killed_forgets_a_minute(tmp_path: Path) -> None:
    """The ages are written down now and then, and those of segments that are gone are forgotten."""
    clock = Clock()
    kept = Ages(tmp_path / "ages", clock=clock)
    kept.note([10, 20])
    clock.now += SAVE_S
    kept.note([20])
    clock.now += SAVE_S - 1
    kept.note([20])
    assert Ages(tmp_path / "ages", clock=clock).note([10, 20]) == {10: 0.0, 20: SAVE_S}


def test_no_room_for_them_is_no_error(tmp_path: Path) -> None:
    """On a full disk they are not written, and the keeper goes on."""
    kept = Ages(tmp_path / "none" / "ages", clock=Clock())
    kept.note([10])
    kept.save()
