"""How much room is left, and for how long."""

from __future__ import annotations

import pytest

from spool.fullness import Space
from spool.history import Change
from spool.room import capacity, seconds_until_full, waiting_bytes

SEGMENTS = [(0, 100), (10, 60), (30, 200)]


@pytest.mark.parametrize(
    ("floor", "taken"),
    [(0, 210), (5, 160), (9, 120), (10, 110)],
)
def test_what_waits(floor: int, taken: int) -> None:
    """Whole segments, of the first the part above the floor, of the last what is written."""
    assert waiting_bytes(SEGMENTS, 40, 50, floor) == taken


def test_nothing_waits() -> None:
    """When the last segment is all that is not delivered, and all of it is, no byte waits."""
    assert waiting_bytes(SEGMENTS[-1:], 40, 50, 40) == 0
    assert waiting_bytes([], 40, 50, 40) == 0
    assert waiting_bytes([(40, 200)], 40, 5, 40) == 5


def test_capacity() -> None:
    """max_bytes, or what the filesystem has with the reserve taken off; what segments take now is theirs."""
    assert capacity(Space(used=300, free=1000, size=10_000), 900, 100) == 900
    assert capacity(Space(used=300, free=400, size=10_000), 900, 100) == 600
    assert capacity(Space(used=0, free=10, size=10_000), 900, 100) == 0


def change(seconds: float, growth: int) -> Change:
    """So many more bytes wait."""
    return Change(seconds, 0, 0, 0, growth)


def test_until_full() -> None:
    """At the faster of two rates; never while the backlog shrinks, or nobody counts."""
    assert seconds_until_full(6000, change(60, 60), change(900, 900)) == 6000
    assert seconds_until_full(6000, change(60, 600), change(900, 900)) == 600
    assert seconds_until_full(6000, change(60, 60), change(900, 9000)) == 600
    assert seconds_until_full(6000, change(60, 60), change(900, -900)) == 6000
    assert seconds_until_full(6000, change(60, 0), change(900, 9000)) is None
    assert seconds_until_full(6000, change(60, -60), change(900, 9000)) is None
    assert seconds_until_full(6000, None, None) is None
    assert seconds_until_full(0, change(60, 60), change(900, 900)) == 0
