"""On an ordinary day compiled loops send a batch and take its reports; the general way gives the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dispatch.errors import Code
from router.outcomes import acks
from tests.router.bench import Bench
from tests.router.fake import HUGE, NO_ONE, POISON

NOW_NS = 1_800_000_000_000_000_000
"""The time of day in these tests."""
PARTITIONERS = {"b": "any", "c": "round_robin", "d": "crc32"}
LEADERS = {b"a": [1, 2, 3], b"b": [1, 2, 3, 2], b"c": [3, 1], b"d": [2, 2, 1]}
UNKNOWN = b"unknown"
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([*LEADERS, *LEADERS, UNKNOWN]),
        st.one_of(st.none(), st.integers(0, 5)),
        st.sampled_from([b"", b"", b"v" * 9, b"v" * 9, HUGE, POISON]),
    ),
    min_size=1,
    max_size=9,
)
ORDINARY = st.lists(
    st.tuples(st.sampled_from(list(LEADERS)), st.none(), st.just(b"v")), min_size=1, max_size=9
)
Step = Callable[[Bench], object]


def _send(messages: list[tuple[bytes, int | None, bytes]], age_ms: int) -> Step:
    return lambda bench: bench.send(messages, received_ns=NOW_NS - 1_000_000 * age_ms)


def _lead(topic: bytes, partition: int, broker: int) -> Step:
    def move(bench: Bench) -> None:
        bench.kafka.leaders[topic][partition % len(LEADERS[topic])] = broker
        bench.metadata.pending = True

    return move


def _fail(flat: int, count: int) -> Step:
    def fail(bench: Bench) -> None:
        if known := bench.pool.partitions.count:
            bench.pool.fail(flat % known, count, int(Code.NOT_LEADER))

    return fail


STEPS = st.one_of(
    st.builds(_send, ORDINARY, st.integers(-5, 5000)),
    st.builds(_send, MESSAGES, st.integers(-5, 5000)),
    st.integers(1, 4).map(lambda times: lambda bench: bench.step(times)),
    st.integers(1, 30).map(lambda count: lambda bench: bench.answer(count)),
    st.builds(_lead, st.sampled_from(list(LEADERS)), st.integers(0, 3), st.sampled_from([1, 2, 3, NO_ONE])),
    st.builds(_fail, st.integers(0, 11), st.integers(1, 3)),
)


class AtOnce(Executor):
    """Writes the marks where it is asked to: when a thread is done with them is another time in each run."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do it now."""
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **named))
        return done


@contextmanager
def bench(window: tuple[int, int] = (1000, 1 << 20), *, plainly: bool = True) -> Iterator[Bench]:
    """A bench that knows its topics; not `plainly`: its router goes the general way alone."""
    made = Bench(window=window, partitioners=PARTITIONERS, chunk_bytes=600)
    made.acks._writer.shutdown()
    made.acks._writer = AtOnce()  # type: ignore[assignment]
    try:
        made.kafka.leaders = {name: list(leaders) for name, leaders in LEADERS.items()}
        made.kafka.denied = {UNKNOWN: int(Code.UNKNOWN_TOPIC_OR_PART)}
        for topic in LEADERS:
            made.send([(topic, None, b"")], received_ns=NOW_NS)
            made.settle()
        if not plainly:
            made.router._batches._send_plainly = lambda *_: False  # type: ignore[method-assign]
            made.router._note_plainly = lambda *_: False  # type: ignore[method-assign]
        yield made
    finally:
        made.close()


def picture(one: Bench) -> list[Any]:
    """All that sending and reports change."""
    table = one.acks
    return [
        one.pool.offered,
        {flat: [m.sequence for m in queue] for flat, queue in one.pool.queues.items() if queue},
        one.pool.partitions.in_use.tolist(),
        one.pool.partitions.any_held,
        one.pool.brokers.rows[["id", "state", "messages", "bytes"]].tolist(),
        {n: (b.resolved.tobytes(), b.taken.tobytes(), b.dirty.tobytes()) for n, b in table._segments.items()},
        (table._delivered, table._given_up, table._unwritten, table._changed, table.low_watermark),
        table.latency.tolist(),
        {topic: turn for topic, turn in enumerate(one.router._partitioners._rotation.tolist()) if turn},  # type: ignore[attr-defined]
        (one.router.handed_over, one.router.read_position, one.router._batches.loose.lowest()),
    ]


@pytest.fixture(autouse=True, scope="module")
def at_noon() -> Iterator[None]:
    """Latencies are the same in each run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acks, "time", SimpleNamespace(time_ns=lambda: NOW_NS, monotonic=time.monotonic))
        yield


@settings(max_examples=60, deadline=None)
@given(window=st.sampled_from([(3, 200), (40, 4000), (1000, 1 << 20)]), steps=st.lists(STEPS, max_size=25))
def test_both_ways_do_the_same(window: tuple[int, int], steps: list[Step]) -> None:
    """The same messages in the same order to the same partitions; the same bits, counts and latencies."""
    with bench(window) as plain, bench(window, plainly=False) as general:
        for step in steps:
            for one in (plain, general):
                step(one)
                one.step()
            assert picture(plain) == picture(general)


def test_an_ordinary_day_goes_the_plain_way_alone() -> None:
    """Neither a batch nor a report goes the general way once the topics are known."""
    with bench() as plain:
        plain.router._batches._hand_over = pytest.fail  # type: ignore[method-assign,assignment]
        plain.router._note_each = pytest.fail  # type: ignore[method-assign,assignment]
        for _ in range(5):
            plain.send([(topic, key, b"v") for topic in LEADERS for key in (None, 1, 2)])
            plain.settle()
        plain.check_complete()
        assert plain.acks.latency.sum() > 0


def test_a_backlog_without_a_pace_goes_the_plain_way() -> None:
    """Messages from before the end of an outage are no work for the general way if no rate limits them."""
    with bench() as plain:
        plain.send([(topic, None, b"v") for topic in LEADERS] * 3)
        plain.router._batches.note_outage_end()
        plain.router._batches._hand_over = pytest.fail  # type: ignore[method-assign,assignment]
        plain.settle()
        plain.check_complete()


def test_what_is_not_plain_changes_nothing_before_it_goes_the_general_way() -> None:
    """Behind nine that may go, the tenth has no topic: no rotation has moved, and no bit is set."""
    with bench() as plain:
        before, seen = picture(plain), []
        admit = plain.router._batches._admit

        def look(*arguments: Any, **more: Any) -> Any:
            seen.append(picture(plain))
            return admit(*arguments, **more)

        plain.router._batches._admit = look  # type: ignore[method-assign]
        plain.send([*[(topic, None, b"v") for topic in LEADERS] * 2, (UNKNOWN, None, b"v")])
        plain.router.step()
        changed = [at for at, (one, other) in enumerate(zip(before, seen[0], strict=True)) if one != other]
        # The reader alone has moved.
        assert changed == [len(before) - 1]
        assert np.array_equal(seen[0][-1][2], before[-1][2])
