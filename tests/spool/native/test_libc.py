"""System calls that compiled loops make: the time, a bell, and what a signal does to a wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from spool.native.libc import MONOTONIC, REALTIME, SCRATCH_WORDS, await_bells, libc, now, ring, rung
from spool.native.memory import Address, address_of

LONG_NS = 60_000_000_000
WORDS = np.zeros(SCRATCH_WORDS, np.int64)


def scratch() -> Address:
    """Room for the calls."""
    return address_of(WORDS)


@pytest.fixture
def bells() -> Iterator[tuple[int, int]]:
    """Two eventfds."""
    one, other = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
    yield one, other
    os.close(one)
    os.close(other)


@pytest.mark.parametrize(("clock", "read"), [(MONOTONIC, time.monotonic_ns), (REALTIME, time.time_ns)])
def test_the_clocks_are_those_of_python(clock: int, read: object) -> None:
    """A time that a loop notes can be compared with one that Python notes."""
    assert callable(read)
    before = read()
    assert before <= now(libc(), scratch(), clock) <= read()


def test_each_bell_says_how_often_it_rang(bells: tuple[int, int]) -> None:
    """Rings are added up until they are read, of each bell by itself."""
    one, other = bells
    for _ in range(3):
        ring(libc(), scratch(), other)
    assert await_bells(libc(), scratch(), one, other, LONG_NS)
    assert (rung(libc(), scratch(), 0, one), rung(libc(), scratch(), 1, other)) == (0, 3)
    ring(libc(), scratch(), one)
    assert await_bells(libc(), scratch(), one, other, LONG_NS)
    assert (rung(libc(), scratch(), 0, one), rung(libc(), scratch(), 1, other)) == (1, 0)
    assert await_bells(libc(), scratch(), one, other, 0)
    assert (rung(libc(), scratch(), 0, one), rung(libc(), scratch(), 1, other)) == (0, 0)


def test_a_signal_ends_a_wait(bells: tuple[int, int]) -> None:
    """Its handler may then run in Python."""
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: came.append(number))
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    try:
        assert not await_bells(libc(), scratch(), *bells, LONG_NS)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]
