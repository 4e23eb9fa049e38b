"""Few lines of each cause, by the one throttle of all packages."""

from __future__ import annotations

from spool.throttle import Throttle
from tests.router.fake import Clock


def test_so_many_lines_of_each_cause_in_a_window() -> None:
    """A window begins with the first line of its cause; a flood of one cause takes no other its line."""
    clock = Clock()
    throttle = Throttle(10.0, lines=2, clock=clock)
    assert [throttle.due("flood") for _ in range(5)] == [True, True, False, False, False]
    clock.now += 9.0
    assert throttle.due("other")
    assert not throttle.due("flood")
    clock.now += 1.0
    assert [throttle.due("flood") for _ in range(3)] == [True, True, False]
    assert [throttle.due("other") for _ in range(2)] == [True, False]


def test_causes_without_end_take_bounded_memory() -> None:
    """Windows that are over are forgotten, so memory is that of one window's causes."""
    clock = Clock()
    throttle = Throttle(10.0, clock=clock)
    for number in range(1000):
        clock.now += 1.0
        assert throttle.due(number)
    assert len(throttle._windows) == 10


def test_room_for_so_many_causes() -> None:
    """Causes beyond `most` have no room until a window is over; those that have one keep it."""
    clock = Clock()
    throttle = Throttle(10.0, clock=clock)
    for number in range(3):
        assert throttle.has_room(number, 3)
        assert throttle.due(number)
        clock.now += 1.0
    assert throttle.has_room(0, 3)
    assert not throttle.has_room("another", 3)
    clock.now += 7.0
    assert throttle.has_room("another", 3)
