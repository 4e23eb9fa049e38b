"""While a deliverer waits, a compiled loop delivers what is ordinary, and leaves all else as it was."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from router.context import CommittedEnd
from router.fast_path import _UNTIL_NS
from router.outcomes.acks import Pace
from router.timing import COMMIT_S, FEW_COMMIT_S
from spool.format.wire import Reason, encode, encode_message
from spool.shared.state import place
from tests.router.outlet import PATIENCE_S, Outlet, anywhere, check_order, keyed, numbers, outlet

PRODUCE = 0
SECONDS = 0.5


@contextmanager
def knowing(kafka: EmbeddedKafka, **options: Any) -> Iterator[Outlet]:
    """An outlet that has delivered a message, and has nothing left to do."""
    with outlet(kafka, **options) as running:
        running.send(anywhere(1))
        running.finish()
        # The counts of a topic that is new are written down.
        running.run_for(0.3)
        assert running.router.is_ordinary
        yield running


def wait_for(running: Outlet, resolved: int) -> None:
    """Wait, and do nothing else, until so many messages are resolved."""
    ready = threading.Event()
    timer = threading.Timer(PATIENCE_S, ready.set)
    timer.start()
    while running.resolved < resolved and not ready.is_set():
        running.fast_path.wait(SECONDS, SECONDS)
    timer.cancel()
    assert running.resolved == resolved


def state(running: Outlet) -> list[Any]:
    """All that sending changes, but counts of time."""
    bits = running.acks._segments.values()
    return [
        running.readers[0].position,
        running.readers[0].sequence,
        running.router.handed_over,
        [(one.resolved.tobytes(), one.taken.tobytes()) for one in bits],
        running.pool.partitions.in_use.tolist(),
        running.pool.flight.count,
    ]


def test_it_delivers_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of all kinds, in order and once; counted, with their latencies; and a successor resumes."""
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka) as running:
        monkeypatch.setattr(running.router, "step", lambda: pytest.fail("a step"))
        done, counted = 1, int(running.acks.latency[:-1].sum())
        for first in range(0, 60, 20):
            headed = encode_message(b"t", None, key=b"k", headers=[("h", b"v"), ("n", None)])
            running.send([*keyed(18, first=first), *anywhere(1, first=900 + first), headed])
            done += 20
            wait_for(running, done)
        assert running.acks.latency[:-1].sum() == counted + 60
        assert running.acks.take_counts() == (61, 0)
        assert running.router.handed_over == 61
        monkeypatch.undo()
        assert running.finish().low_watermark == 61
        running.restart()
        running.finish()
        records = running.consume("t", 3, 61)
        assert len(records) == 61
        check_order([record for record in records if (record.value() or b"").count(b":") == 2])
        assert [list(record.headers() or [])[1:] for record in records if record.value() is None] == [
            [("h", b"v"), ("n", None)]
        ] * 3


def test_it_ends_when_marks_are_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few messages FEW_COMMIT_S after the last write; with many, or while a client waits, COMMIT_S."""
    options = {"kafka_properties": {"statistics.interval.ms": "0"}}
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka, **options) as running:
        acks, done = running.acks, 1
        for pace, least in (
            (Pace(few=30), FEW_COMMIT_S),
            (Pace(few=1), COMMIT_S),
            (Pace(few=30, is_wanted=lambda: True), COMMIT_S),
        ):
            monkeypatch.setattr(acks, "_pace", pace)
            running.router.commit()
            began = acks._committed_at
            running.send(keyed(20, first=done))
            done += 20
            while not acks.due() and time.monotonic() - began < PATIENCE_S / 2:
                running.fast_path.wait(PATIENCE_S, PATIENCE_S)
            assert time.monotonic() - began >= least
            assert running.fast_path._words[_UNTIL_NS] == int(1e9 * (began + least))
            wait_for(running, done)


def test_what_is_not_ordinary_is_left_as_it_was() -> None:
    """Behind nine messages that could go, one of a topic that is not known: none of them has gone."""
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka) as running:
        before = state(running)
        running.send([*anywhere(9), encode(b"u", b"v")])
        running.fast_path.wait(SECONDS, SECONDS)
        assert state(running) == before
        running.kafka.topic("u", 1)
        running.finish()
        assert len(running.consume("u", 1, 1)) == 1


@pytest.mark.parametrize("cause", ["bytes", "segment"])
def test_the_end_of_a_segment_and_a_backlog_are_left(cause: str) -> None:
    """A step goes on with them, and all of it arrives."""
    count = {"bytes": 1000, "segment": 5000}[cause]
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka) as running:
        before = state(running)
        running.send(keyed(count, bytes_each=100))
        running.fast_path.wait(SECONDS, SECONDS)
        assert state(running) == before
        running.finish()
        assert sorted(numbers(running.consume("t", 3, count + 1))) == sorted([0, *range(count)])


def test_what_librdkafka_refuses_goes_to_the_router() -> None:
    """A message beyond message.max.bytes is discarded for its reason; those around it arrive."""
    options = {"kafka_properties": {"message.max.bytes": "2000"}}
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka, **options) as running:
        running.send([*keyed(3), encode(b"t", bytes(4000)), *keyed(3, first=3)])
        running.fast_path.wait(SECONDS, SECONDS)
        assert running.router.handed_over == 7
        outcomes = running.finish()
        assert outcomes.low_watermark == 8
        assert [(row.reason, row.count) for row in outcomes.discarded] == [(Reason.TOO_LARGE, 1)]
        assert sorted(numbers(running.consume("t", 3, 7))) == [0, 0, 1, 2, 3, 4, 5]


def test_a_window_that_is_full_holds_partitions() -> None:
    """The messages that had no room go later, behind the others, once."""
    with EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka, knowing(kafka, window_messages=8) as running:
        running.send(keyed(60))
        running.fast_path.wait(SECONDS, SECONDS)
        assert 0 < running.router.handed_over - 1 <= 8
        running.finish()
        records = running.consume("t", 3, 61)
        check_order(records)
        assert len(records) == 61


def test_without_room_it_sleeps_through_commits() -> None:
    """While Kafka is away and the window is full, what is committed wakes no one; later all of it goes."""
    options: dict[str, Any] = {
        "window_messages": 8,
        "kafka_properties": {"statistics.interval.ms": "0"},
    }
    with EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka, knowing(kafka, **options) as running:
        kafka.down()
        for first in range(0, 80, 20):
            running.send(keyed(20, first=first))
            running.run_for(0.05)
        assert not running.router.has_room
        running.send(keyed(20, first=80))
        os.eventfd_write(running.spool.bell, 1)
        running.fast_path.wait(0.05, 0.05)
        assert select.select([running.spool.bell], [], [], 0)[0]
        kafka.up()
        running.finish()
        assert sorted(set(numbers(running.consume("t", 3, 101)))) == list(range(100))


def test_a_report_with_an_error_goes_to_the_router() -> None:
    """A message that Kafka refuses is not resolved by the loop; it is sent again."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as kafka, knowing(kafka) as running:
        running.kafka.errors(PRODUCE, [int(Code.INVALID_RECORD)])
        running.send(keyed(5))
        running.finish()
        assert sorted(numbers(running.consume("t", 1, 6))) == [0, 0, 1, 2, 3, 4]


def test_other_threads_wake_it() -> None:
    """A ring that brings neither message nor report ends the wait: a step looks for what there is."""
    options = {"kafka_properties": {"statistics.interval.ms": "0"}}
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka, **options) as running:
        timer, began = threading.Timer(0.1, running.graph.wakeup.ring), time.monotonic()
        timer.start()
        running.fast_path.wait(PATIENCE_S, PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2


def test_it_waits_where_the_log_cannot_be_read_on() -> None:
    """A committed end in another segment is a step's; a wait is a sleep then, and ends in time."""
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, knowing(kafka) as running:
        word = np.array([place(99, 4096)], np.int64)
        running.fast_path._committed = CommittedEnd(word)
        before = state(running)
        running.fast_path.wait(0.05, 0.05)
        assert state(running) == before
