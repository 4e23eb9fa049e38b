"""Single cases, step by step, with a scripted Kafka."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dispatch.errors import Code
from spool.format.batch import Batch
from spool.format.wire import Reason
from tests.router.bench import Bench


def keys(count: int, key: int = 0, topic: bytes = b"a") -> list[tuple[bytes, int | None, bytes]]:
    """Messages with one partition key."""
    return [(topic, key, b"")] * count


def test_nothing_to_do_is_nothing_done(fine: Bench) -> None:
    """With every broker stuck and messages waiting for all kinds of things, steps are idle but for a tick."""
    fine.window = (3, 1 << 20)
    fine.restart()
    fine.kafka.denied = {b"new": 3}
    fine.kafka.down = {1, 2, 3}
    for _ in range(20):
        fine.send([(b"a", 1, b""), (b"a", None, b""), (b"b", None, b""), (b"new", 1, b""), (b"b", 0, b"")])
    for _ in range(300):
        fine.step()
    at = fine.clock.now
    busy = 0
    for _ in range(100):
        fine.clock.now = at
        busy += fine.router.step()
    assert busy <= 1
    fine.kafka.down = set()
    fine.kafka.leaders[b"new"] = [2]
    fine.metadata.pending = True
    fine.settle()
    fine.check_order()
    fine.check_complete()


def test_queue_full(bench: Bench) -> None:
    """Librdkafka takes nothing: no spinning meanwhile; and all of it once it does."""
    bench.kafka.full = True
    bench.send(keys(20))
    bench.step(20)
    busy = sum(bench.router.step() for _ in range(50))
    assert busy <= 2
    bench.kafka.full = False
    bench.settle()
    assert bench.kafka.logs[b"a", 0] == list(range(20))


def test_a_topic_that_may_not_be_seen_is_not_given_up(bench: Bench) -> None:
    """The right may be granted, the leader elected: only "no such topic" ends the waiting."""
    bench.kafka.denied = {b"secret": int(Code.TOPIC_AUTHORIZATION_FAILED), b"gone": 3}
    bench.send([(b"secret", 1, b""), (b"gone", 1, b"")])
    for _ in range(50):
        bench.clock.now += 10
        bench.metadata.pending = True
        bench.step()
    bench.router.commit()
    assert bench.discarded() == {1: Reason.UNKNOWN_TOPIC}
    bench.kafka.leaders[b"secret"] = [1]
    bench.metadata.pending = True
    bench.settle()
    assert bench.kafka.logs[b"secret", 0] == [0]


def test_the_grace_time_begins_with_the_first_answer(bench: Bench) -> None:
    """Not while Kafka is away; and is over 60 seconds later."""
    bench.kafka.denied = {}
    bench.send([(b"gone", 1, b"")])
    for _ in range(20):
        bench.clock.now += 100
        bench.metadata.pending = True
        bench.step()
    bench.kafka.denied = {b"gone": 3}
    bench.metadata.pending = True
    bench.step()
    bench.clock.now += 59
    bench.metadata.pending = True
    bench.step(2)
    bench.router.commit()
    assert bench.discarded() == {}
    bench.clock.now += 1
    bench.metadata.pending = True
    bench.step(2)
    bench.router.commit()
    assert bench.discarded() == {0: Reason.UNKNOWN_TOPIC}


def test_at_the_end_of_the_log(bench: Bench) -> None:
    """A step says that nothing is left to do, and has what it sent go at once; the next one sends nothing."""
    bench.metadata.pending = True
    bench.step()
    bench.send([*keys(5), (b"b", None, b"")])
    assert not bench.step()
    assert bench.pool.client.hurries == 1
    assert not bench.router.at_rest
    assert not bench.router.awaits_more
    bench.answer()
    assert not bench.step()
    assert bench.router.at_rest
    assert bench.pool.client.hurries == 1
    bench.settle()
    bench.check_complete()


def test_a_configured_linger_is_kept(bench: Bench) -> None:
    """With linger.ms in the configuration librdkafka gathers: the router hurries nothing."""
    bench.pool.client.lingers_by_choice = True
    bench.metadata.pending = True
    bench.step()
    bench.send(keys(5))
    assert not bench.step()
    assert bench.pool.client.hurries == 0
    bench.settle()
    bench.check_complete()


def test_before_the_end_of_the_log(fine: Bench) -> None:
    """While there is more to read, a step says so, and librdkafka gathers."""
    fine.metadata.pending = True
    fine.step()
    for _ in range(10):
        fine.send(keys(10))
    assert fine.step()
    assert fine.pool.client.hurries == 0
    fine.settle()
    fine.check_order()


class Noted:
    """Open messages below the live reader, of all topics."""

    open = 0

    def note_read(self, batch: Batch, rows: npt.NDArray[np.bool_]) -> None:
        """These are open."""
        self.open += int(rows.sum())

    def note_resolved(self, topics: npt.NDArray[np.int32]) -> None:
        """These are no more."""
        self.open = max(0, self.open - len(topics))

    def report(self, *_: int) -> None:
        """To no one."""


def test_messages_in_excess_are_open_before_they_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those that were read before would count as resolved in their place, and no quota would hold."""
    noted, batches = Noted(), bench.router._batches
    monkeypatch.setattr(batches, "_open_counts", noted)
    monkeypatch.setattr(bench.router._rejects, "_open_counts", noted)
    monkeypatch.setattr(batches._limits, "beyond", lambda batch: np.arange(len(batch)) > 0)
    bench.kafka.down = {1, 2, 3}
    for _ in range(5):
        bench.send(keys(20))
        bench.step(20)
    bench.router.commit()
    assert noted.open == bench.router.read_position - len(bench.discarded()) > 0
