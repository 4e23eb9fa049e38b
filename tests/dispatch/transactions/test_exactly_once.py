"""Transactions over the embedded Kafka: which outcomes they report, and when.

Only real brokers can show that each message is there once (tests/real_kafka/test_exactly_once.py): this one
lets every consumer read aborted messages.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.transactions.exactly_once import Phase
from tests.dispatch.transactions.deliverer import ExactlyOnceFixture, Notebook


def test_nothing_is_told_before_the_commit(kafka: EmbeddedKafka) -> None:
    """While reports are in and the transaction is open, all counts as in flight."""
    fixture = ExactlyOnceFixture(kafka, Notebook())
    fixture.ready()
    fixture.send(10, 5)
    assert fixture.pool.phase is Phase.OPEN
    assert (fixture.told, fixture.pool.in_flight()) == ({}, 5)
    assert fixture.pool.lowest_in_flight().min() == 10
    fixture.until(lambda: len(fixture.told) == 5)
    assert set(fixture.told.values()) == {0}
    assert fixture.pool.in_flight() == 0
    assert fixture.book.committed_ones == [10, 11, 12, 13, 14]
    fixture.close()


@pytest.mark.parametrize("catching_up", [False, True])
def test_a_transaction_that_ends_takes_no_message(kafka: EmbeddedKafka, catching_up: bool) -> None:  # noqa: FBT001
    """Its record is in it already, and does not name what comes behind: that is held for the next one."""
    fixture = ExactlyOnceFixture(kafka, Notebook(), **{"linger.ms": "100"})
    fixture.ready()
    fixture.send(0, 3)
    fixture.pool._end(Phase.ENDING)
    handed = fixture.send(3, 2, catching_up=catching_up)
    assert (handed.sent, handed.held, fixture.pool.in_flight()) == (0, 2, 3)
    held, flat = fixture.pool.partitions.rows["held_from"], int(fixture.pool.partitions.flats[0, 0])
    assert held[flat] == 3
    # As a catch-up that has come to a later message: what it sent before stays sent.
    fixture.pool.partitions.hold_at(np.array([flat]), 4)
    fixture.send(3, 2, catching_up=True)
    assert held[flat] == 4
    fixture.until(lambda: len(fixture.told) == 3)
    assert fixture.book.committed_ones == [0, 1, 2]
    fixture.close()


def test_a_producer_that_broke_is_told_how_it_ended(kafka: EmbeddedKafka) -> None:
    """Finished with a transaction open: the next producer finds no record of it, and all goes again."""
    fixture = ExactlyOnceFixture(kafka, Notebook(), **{"linger.ms": "100"})
    fixture.ready()
    fixture.send(0, 4)
    fixture.pool._break("made up")
    assert fixture.pool.closed
    fixture.pool.rebuild()
    fixture.until(lambda: fixture.pool.phase is Phase.READY)
    assert fixture.told == dict.fromkeys(range(4), int(Code.PURGE_INFLIGHT))
    fixture.ready()
    fixture.send(0, 4)
    fixture.until(lambda: set(fixture.told.values()) == {0})
    fixture.close()


def of_a_task(kafka: EmbeddedKafka, **seconds: float) -> ExactlyOnceFixture:
    """One attempt at a task of epoch 5, which has begun."""
    book = Notebook()
    book.epoch = book.generation = 5
    fixture = ExactlyOnceFixture(kafka, book, **seconds)
    fixture.ready()
    return fixture


def overtake(first: ExactlyOnceFixture) -> ExactlyOnceFixture:
    """Another attempt, which has taken over what the first one had in flight."""
    first.send(0, 2)
    second = of_a_task(first.kafka)
    # The embedded Kafka fences no producer.
    first.pool._break("made up")
    first.pool.rebuild()
    first.until(lambda: first.pool.phase is Phase.FOLLOWING)
    return second


def test_who_is_overtaken_follows_until_the_task_is_closed(kafka: EmbeddedKafka) -> None:
    """Its messages in flight are open again; it sends nothing, and reads the last record of the other."""
    first = of_a_task(kafka)
    second = overtake(first)
    assert set(first.told.values()) == {int(Code.PURGE_INFLIGHT)}
    assert first.pool.closed
    second.send(0, 2)
    second.until(lambda: len(second.told) == 2)
    first.book.objection = second.book.objection = "it is over"
    second.book.generation = 6
    second.pool.claim()
    first.until(lambda: first.pool.phase is Phase.FENCED)
    last = first.book.begun[-1].last
    assert last
    assert (last.generation, last.by.instance) == (6, second.pool._by.instance)
    assert first.pool.trouble == "it is over"
    first.close()
    second.close()


def test_who_follows_the_dead_stops(kafka: EmbeddedKafka) -> None:
    """The other has said nothing for too long: the task must be tried again."""
    first = of_a_task(kafka, still_s=0.1)
    second = overtake(first)
    first.until(lambda: first.pool.phase is Phase.FENCED)
    assert "said nothing" in first.pool.trouble
    first.close()
    second.close()


def test_a_task_with_nothing_to_send_says_that_it_lives(kafka: EmbeddedKafka) -> None:
    """By transactions of nothing but their record, above those of all epochs before; a daemon makes none."""
    fixture = of_a_task(kafka, keep_s=0.0)
    fixture.until(lambda: (fixture.pool._number or 0) > (5 << 32) + 2)
    fixture.close()
    daemon = ExactlyOnceFixture(kafka, Notebook(), keep_s=0.0)
    daemon.ready()
    daemon.look()
    assert daemon.pool.phase is Phase.READY
    daemon.close()


def test_an_objection_of_the_book_stops_it(kafka: EmbeddedKafka) -> None:
    """Nothing is handed over, and the status shows the reason."""
    book = Notebook()
    book.objection = "the marks are older"
    fixture = ExactlyOnceFixture(kafka, book)
    fixture.until(lambda: fixture.pool.phase is Phase.FENCED)
    assert fixture.pool.trouble == "the marks are older"
    fixture.close()


def test_without_brokers_it_keeps_trying(kafka: EmbeddedKafka) -> None:
    """Why is said in words; when they are back it begins."""
    kafka.down()
    fixture = ExactlyOnceFixture(kafka, Notebook(), **{"socket.timeout.ms": "1000"})
    end = time.monotonic() + 60
    while not fixture.pool.trouble:
        fixture.look()
        assert time.monotonic() < end
        time.sleep(0.01)
    assert fixture.pool.phase is Phase.BEGINNING
    kafka.up()
    fixture.until(lambda: fixture.pool.phase is Phase.READY)
    assert fixture.pool.trouble == ""
    fixture.close()
