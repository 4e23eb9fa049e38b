"""Samples in the shared page, and the rates that they tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spool.history import ROWS, STEP_S, Change, History, change_over
from spool.page import WORDS, Field, Page
from spool.wire import encode
from tests.spool.rig import Rig

SECOND = 10**9


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.ns


def filled(clock: Clock, samples: int) -> np.ndarray:
    """A page with so many samples: each second 10 received, 8 delivered, 1 discarded; 100 bytes wait more."""
    words = np.zeros(WORDS, np.int64)
    history = History(words, clock)
    for number in range(samples):
        seconds = int(number * STEP_S)
        assert history.due()
        history.note(10 * seconds, 8 * seconds, seconds, 100 * seconds)
        assert not history.due()
        clock.ns += int(STEP_S * SECOND)
    return words


@pytest.mark.parametrize("samples", [2, 13, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS])
def test_rates(samples: int) -> None:
    """The last minute and quarter of an hour, or as much as there is; the ring goes round without a seam."""
    clock = Clock()
    words = filled(clock, samples)
    for asked in (60, 900):
        seconds = min(asked, int((samples - 1) * STEP_S))
        found = change_over(words, asked, clock.ns)
        assert found == Change(seconds, 10 * seconds, 8 * seconds, seconds, 100 * seconds)


def test_nothing_is_known() -> None:
    """Without samples, with one, and when the keeper has left none for a while, nothing is made up."""
    clock = Clock()
    assert change_over(np.zeros(WORDS, np.int64), 60, clock.ns) is None
    assert change_over(filled(clock, 1), 60, clock.ns) is None
    words = filled(clock, 10)
    assert change_over(words, 60, clock.ns) is not None
    assert change_over(words, 60, clock.ns + 60 * SECOND) is None


def test_a_sample_that_is_being_written_is_not_read() -> None:
    """The row that comes next may be half-written: it belongs to nobody."""
    clock = Clock()
    words = filled(clock, ROWS + 5)
    before = change_over(words, 10_000, clock.ns)
    words[Field.HISTORY + 1 + 5 * (5 % ROWS) :][:5] = -1
    assert change_over(words, 10_000, clock.ns) == before


def test_a_successor_goes_on(tmp_path: Path) -> None:
    """A keeper that takes over leaves its first sample when that of the one before has its age."""
    clock, page = Clock(), Page(tmp_path / "page")
    History(page.words, clock).note(1, 2, 3, 4)
    assert not History(page.words, clock).due()
    clock.ns += int(STEP_S * SECOND)
    assert History(page.words, clock).due()


def test_the_keeper_counts(tmp_path: Path) -> None:
    """What a keeper leaves: received with what was refused, the deliverer's counts, and bytes that wait."""
    rig, clock = Rig(tmp_path), Clock()
    rig.page.words[Field.HISTORY] = 0
    rig.keeper._history = History(rig.page.words, clock)
    rig.step()
    for _ in range(3):
        rig.append([encode(b"t", b"v" * 100)] * 10, refused={1: (2, b"short")})
    rig.page.words[[Field.DELIVERED, Field.DISCARDED]] = 7, 1
    clock.ns += int(STEP_S * SECOND)
    rig.step()
    change = change_over(rig.page.words, 60, clock.ns)
    assert change is not None
    assert change[:4] == (STEP_S, 36, 7, 7)
    assert 30 * 100 < change.waiting_bytes < 8192
    rig.page.words[Field.FLOOR] = 30
    clock.ns += int(STEP_S * SECOND)
    rig.step()
    change = change_over(rig.page.words, 60, clock.ns)
    assert change is not None
    assert change.waiting_bytes <= 0
    rig.crash()
