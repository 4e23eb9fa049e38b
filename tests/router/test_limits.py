"""Rates of topics and the pace of a backlog: no more goes than may, none is lost by it, and order is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from router.limits import DELAY_S, SLOWEST, Limits, Rate, thin
from spool.record import Topics
from spool.wire import Reason
from tests.router.bench import Bench
from tests.router.fake import Clock

SECOND_NS = 10**9


@pytest.fixture
def limited() -> Iterator[Bench]:
    """Topic `a` may have 100 messages a second, `b` any number."""
    made = Bench(rates={"a": Rate(100)}, chunk_bytes=600)
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()


def of(bench: Bench, topic: bytes) -> int:
    """Records that Kafka has of a topic."""
    return sum(len(log) for (name, _), log in bench.kafka.logs.items() if name == topic)


def run(bench: Bench, seconds: float) -> None:
    """Let time pass, Kafka answering everything at once."""
    end = bench.clock.now + seconds
    while bench.clock.now < end:
        bench.step()
        bench.answer()


@pytest.mark.parametrize("key", [None, 7])
def test_what_is_beyond_a_rate_waits(limited: Bench, key: int | None) -> None:
    """A second's worth goes at once, then as much a second as may; the other topic does not wait."""
    for _ in range(40):
        limited.send([(b"a", key, b"")] * 20 + [(b"b", key, b"")] * 20)
    run(limited, 1.0)
    assert of(limited, b"b") == 800
    for _ in range(5):
        before = of(limited, b"a")
        run(limited, 1.0)
        assert 50 <= of(limited, b"a") - before <= 160
    assert of(limited, b"a") <= 100 + 6 * 100 + 5
    limited.settle()
    limited.check_order()
    limited.check_complete()
    assert limited.discarded() == {}


def test_a_rate_that_is_kept_holds_nothing(limited: Bench) -> None:
    """At less than its rate a topic stays on the live path."""
    for _ in range(50):
        limited.send([(b"a", 1, b"")])
        limited.step()
        limited.answer()
        assert len(limited.pool.partitions.held()) == 0


def test_waiting_for_a_rate_is_idle(limited: Bench) -> None:
    """No pass begins before half a second's worth may go, and the log is gone over once."""
    for _ in range(100):
        limited.send([(b"a", 1, b"v" * 20)] * 10)
    run(limited, 1.0)
    read = 0
    again = limited.readers[1].next

    def count() -> object:
        nonlocal read
        batch = again()
        read += len(batch) if batch else 0
        return batch

    limited.readers[1].next = count  # type: ignore[method-assign]
    before = of(limited, b"a")
    busy = 0
    for _ in range(500):
        busy += limited.step()
        limited.answer()
    sent = of(limited, b"a") - before
    assert sent >= 800
    # A frame is read again in each pass, twice a second.
    assert read <= sent + 2 * 11 * 40
    assert busy < 250


def test_beyond_a_rate_is_discarded_by_the_time_of_reception() -> None:
    """Whatever the rate at which it is delivered: a second's worth at once, and then what came in time."""
    bench = Bench(rates={"a": Rate(10, discard=True)}, chunk_bytes=600)
    bench.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    try:
        now = 10**18
        for second in range(5):
            # The clock is set back once, which gives nothing and takes nothing.
            at = now + second * SECOND_NS - (7 * SECOND_NS if second == 3 else 0)
            bench.send([(b"a", n % 3, b"") for n in range(25)] + [(b"b", 1, b"")], received_ns=at)
        bench.settle()
        bench.check_complete()
        lost = bench.discarded()
        assert set(lost.values()) == {Reason.RATE_LIMITED}
        topics = {bench.sent[s][0] for s in lost}
        assert topics == {b"a"}
        # A bucket's worth, and one in each second; what the clock took when it was set back it gave again.
        kept = [s // 26 for s, (topic, *_) in bench.sent.items() if topic == b"a" and s not in lost]
        assert np.bincount(kept, minlength=5).tolist() == [10, 10, 10, 0, 10]
        assert [(d.topic, d.count) for d in bench.outcomes().discarded] == [(b"a", 125 - 40)]
    finally:
        bench.close()


def test_an_excess_is_counted_by_batches() -> None:
    """Not by messages: one entry a batch on the way to the marks, a row a chunk in them, four samples."""
    bench = Bench(rates={"a": Rate(10, discard=True)}, chunk_bytes=60_000)
    bench.kafka.leaders = {b"a": [1, 2, 3]}
    try:
        seen: list[int] = []
        discard = bench.acks.discard

        def count(sequences: np.ndarray, reason: int, topic: bytes) -> int:
            seen.append(len(sequences))
            return discard(sequences, reason, topic)

        bench.acks.discard = count  # type: ignore[method-assign]
        for _ in range(10):
            bench.send([(b"a", 1, b"")] * 100, received_ns=10**18)
        bench.settle()
        bench.check_complete()
        assert sum(seen) == len(bench.discarded()) == 1000 - 10
        assert len(seen) <= 10
        assert bench.marks
        assert len(bench.marks.samples()) == 4
    finally:
        bench.close()


def test_a_backlog_within_the_rate_is_not_discarded() -> None:
    """An hour of an outage, sent in a second: what came in at the rate is all delivered."""
    bench = Bench(rates={"a": Rate(10, discard=True)}, chunk_bytes=600)
    bench.kafka.leaders = {b"a": [1, 2, 3]}
    bench.kafka.down = {1, 2, 3}
    try:
        for second in range(60):
            bench.send([(b"a", n, b"") for n in range(10)], received_ns=10**18 + second * SECOND_NS)
            bench.step()
        bench.kafka.down = set()
        bench.restart()
        bench.settle()
        assert bench.discarded() == {}
        bench.check_complete()
    finally:
        bench.close()


def test_rates_hold_over_a_restart_but_for_one_second(limited: Bench) -> None:
    """Its bucket is full again, no more."""
    for _ in range(50):
        limited.send([(b"a", 1, b"")] * 20)
    run(limited, 2.0)
    limited.restart()
    run(limited, 2.0)
    assert of(limited, b"a") <= 100 + 200 + 100 + 200 + 10


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 50)), max_size=40),
    tokens=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    budget=st.integers(0, 400),
)
def test_thin(rows: list[tuple[int, int, int]], tokens: list[int], budget: int) -> None:
    """Of each partition the first rows go, of each topic as many as may, and at most one row too much."""
    # A partition belongs to one topic.
    flat = np.array([p * 3 + t for p, t, _ in rows], np.int32)
    topic = np.array([t for _, t, _ in rows], np.int32)
    size = np.array([s for *_, s in rows], np.int32)
    kept = flat.copy()
    thin(kept, topic, size, np.array(tokens, np.float64), float(budget), np.zeros(18, np.bool_))
    went = kept >= 0
    assert (kept[went] == flat[went]).all()
    for partition in set(flat.tolist()):
        of_it = went[flat == partition]
        assert not (of_it[1:] & ~of_it[:-1]).any()
    assert (np.bincount(topic[went], minlength=3) <= tokens).all()
    assert size[went].sum() - (size[went][-1] if went.any() else 0) <= budget
    for number, partition in zip(topic[~went].tolist(), flat[~went].tolist(), strict=True):
        spent = np.bincount(topic[went], minlength=3)[number] == tokens[number]
        assert spent or size[went].sum() >= budget or (~went[flat == partition]).any()


# -- the backlog ---------------------------------------------------------------------------------------


def outage(bench: Bench, frames: int) -> None:
    """Messages of `a` that Kafka was not there for; then it comes back."""
    bench.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    bench.send([(b"a", 0, b""), (b"b", 0, b"")])
    run(bench, 15.0)
    bench.kafka.down = {1, 2, 3}
    for _ in range(frames):
        bench.send([(b"a", key, b"v" * 50) for key in range(9)])
        bench.step()
    run(bench, 10.0)
    bench.kafka.down = set()


def test_the_backlog_keeps_its_pace_and_what_is_new_goes_at_once() -> None:
    """Between half and all of the cap, after a delay by chance; a topic without a backlog does not wait."""
    bench = Bench(backlog_bytes_per_second=2000, chunk_bytes=1200, window=(500, 10_000))
    try:
        outage(bench, 100)
        # What was in the windows of the three brokers when they went was handed over before.
        first = bench.clock.now
        run(bench, 3.0)
        waiting = of(bench, b"a")
        bench.send([(b"b", 1, b"new")])
        run(bench, 0.2)
        assert of(bench, b"b") == 2
        assert of(bench, b"a") == waiting
        run(bench, DELAY_S)
        seconds = 5.0
        before = of(bench, b"a")
        run(bench, seconds)
        sent = 50 * (of(bench, b"a") - before)
        assert SLOWEST * 2000 * (seconds - 1) <= sent <= 2000 * (seconds + 1)
        assert bench.clock.now - first < 20
        assert bench.acks.floor < bench.end
        bench.settle()
        bench.check_order()
        bench.check_complete()
    finally:
        bench.close()


def test_a_topic_that_is_new_is_no_backlog() -> None:
    """It waits until it is known, and what is sent meanwhile waits behind it; then all goes at once."""
    bench = Bench(backlog_bytes_per_second=2000, chunk_bytes=1200, window=(500, 10_000))
    try:
        outage(bench, 100)
        run(bench, DELAY_S + 1)
        before = of(bench, b"a")
        for _ in range(20):
            bench.send([(b"c", key, b"v" * 1000) for key in range(3)])
            bench.step()
        bench.kafka.leaders[b"c"] = [1, 2]
        run(bench, 3.0)
        assert of(bench, b"c") == 60
        assert 0 < 50 * (of(bench, b"a") - before) <= 2000 * 4
        assert bench.acks.floor < bench.end
        bench.settle()
        bench.check_order()
        bench.check_complete()
    finally:
        bench.close()


def test_hosts_do_not_come_back_together() -> None:
    """The backlogs of many begin within the whole of the delay, not at once."""
    begins = []
    for seed in range(50):
        clock = Clock()
        limits = Limits(Topics(), None, 1_000_000, clock=clock, chance=random.Random(seed))
        limits.kafka_came_back()
        since = clock.now
        while not limits._budget:
            clock.now += 0.1
            limits.spent()
        begins.append(clock.now - since)
    assert max(begins) <= DELAY_S + 0.2
    assert np.ptp(np.histogram(begins, bins=5, range=(0, DELAY_S))[0]) <= 15
    assert min(np.histogram(begins, bins=5, range=(0, DELAY_S))[0]) >= 3


def test_without_a_cap_nothing_is_delayed() -> None:
    """By default the backlog goes as fast as Kafka takes it."""
    bench = Bench(chunk_bytes=1200)
    try:
        outage(bench, 60)
        run(bench, 1.0)
        assert of(bench, b"a") == 541
    finally:
        bench.close()
