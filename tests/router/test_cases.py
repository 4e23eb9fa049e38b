"""Single cases, step by step, with a scripted Kafka.

These are the tests of `router.catch_up`, `router.scheduler` and `router.partition_history`, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.errors import Code
from dispatch.pool import Pool
from router.outcomes.acks import Acks
from router.timing import SHRINK_S
from spool.format.wire import Reason
from tests.router.bench import Bench
from tests.router.fake import HUGE, NO_ONE, POISON


@pytest.fixture
def fine() -> Iterator[Bench]:
    """Readers that take a few messages at a time."""
    made = Bench(chunk_bytes=600)
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()


def keys(count: int, key: int = 0, topic: bytes = b"a") -> list[tuple[bytes, int | None, bytes]]:
    """Messages with one partition key."""
    return [(topic, key, b"")] * count


def read_all(bench: Bench) -> None:
    """Let the live reader come to the end of the log."""
    for _ in range(1000):
        bench.step()
        if bench.router.read_position >= bench.end:
            return
        if bench.kafka.down:
            bench.answer()
    raise AssertionError("the reading does not come to an end")


def test_old_messages_of_a_new_topic_go_first(fine: Bench) -> None:
    """Messages that waited for it are sent before those that come once it is known."""
    fine.kafka.denied = {b"new": 3}
    for _ in range(20):
        fine.send([*keys(4, topic=b"new"), *keys(2)])
    read_all(fine)
    fine.kafka.leaders[b"new"] = [1, 2]
    for _ in range(20):
        fine.send(keys(4, topic=b"new"))
    fine.metadata.pending = True
    fine.step()
    fine.answer()
    fine.settle()
    fine.check_order()
    fine.check_complete()
    assert len(fine.kafka.logs[b"new", 0]) == 160


def test_a_failed_message_waits_for_those_behind_it(bench: Bench) -> None:
    """They may fail as well: sent again before they have, it would go with newer ones ahead of them."""
    bench.send(keys(10))
    bench.step(3)
    bench.pool.fail(0, 1, Code.NOT_LEADER)
    bench.step()
    bench.send(keys(5))
    bench.clock.now += 1
    bench.step(5)
    assert [m.sequence for m in bench.pool.queues[0]] == list(range(1, 10))
    bench.pool.answer(0, 4)
    bench.step()
    bench.clock.now += 1
    bench.step(5)
    bench.settle()
    assert bench.kafka.logs[b"a", 0] == list(range(15))


def test_what_may_go_anywhere_waits_for_any_place(bench: Bench) -> None:
    """No partition has a leader when it is read; later one has."""
    bench.kafka.leaders[b"b"] = [NO_ONE, NO_ONE]
    bench.send([(b"b", None, b""), (b"a", 1, b"")] * 5)
    read_all(bench)
    bench.step(3)
    bench.answer()
    bench.step()
    assert bench.appended() == [1, 3, 5, 7, 9]
    assert bench.marks
    bench.router.commit()
    assert min(bench.marks.offsets().values()) == 0
    bench.kafka.leaders[b"b"] = [NO_ONE, 3]
    bench.metadata.pending = True
    bench.settle()
    assert bench.kafka.logs[b"b", 1] == [0, 2, 4, 6, 8]


def test_what_is_held_back_by_a_broker_goes_elsewhere_if_it_may(bench: Bench) -> None:
    """The rest of a batch larger than a window does not wait for a broker that hangs."""
    bench.window = (10, 1 << 20)
    bench.restart()
    bench.kafka.leaders = {b"a": [1, 2, 3]}
    bench.kafka.down = {1, 2}
    for _ in range(4):
        bench.send([(b"a", None, b"")] * 12)
    for _ in range(200):
        bench.step()
        bench.answer(5)
    stuck = bench.router.in_flight()
    assert stuck <= 20
    assert len(bench.kafka.logs[b"a", 2]) == 48 - stuck


def test_a_topic_that_grows_keeps_old_messages_where_they_were(
    fine: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to where the log was read; from there on the new count holds, and the log says so."""
    fine.window = (5, 1 << 20)
    fine.restart()
    for _ in range(10):
        fine.send([(b"a", key, b"") for key in range(6)])
    fine.kafka.down = {1, 2}
    read_all(fine)
    grown = fine.router.read_position
    fine.kafka.leaders[b"a"] = [1, 2, 3, 1]
    fine.metadata.pending = True
    fine.step()
    fine.kafka.down = set()
    for _ in range(10):
        fine.send([(b"a", key, b"") for key in range(6)])
    fine.settle()
    for (_, partition), log in fine.kafka.logs.items():
        for sequence in log:
            key = fine.sent[sequence][1]
            assert key is not None
            assert partition == key % (3 if sequence < grown else 4)
    assert "topic a has 4 partitions instead of 3" in caplog.text
    assert f"from message {grown} on" in caplog.text
    assert fine.router._history._before == []


def grown_while_waiting(fine: Bench) -> int:
    """A topic grows from 3 to 4 partitions; the sequence from which on that holds.

    Meanwhile messages wait for brokers 1 and 2, and those of the new partition are in Kafka.
    """
    fine.window = (500, 1 << 20)
    fine.restart()
    fine.send([(b"a", key, b"") for key in range(12)])
    fine.step(3)
    fine.answer()
    fine.step()
    fine.router.commit()
    fine.kafka.down = {1, 2}
    for _ in range(4):
        fine.send([(b"a", key, b"") for key in range(12)])
    read_all(fine)
    grown = fine.router.read_position
    fine.kafka.leaders[b"a"] = [1, 2, 3, 3]
    fine.metadata.pending = True
    fine.step()
    for _ in range(4):
        fine.send([(b"a", key, b"") for key in range(12)])
    read_all(fine)
    fine.answer()
    assert fine.kafka.logs[b"a", 3]
    return grown


def test_a_restart_counts_as_before_the_topic_grew(fine: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older waiting messages go where their predecessors went, though nothing else was written down."""
    with monkeypatch.context() as patched:
        patched.setattr(Acks, "due", lambda _: False)
        grown = grown_while_waiting(fine)
    fine.restart()
    fine.kafka.down = set()
    fine.settle()
    fine.check_complete()
    for (_, partition), log in fine.kafka.logs.items():
        for sequence in log:
            assert partition == (fine.sent[sequence][1] or 0) % (3 if sequence < grown else 4)


def test_a_topic_that_grew_while_nobody_looked(fine: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the message from which on the new count holds; each key keeps one order."""
    fine.send([(b"a", key, b"") for key in range(12)])
    fine.settle()
    fine.crash()
    fine.kafka.leaders[b"a"] = [1, 2, 3, 3]
    fine.open()
    first = fine.send([(b"a", key, b"") for key in range(12)])[0]
    fine.settle()
    fine.check_complete()
    assert "topic a has 4 partitions instead of 3; that holds from message" in caplog.text
    fine.restart()
    fine.send([(b"a", key, b"") for key in range(12)])
    fine.settle()
    assert caplog.text.count("instead of") == 1
    assert [s for s in fine.kafka.logs[b"a", 3] if s < first] == []
    assert fine.kafka.logs[b"a", 3]


def test_a_topic_created_again_with_fewer_partitions(fine: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Messages waiting for partitions that are gone go to those that are there; the log says so."""
    fine.kafka.down = {1, 2, 3}
    for _ in range(3):
        fine.send([(b"a", key, b"") for key in range(12)])
    fine.step(30)
    fine.router.commit()
    fine.crash()
    fine.kafka.leaders[b"a"] = [1]
    fine.kafka.down = set()
    fine.open()
    fine.settle()
    fine.check_complete()
    assert set(fine.kafka.logs[b"a", 0]) == set(fine.sent)
    assert "created again" not in caplog.text
    fine.clock.now += SHRINK_S
    fine.metadata.pending = True
    fine.step()
    assert "topic a was created again with 1 partitions instead of 3" in caplog.text


def test_candidates_of_a_partition_that_is_gone(fine: Bench) -> None:
    """Messages refused there with their batch go to those that are there."""
    fine.send([(b"a", 2, POISON), (b"a", 2, b"")])
    while not fine.router._failures.with_candidates():
        fine.step()
        fine.answer()
    fine.kafka.down = {1, 2, 3}
    fine.kafka.leaders[b"a"] = [1]
    for _ in range(2):
        fine.metadata.pending = True
        fine.step()
        fine.clock.now += SHRINK_S
    fine.kafka.down = set()
    fine.settle()
    assert fine.kafka.logs[b"a", 0] == [1]
    assert fine.discarded() == {0: Reason.INVALID_RECORD}


@pytest.mark.parametrize("topic", [b"a", b"b"])
@pytest.mark.parametrize("key", [0, None])
def test_one_bad_record_among_many(bench: Bench, topic: bytes, key: int | None) -> None:
    """It alone is discarded, within a few rounds, at any position; no other partition suffers for it."""
    messages = [(topic, key, b"")] * 100
    messages[37] = (topic, key, POISON)
    for first in range(0, 100, 50):
        bench.send(messages[first : first + 50])
    refusals = 0
    for _ in range(60):
        bench.step()
        refusals += any(bench.pool.queues.values())
        bench.answer()
        bench.clock.now += 0.6
        if bench.acks.low_watermark == 100:
            break
    bench.router.commit()
    assert bench.discarded() == {37: Reason.INVALID_RECORD}
    assert sorted(set(bench.appended())) == [*range(37), *range(38, 100)]
    assert refusals < 25
    # A message that may go anywhere stays, once refused, where it was refused.
    assert len(bench.kafka.logs) <= 2


def test_many_bad_records(bench: Bench) -> None:
    """Every third is refused, by the broker or by the client: each discarded for its own reason."""
    for _ in range(5):
        bench.send([(b"a", 1, b""), (b"a", 1, POISON), (b"a", 1, HUGE)] * 4)
    bench.settle()
    bench.check_complete()
    reasons = {POISON: Reason.INVALID_RECORD, HUGE: Reason.TOO_LARGE}
    expected = {s: reasons[value] for s, (_, _, value) in bench.sent.items() if value}
    assert bench.discarded() == expected


def test_a_failure_while_catching_up(fine: Bench) -> None:
    """The partition is caught up again, from the message that failed."""
    fine.window = (4, 1 << 20)
    fine.restart()
    for _ in range(15):
        fine.send(keys(6))
    fine.kafka.down = {1}
    read_all(fine)
    fine.kafka.down = set()
    for turn in range(8):
        fine.answer(2)
        fine.step()
        fine.pool.fail(0, 1, Code.NOT_LEADER if turn % 2 else Code.INVALID_MSG)
        fine.clock.now += 0.3
        fine.step(2)
    fine.settle()
    assert fine.kafka.logs[b"a", 0] == list(range(90))


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


def test_offsets_cover_what_has_no_leader(bench: Bench) -> None:
    """Marks lost, offsets kept: nothing that is held for a partition without a leader is passed over."""
    bench.send(keys(3))
    bench.settle()
    bench.kafka.leaders[b"a"][0] = NO_ONE
    bench.metadata.pending = True
    bench.step()
    bench.send([(b"a", 0, b""), (b"a", 1, b""), (b"a", 2, b"")] * 5)
    read_all(bench)
    bench.answer()
    bench.step()
    bench.router.commit()
    assert bench.marks
    assert min(bench.marks.offsets().values()) == 3


def test_a_producer_that_is_finished_is_replaced(bench: Bench) -> None:
    """Its last reports are waited for; what has none is sent again by a new one, in order, and at once."""
    bench.send(keys(30))
    bench.step(3)
    bench.pool.answer(0, 4)
    bench.pool.client.finish()
    bench.step(3)
    assert bench.pool.client.fatal
    bench.pool.answer(0, 3)
    bench.clock.now += Pool.last_reports_s
    bench.step()
    assert bench.pool.client.fatal is None
    bench.settle()
    assert bench.acks.low_watermark == 30
    assert sorted(set(bench.kafka.logs[b"a", 0])) == list(range(30))
    bench.check_order()


def test_a_finished_producer_with_nothing_in_flight_is_replaced_at_once(bench: Bench) -> None:
    """There is nothing to wait for."""
    bench.pool.client.finish()
    bench.step()
    assert bench.pool.client.fatal is None
    bench.send(keys(10))
    bench.settle()
    assert bench.kafka.logs[b"a", 0] == list(range(10))


def test_at_the_end_of_the_log(bench: Bench) -> None:
    """A step says that nothing is left to do, and has what it sent go at once; the next one sends nothing."""
    bench.metadata.pending = True
    bench.step()
    bench.send([*keys(5), (b"b", None, b"")])
    assert not bench.step()
    assert bench.pool.client.hurries == 1
    assert not bench.router.at_rest
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
