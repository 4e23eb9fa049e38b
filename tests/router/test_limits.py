"""Rates of topics and the pace of a backlog: no more goes than may, none is lost by it, and order is kept."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dispatch.tables import BrokerTable, State
from router.context import BOUNDS, Bounds
from router.limits import SLOWEST, Limits, Rate, hot_topics, thin
from router.outcomes.counts import OpenCounts
from router.timing import BACKLOG_DELAY_S
from spool.format.batch import Topics
from spool.format.wire import Reason
from tests.router.bench import Bench
from tests.router.fake import Clock
from tests.spool.reads import count_reads

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
    """A second's worth goes at once, and then as much as came in time, whatever the rate of delivery."""
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
    """The first rows of each partition go, of each topic at most its tokens, and at most one row too much."""
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
        # The messages in the windows of the three brokers when they went were handed over before.
        first = bench.clock.now
        run(bench, 3.0)
        waiting = of(bench, b"a")
        bench.send([(b"b", 1, b"new")])
        run(bench, 0.2)
        assert of(bench, b"b") == 2
        assert of(bench, b"a") == waiting
        run(bench, BACKLOG_DELAY_S)
        seconds = 5.0
        before = of(bench, b"a")
        run(bench, seconds)
        sent = 50 * (of(bench, b"a") - before)
        assert SLOWEST * 2000 * (seconds - 1) <= sent <= 2000 * (seconds + 1)
        assert bench.clock.now - first < 20
        assert bench.acks.low_watermark < bench.end
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
        run(bench, BACKLOG_DELAY_S + 1)
        before = of(bench, b"a")
        for _ in range(20):
            bench.send([(b"c", key, b"v" * 1000) for key in range(3)])
            bench.step()
        bench.kafka.leaders[b"c"] = [1, 2]
        run(bench, 3.0)
        assert of(bench, b"c") == 60
        assert 0 < 50 * (of(bench, b"a") - before) <= 2000 * 4
        assert bench.acks.low_watermark < bench.end
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
    assert max(begins) <= BACKLOG_DELAY_S + 0.2
    assert np.ptp(np.histogram(begins, bins=5, range=(0, BACKLOG_DELAY_S))[0]) <= 15
    assert min(np.histogram(begins, bins=5, range=(0, BACKLOG_DELAY_S))[0]) >= 3


def test_without_a_cap_nothing_is_delayed() -> None:
    """By default the backlog goes as fast as Kafka takes it."""
    bench = Bench(chunk_bytes=1200)
    try:
        outage(bench, 60)
        run(bench, 1.0)
        assert of(bench, b"a") == 541
    finally:
        bench.close()


CHUNK_BYTES = 1200


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A window of 60 messages a broker; a topic that is in the way is set aside at once."""
    made = Bench(window=(60, 1 << 20), chunk_bytes=CHUNK_BYTES, bounds=Bounds(behind_bytes=0))
    made.kafka.leaders = {name: [1, 1] for name in (b"a", b"b", b"c", b"d")}
    yield made
    made.close()


def records(bench: Bench) -> Counter[bytes]:
    """How many Kafka has of each topic."""
    found: Counter[bytes] = Counter()
    for (topic, _), log in bench.kafka.logs.items():
        found[topic] += len(log)
    return found


def flood(bench: Bench, topic: bytes, frames: int) -> None:
    """Many messages of one topic."""
    for _ in range(frames):
        bench.send([(topic, key, b"v" * 30) for key in range(10)])


def answer_slowly(bench: Bench, messages: int) -> None:
    """The broker takes this many messages in all, of its partitions in turn."""
    while messages > 0:
        taken = 0
        for flat in range(bench.pool.partitions.count):
            taken += bench.pool.answer(flat, 1)
        if not taken:
            return
        messages -= taken


def test_none_is_set_aside_while_a_transaction_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is closed has room for no topic: none is in the way, and nothing is read ahead."""
    flood(bench, b"a", 4)
    bench.step(20)
    before = len(bench.pool.offered)
    monkeypatch.setattr(type(bench.pool), "closed", property(lambda _: True))
    flood(bench, b"a", 400)
    bench.step(20)
    assert (len(bench.pool.offered), bench.pool.partitions.any_held) == (before, False)
    monkeypatch.undo()
    bench.settle()
    assert records(bench)[b"a"] == 4040


@pytest.mark.parametrize("key", [None, 1])
def test_others_are_delivered_beside_a_flood(bench: Bench, key: int | None) -> None:
    """A message behind 4,000 of another topic is in Kafka long before those are."""
    flood(bench, b"a", 400)
    bench.send([(b"b", key, b"")] * 3)
    steps = 0
    while records(bench)[b"b"] < 3:
        bench.step()
        answer_slowly(bench, 4)
        steps += 1
        assert steps < 600
    assert records(bench)[b"b"] == 3
    assert records(bench)[b"a"] < 2500
    bench.settle()
    bench.check_order()
    bench.check_complete()


def test_others_are_known_before_the_first_answer(bench: Bench) -> None:
    """The live path has come to them before a pass begins, which looks for both topics: each has turns."""
    bench.send([(b"a", None, b""), (b"b", None, b"")])
    bench.settle()
    for _ in range(400):
        bench.send([(b"a", None, b"v" * 30)] * 10)
    bench.send([(b"b", None, b"")] * 3)
    while bench.router.read_position < bench.end:
        bench.step()
    while records(bench)[b"b"] < 4:
        bench.step()
        answer_slowly(bench, 8)
    assert records(bench)[b"a"] < 1000
    bench.settle()
    bench.check_complete()


def test_two_in_flood_get_the_same(bench: Bench) -> None:
    """One behind the other in the log, and none starves: neither the newcomer nor the first."""
    flood(bench, b"a", 300)
    flood(bench, b"b", 300)
    flood(bench, b"c", 1)
    while records(bench)[b"c"] < 10:
        bench.step()
        answer_slowly(bench, 8)
    before = records(bench)
    for _ in range(150):
        bench.step()
        answer_slowly(bench, 8)
    now = records(bench)
    sent = {topic: now[topic] - before[topic] for topic in (b"a", b"b")}
    assert sum(sent.values()) > 800
    assert min(sent.values()) > 0.25 * sum(sent.values())
    bench.settle()
    bench.check_order()
    bench.check_complete()


def test_new_messages_go_beside_a_topic_that_catches_up(bench: Bench) -> None:
    """Each is in Kafka while the flood before it still waits, and the flood goes on as well."""
    flood(bench, b"a", 400)
    for round_ in range(20):
        bench.send([(b"b", round_, b"")])
        before = records(bench)[b"a"]
        steps = 0
        while records(bench)[b"b"] <= round_:
            bench.step()
            answer_slowly(bench, 8)
            steps += 1
            assert steps < 900
        if round_ > 2:
            assert steps < 60
            assert records(bench)[b"a"] > before
    assert records(bench)[b"a"] < 4000
    bench.settle()
    bench.check_complete()


@pytest.mark.parametrize("topics", [1, 4])
def test_how_much_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch, topics: int) -> None:
    """Not much more than once the log when one topic has all of it; else about twice, and a chunk a pass."""
    for n in range(topics):
        flood(bench, b"abcd"[n : n + 1], 100)
    size = sum(bench.spool.layout.segment(*s).stat().st_size for s in bench.spool.layout.list_segments())
    read, passes = count_reads(monkeypatch), 0
    begin = bench.router._catch_ups.begin

    def begun(*arguments: Any) -> Any:
        nonlocal passes
        found = begin(*arguments)
        passes += found is not None
        return found

    monkeypatch.setattr(bench.router._catch_ups, "begin", begun)
    while bench.acks.low_watermark < bench.end:
        bench.step()
        answer_slowly(bench, 8)
    # Chunks overlap by the frame that is cut off at their end.
    assert read.total() <= (1.4 if topics == 1 else 2.5) * size + passes * 2 * CHUNK_BYTES
    bench.settle()
    bench.check_complete()


def test_a_pass_gives_way_after_its_turn(bench: Bench) -> None:
    """Two topics wait at places far from each other: neither waits until the other is done."""
    bench.bounds = Bounds(near=50, behind_bytes=0)
    bench.restart()
    bench.kafka.leaders = {b"a": [1], b"b": [2]}
    bench.send([(b"a", 0, b""), (b"b", 0, b"")])
    bench.settle()
    bench.kafka.down = {1, 2}
    flood(bench, b"a", 100)
    flood(bench, b"b", 100)
    bench.restart()
    bench.window = (10_000, 1 << 20)
    bench.step(3)
    bench.pool.partitions.hold(np.array([0, 1], np.int32), np.array([2, 1002]))
    bench.kafka.down = set()
    bench.router._live.seek(2002)
    bench.router._live.sequence = 2002
    batches = Counter[int]()
    order = []
    for _ in range(60):
        bench.step()
        bench.answer()
        current = bench.router._catch_ups.current
        if current and len(np.flatnonzero(current.ready)) == 1:
            topic = int(np.flatnonzero(current.ready)[0])
            batches[topic] = max(batches[topic], current.batches)
            if not order or order[-1] != topic:
                order.append(topic)
    assert len(order) >= 4
    assert max(batches.values()) <= BOUNDS.turn_batches + 1
    bench.settle()
    bench.check_order()


def table(rows: list[tuple[int, int, int, int]], states: list[State]) -> Any:
    """A pool of partitions (topic, leader, messages, bytes), and brokers that carry them."""
    partitions = np.zeros(len(rows), [("topic", "i4"), ("leader", "i4"), ("messages", "i8"), ("bytes", "i8")])
    partitions[:] = rows
    brokers = np.zeros(len(states), [("state", "i4"), ("messages", "i8"), ("bytes", "i8")])
    brokers["state"] = states
    for _, leader, messages, size in rows:
        if leader >= 0:
            brokers["messages"][leader] += messages
            brokers["bytes"][leader] += size
    known = BrokerTable()
    known.rows = brokers
    return SimpleNamespace(partitions=SimpleNamespace(in_use=partitions), brokers=known)


def test_who_is_set_aside() -> None:
    """The topic with most, at brokers that move and have no room; never one with nothing there, or little."""
    rows = [(0, 0, 90, 900), (0, 1, 90, 900), (1, 0, 5, 50), (2, 0, 0, 0), (3, 0, 5, 50), (0, 0, 0, 0)]
    pool = table(rows, [State.HEALTHY, State.HEALTHY])
    free = np.ones(len(rows), np.bool_)
    full = np.zeros(2, np.bool_)
    assert hot_topics(pool, np.array([False, True]), free).tolist() == [0]
    assert hot_topics(pool, ~full, free).tolist() == []
    free[[0, 1, 5]] = False
    assert hot_topics(pool, np.array([False, True]), free).tolist() == []
    still = table(rows[2:], [State.STALLED, State.HEALTHY])
    assert hot_topics(still, full, np.ones(4, np.bool_)).tolist() == []
    # Few large messages are a flood as well as many small ones.
    even = table([(0, 0, 1, 10_000), (1, 0, 50, 100), (2, 0, 2, 10)], [State.HEALTHY])
    assert hot_topics(even, np.zeros(1, np.bool_), np.ones(3, np.bool_)).tolist() == [0, 1]


def flood_a_partition(bench: Bench) -> None:
    """800 messages at once, for one partition of a topic that is known."""
    bench.kafka.leaders = {b"b": [1] * 6}
    bench.send([(b"b", 0, b"v")])
    bench.settle()
    for _ in range(80):
        bench.send([(b"b", 0, b"v" * 60)] * 10)


@pytest.mark.parametrize("window", [(1000, 1 << 20), (4, 1 << 20)])
def test_an_excess_is_discarded_without_room_too(window: tuple[int, int]) -> None:
    """A topic that is set aside in a flood is read on: its rate holds as it does with room."""
    bounds = Bounds(near=1 << 17, turn_batches=8, behind_bytes=0)
    bench = Bench(window=window, rates={"b": Rate(10, discard=True)}, chunk_bytes=600, bounds=bounds)
    try:
        flood_a_partition(bench)
        bench.step(8)
        bench.settle(batch=2)
        bench.check_complete()
        assert len(bench.sent) - len(bench.discarded()) < 40
    finally:
        bench.close()


def test_a_quota_counts_what_is_set_aside() -> None:
    """The keeper hears of every open message, also of a topic that floods its broker."""
    bounds, told = Bounds(near=1 << 17, turn_batches=8, behind_bytes=0), list[int]()
    bench = Bench(window=(4, 1 << 20), chunk_bytes=600, bounds=bounds)
    try:
        counts = OpenCounts([b"b"], bench.topics, lambda _place, still: told.append(int(still[0])))
        for part in (bench.router, bench.router._batches, bench.router._rejects):
            part._open_counts = counts
        flood_a_partition(bench)
        bench.step(20)
        bench.router.commit()
        below = np.arange(bench.router.read_position)
        assert len(below) > 100
        assert told[-1] == int(bench.acks.unresolved(below).sum())
    finally:
        bench.close()
