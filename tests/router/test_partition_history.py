"""A topic that gets other partitions keeps old messages where they were, and the log says from where on."""

from __future__ import annotations

import pytest

from router.outcomes.acks import Acks
from router.timing import SHRINK_S
from spool.format.wire import Reason
from tests.router.bench import Bench
from tests.router.fake import POISON
from tests.router.test_catch_up import read_all


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
    """Once that is believed, messages for those that are gone go to those that are there; the log says so."""
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
    assert "topic a was created again with 1 partition instead of 3" in caplog.text


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
