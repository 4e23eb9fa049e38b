"""When a spool is full and when it no longer is: decisions at exact sizes, and over any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spool.options import Full, Space, fullness, give_up, lack, most_spares, reserve, want

MIB = 1 << 20


@pytest.mark.parametrize(("used", "found"), [(300, Full.ROOM), (301, Full.MAX_BYTES), (299, Full.ROOM)])
def test_max_bytes_may_be_reached_and_not_passed(used: int, found: Full) -> None:
    """A segment of 100 bytes beside the existing ones, with max_bytes of 400."""
    assert lack(Space(used, 10**6, 10**6), 100, 400, 0) == found


@pytest.mark.parametrize(("free", "found"), [(600, Full.ROOM), (599, Full.RESERVE), (601, Full.ROOM)])
def test_the_reserve_stays_free(free: int, found: Full) -> None:
    """A segment of 100 bytes, of which the filesystem must have 500 left."""
    assert lack(Space(0, free, 10**6), 100, 400, 500) == found


@given(st.none() | st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_the_reserve_is_what_was_asked_for_or_a_small_share(configured: int | None, size: int) -> None:
    """256 MiB by default, and never more than a twentieth of the disk unless it is configured."""
    if configured is None:
        assert reserve(None, size) == min(256 * MIB, size // 20)
    else:
        assert reserve(configured, size) == configured


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 30))
def test_spares_take_a_quarter_at_most_and_one_at_least(max_bytes: int, segment_bytes: int) -> None:
    """Without a spare nothing could be appended; with more than a quarter there would be little room."""
    spares = most_spares(max_bytes, segment_bytes)
    assert spares >= 1
    assert spares == 1 or spares * segment_bytes <= max_bytes // 4


segments = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=10).map(
    lambda rows: [(sum(n for n, _ in rows[:i]), size) for i, (_, size) in enumerate(rows)]
)


@given(segments, st.integers(0, 400))
def test_the_oldest_are_given_up_whole_and_never_the_last(rows: list[tuple[int, int]], asked: int) -> None:
    """The segments below the limit are just enough, or all but the last; at least one goes."""
    limit = give_up(rows, asked)
    if len(rows) < 2:
        assert limit is None
        return
    gone = [size for first, size in rows if limit is not None and first < limit]
    assert limit in [first for first, _ in rows[1:]]
    assert len(gone) == len(rows) - 1 or sum(gone) >= asked
    assert sum(gone[:-1]) < asked or len(gone) == 1


def test_what_is_given_up_is_more_than_is_needed_at_once() -> None:
    """A sixteenth of max_bytes, or two segments if those are less."""
    assert want(4096 * MIB, 64 * MIB) == 256 * MIB
    assert want(256 * MIB, 64 * MIB) == 128 * MIB


class Course(RuleBasedStateMachine):
    """A spool whose spares and room change over time; the appender takes the spares that it is offered."""

    @initialize(least=st.integers(1, 2))
    def begin(self, least: int) -> None:
        self.least, self.spares, self.full = least, 2, Full.ROOM
        self.why = Full.ROOM
        self.changes = 0

    @rule()
    def roll(self) -> None:
        """The appender goes on in the next segment, if it may."""
        if self.spares and not self.full:
            self.spares -= 1

    @rule(why=st.sampled_from((Full.MAX_BYTES, Full.RESERVE, Full.DISK)))
    def lose_room(self, why: Full) -> None:
        """From now on there is room for no further segment."""
        self.why = why

    @rule()
    def gain_room(self) -> None:
        self.why = Full.ROOM

    @rule()
    def restock(self) -> None:
        """The keeper makes one spare, or finds that it cannot."""
        before = self.full
        if self.why:
            self.full = fullness(before, self.spares, self.least, self.why)
        else:
            self.spares += 1
            self.full = fullness(before, self.spares, self.least, Full.ROOM)
        if before and not self.full:
            assert self.spares >= self.least
        if self.full and not before:
            assert self.spares == 0
            assert self.full == self.why

    @invariant()
    def never_full_with_enough(self) -> None:
        """A spool with enough spares accepts messages."""
        assert not (self.full and self.spares >= self.least)


TestCourse = Course.TestCase


def test_one_segment_that_comes_and_goes_does_not_let_a_full_spool_flap() -> None:
    """Full at none, not yet room at one, room at two; from two down to one is no fullness."""
    full = fullness(Full.ROOM, 0, 2, Full.MAX_BYTES)
    assert full == Full.MAX_BYTES
    assert fullness(full, 1, 2, Full.ROOM) == Full.MAX_BYTES
    assert fullness(full, 1, 2, Full.DISK) == Full.DISK
    assert fullness(full, 2, 2, Full.MAX_BYTES) == Full.ROOM
    assert fullness(Full.ROOM, 1, 2, Full.MAX_BYTES) == Full.ROOM
