"""A topic in flood, and the others: they are delivered meanwhile, it is not starved, little is read twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dispatch.brokers import State
from router import catch_up, reading
from router.catch_up import TURN_BATCHES
from router.shares import floods
from tests.router.bench import Bench
from tests.spool.reads import count_reads

CHUNK_BYTES = 1200


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A window of 60 messages a broker; whatever stands in the way is set aside at once."""
    monkeypatch.setattr(reading, "BEHIND_BYTES", 0)
    made = Bench(window=(60, 1 << 20), chunk_bytes=CHUNK_BYTES)
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
    """The broker takes so many messages in all, of its partitions in turn."""
    while messages > 0:
        taken = 0
        for flat in range(bench.pool.partitions.count):
            taken += bench.pool.answer(flat, 1)
        if not taken:
            return
        messages -= taken


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


def test_two_in_flood_get_the_same(bench: Bench) -> None:
    """One behind the other in the log, and nobody starves: neither the newcomer nor the first."""
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
    size = sum(bench.rig.layout.segment(*s).stat().st_size for s in bench.rig.layout.list_segments())
    read, passes = count_reads(monkeypatch), 0
    begin = bench.router._catch_ups.begin

    def begun(*arguments: Any) -> Any:
        nonlocal passes
        found = begin(*arguments)
        passes += found is not None
        return found

    monkeypatch.setattr(bench.router._catch_ups, "begin", begun)
    while bench.acks.floor < bench.end:
        bench.step()
        answer_slowly(bench, 8)
    # Chunks overlap by the frame that is cut off at their end.
    assert read.total() <= (1.4 if topics == 1 else 2.5) * size + passes * 2 * CHUNK_BYTES
    bench.settle()
    bench.check_complete()


def test_a_pass_gives_way_after_its_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topics wait at places far from each other: neither waits until the other is done."""
    monkeypatch.setattr(catch_up, "NEAR", 50)
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
    assert max(batches.values()) <= TURN_BATCHES + 1
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
    return SimpleNamespace(partitions=SimpleNamespace(rows=partitions), brokers=SimpleNamespace(rows=brokers))


def test_who_is_set_aside() -> None:
    """Who has most, at brokers that move and have no room; never who has nothing there, or little."""
    rows = [(0, 0, 90, 900), (0, 1, 90, 900), (1, 0, 5, 50), (2, 0, 0, 0), (3, 0, 5, 50), (0, 0, 0, 0)]
    pool = table(rows, [State.HEALTHY, State.HEALTHY])
    free = np.ones(len(rows), np.bool_)
    full = np.zeros(2, np.bool_)
    assert floods(pool, np.array([False, True]), free).tolist() == [0]
    assert floods(pool, ~full, free).tolist() == []
    free[[0, 1, 5]] = False
    assert floods(pool, np.array([False, True]), free).tolist() == []
    still = table(rows[2:], [State.STALLED, State.HEALTHY])
    assert floods(still, full, np.ones(4, np.bool_)).tolist() == []
    # Few large messages are a flood as well as many small ones.
    even = table([(0, 0, 1, 10_000), (1, 0, 50, 100), (2, 0, 2, 10)], [State.HEALTHY])
    assert floods(even, np.zeros(1, np.bool_), np.ones(3, np.bool_)).tolist() == [0, 1]
