"""The shared histograms: each value in its bucket, and a burst counts when its frame is there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spool.native.memory import address_of
from spool.shared.histogram import (
    DATAGRAM,
    LATENCY_SECONDS,
    LATENCY_WORDS,
    SIZE_BYTES,
    SIZE_WORDS,
    STREAM,
    TCP,
    add_by_input,
    add_latencies,
    add_size,
    begin_sizes,
    commit_sizes,
    prepare_sizes,
    read_by_input,
    read_latency,
    read_sizes,
    settle,
)
from spool.shared.state import Field

NOW_NS = 1_800_000_000_000_000_000


def by_bound(values: list[float], bounds: tuple[float, ...]) -> tuple[int, ...]:
    """The number of values in each bucket, its upper bound included."""
    at = np.searchsorted(bounds, values, side="left")
    return tuple(np.bincount(at, minlength=len(bounds) + 1).tolist())


def prepare(words: np.ndarray, sizes: list[int], burst: int) -> None:
    """Prepare the counts as the intake does before the frame."""
    slot = begin_sizes(address_of(words))
    for size in sizes:
        add_size(slot, size)
    prepare_sizes(address_of(words), slot, sum(sizes), burst)


@given(st.lists(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 40 << 20)), max_size=20), max_size=5))
def test_sizes(bursts: list[list[int]]) -> None:
    """After each burst, the counts and the sum are those of all messages so far."""
    words, seen = np.zeros(SIZE_WORDS, np.int64), list[int]()
    for burst, sizes in enumerate(bursts, 1):
        prepare(words, sizes, burst)
        # They do not count before the frame is there.
        assert read_sizes(words).total == sum(seen)
        commit_sizes(address_of(words), burst)
        seen += sizes
        found = read_sizes(words)
        assert found.counts == by_bound(list(map(float, seen)), found.bounds)
        assert found.total == sum(seen)


def test_by_input() -> None:
    """Stored and refused messages are counted by input, together with their frame."""
    words = np.zeros(SIZE_WORDS, np.int64)
    for burst in (1, 2):
        slot = begin_sizes(address_of(words))
        add_by_input(slot, DATAGRAM, 5, 1)
        add_by_input(slot, STREAM, 3, 0)
        add_by_input(slot, TCP, 0, 2)
        prepare_sizes(address_of(words), slot, 0, burst)
        assert read_by_input(words)["stream"] == (3 * (burst - 1), 0)
        commit_sizes(address_of(words), burst)
    assert read_by_input(words) == {
        "datagram": (10, 2),
        "stream": (6, 0),
        "tcp": (0, 4),
        "kafka": (0, 0),
    }
    assert SIZE_WORDS <= Field.LATENCY - Field.SIZES


def test_a_kill_between_frame_and_count() -> None:
    """The successor counts the burst if it is the log's last, once; and not if it never reached the log."""
    words = np.zeros(SIZE_WORDS, np.int64)
    prepare(words, [100], 7)
    settle(words, 7)
    assert sum(read_sizes(words).counts) == 1
    settle(words, 7)
    assert sum(read_sizes(words).counts) == 1
    prepare(words, [100, 100], 8)
    # Torn: the log still ends with 7. A later burst 8 is then another one.
    settle(words, 7)
    settle(words, 8)
    assert sum(read_sizes(words).counts) == 1


def test_the_bounds() -> None:
    """A value equal to a bound is in the bucket below it."""
    words = np.zeros(SIZE_WORDS, np.int64)
    prepare(words, [64, 65, 1 << 24, (1 << 24) + 1], 1)
    commit_sizes(address_of(words), 1)
    counts = read_sizes(words).counts
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (1, 1, 1, 1)
    assert SIZE_BYTES[0] == 64


@given(st.lists(st.one_of(st.integers(-(10**9), 10**9), st.integers(0, 10**15)), max_size=50))
def test_latencies(ages_ns: list[int]) -> None:
    """Each age is in its bucket; a negative one, after a clock was set back, counts as zero."""
    words = np.zeros(LATENCY_WORDS, np.int64)
    add_latencies(words, NOW_NS - np.array(ages_ns, np.int64), NOW_NS)
    found = read_latency(words)
    bounds_ns = tuple(round(1e9 * bound) for bound in LATENCY_SECONDS)
    assert found.counts == by_bound([max(0, age) for age in ages_ns], bounds_ns)
    assert round(1e6 * found.total) == sum(max(0, age) // 1000 for age in ages_ns)


def test_a_clock_that_is_set_ten_years_forth() -> None:
    """All messages of such a false age are counted, and their sum never falls."""
    words, old = np.zeros(LATENCY_WORDS, np.int64), np.full(20_000, NOW_NS - 315_576_000 * 10**9, np.int64)
    before = 0.0
    for calls in range(1, 4):
        add_latencies(words, old, NOW_NS)
        found = read_latency(words)
        assert found.counts[-1] == calls * len(old)
        assert found.total >= before
        before = found.total
