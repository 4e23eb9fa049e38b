"""Transactions over the embedded Kafka: which outcomes they report, and when.

Only real brokers can show that each message is there once (tests/real_kafka/test_exactly_once.py): this one
lets every consumer read aborted messages.

These are the tests of `dispatch.transactions.progress_topic`, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dispatch.client import KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.options import DispatchOptions
from dispatch.records import DeadLetter
from dispatch.transactions import exactly_once, runner
from dispatch.transactions.exactly_once import ExactlyOnce, Phase
from dispatch.transactions.progress import (
    DeadLetterRuns,
    Deliverer,
    Progress,
    Runs,
    runs_of,
    transactional_id,
)
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from spool.format.wire import Reason
from spool.marks.task_files import TransactionalTasks
from spool.native.digest import TOPIC_BYTES
from tests.dispatch.batches import Message, build_batch, name_topics
from tests.dispatch.fixture import UUID, await_true

TOPIC = b"t"


class Notebook:
    """A book that keeps everything."""

    def __init__(self) -> None:
        self.place: ProgressPosition | None = None
        self.begun: list[Begun] = []
        self.tasks: TransactionalTasks | None = None
        self.epoch: int | None = None
        self.generation = 0
        self.committed_ones: list[int] = []
        self.committed_letters: list[int] = []
        self.objection = ""

    def recover(self, begun: Begun) -> str:
        self.begun.append(begun)
        self.place = begun.place
        return self.objection

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns]
    ) -> Progress:
        delivered = [Runs(1, 2, *runs_of(sequences))] if len(sequences) else []
        return Progress(number, self.generation, by, delivered, letters)

    def committed(
        self, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns], offset: int
    ) -> None:
        self.committed_ones += sequences.tolist()
        self.committed_letters += [s for one in letters for s in one.sequences().tolist()]
        assert self.place
        self.place = self.place._replace(offset=offset)


class ExactlyOnceFixture:
    """One process's pool, and the outcomes it has reported."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        book: Notebook,
        *,
        keep_s: float = exactly_once.KEEP_S,
        still_s: float = runner.STILL_S,
        **properties: str,
    ) -> None:
        self.kafka, self.topics, self.book = kafka, name_topics(TOPIC), book
        options = DispatchOptions(
            kafka={"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": "5", **properties},
            mode="exactly_once",
        )
        wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.client = KafkaClient(options, wake, transactional_id=transactional_id(UUID))
        self.pool = ExactlyOnce(
            self.client,
            self.topics,
            options,
            book,
            spool_uuid=UUID,
            wake=lambda: os.eventfd_write(wake, 1),
            keep_s=keep_s,
            still_s=still_s,
        )
        self.told: dict[int, int] = {}

    def look(self) -> None:
        """Collect; no message may succeed twice."""
        outcomes = self.pool.collect()
        for sequence, code in zip(outcomes.sequence.tolist(), outcomes.code.tolist(), strict=True):
            assert self.told.get(sequence) != 0
            self.told[sequence] = code

    def until(self, condition: Callable[[], bool]) -> None:
        """Collect until it is so."""

        def asked() -> bool:
            self.look()
            return condition()

        await_true(asked, 60)

    def ready(self) -> None:
        """Begun, claimed, and the leaders known."""
        self.until(lambda: self.pool.phase is Phase.READY)
        await_true(lambda: TOPIC in self.client.fetch_cluster([TOPIC], 5).topics, 20)
        self.pool.set_cluster(self.client.fetch_cluster([TOPIC], 5))

    def send(self, first: int, count: int, value: bytes = b"v") -> None:
        """Messages from `first` on, to partition 0."""
        messages = [Message(topic=0, sequence=s, value=value) for s in range(first, first + count)]
        flat = np.full(count, self.pool.partitions.flats[0, 0], np.int32)
        self.pool.send(build_batch(self.topics, messages), flat)

    def close(self) -> None:
        if self.pool.close():
            self.client.close()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One topic, and that of the records: an embedded Kafka makes none on demand."""
    with EmbeddedKafka(brokers=1, topics=[(TOPIC.decode(), 2), ("bruce-progress", 4)]) as running:
        yield running


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


def test_a_successor_finds_the_last_record(kafka: EmbeddedKafka) -> None:
    """A successor reads its number and its sequences, wherever in the topic the record is."""
    for place in ("known", "lost"):
        book = Notebook()
        fixture = ExactlyOnceFixture(kafka, book)
        fixture.ready()
        fixture.send(20, 3)
        fixture.until(lambda d=fixture: len(d.told) == 3)
        fixture.close()
        again = Notebook()
        again.place = book.place if place == "known" else None
        successor = ExactlyOnceFixture(kafka, again)
        successor.until(lambda b=again: bool(b.begun))
        last = again.begun[0].last
        assert last
        assert [block.sequences().tolist() for block in last.delivered] == [[20, 21, 22]]
        assert last.by.instance == fixture.pool._by.instance
        successor.close()


def test_dead_letters_are_named_in_the_record(kafka: EmbeddedKafka) -> None:
    """With reason and topic, and only in that of their own transaction; a long topic is cut short."""
    fixture = ExactlyOnceFixture(kafka, Notebook())
    fixture.ready()
    fixture.send(20, 3)
    for sequence, topic in ((23, b"other"), (24, b"x" * 1000)):
        letter = DeadLetter(sequence, 1, None, b"v", [], Reason.UNKNOWN_TOPIC, topic)
        assert fixture.pool.post([letter], fixture.pool.partitions.flats[0, :1]).tolist() == [0]
    fixture.until(lambda: len(fixture.told) == 5)
    again = Notebook()
    successor = ExactlyOnceFixture(kafka, again)
    successor.until(lambda: bool(again.begun))
    last = again.begun[0].last
    assert last
    assert [block.sequences().tolist() for block in last.delivered] == [[20, 21, 22, 23, 24]]
    found = [(one.reason, one.topic, one.sequences().tolist()) for one in last.letters]
    assert found == [(14, b"other", [23]), (14, b"x" * TOPIC_BYTES, [24])]
    successor.close()
    assert fixture.book.committed_letters == [23, 24]
    fixture.close()
    third = ExactlyOnceFixture(kafka, Notebook())
    third.ready()
    for first in (30, 40):
        third.send(first, 1)
        third.until(lambda first=first: first in third.told)  # type: ignore[misc]
    assert third.book.committed_letters == []
    third.close()


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


def test_a_commit_without_an_answer_counts(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose answer was lost counts: the record says so, and nothing goes again."""
    commit = runner.TransactionRunner._commit

    def unheard(self: runner.TransactionRunner, *, bare: bool) -> runner.Result:
        assert isinstance(commit(self, bare=bare), runner.Committed)
        return runner.Broken("no answer")

    fixture = ExactlyOnceFixture(kafka, Notebook())
    fixture.ready()
    monkeypatch.setattr(runner.TransactionRunner, "_commit", unheard)
    fixture.send(0, 4)
    fixture.until(lambda: fixture.pool.phase is Phase.BROKEN)
    monkeypatch.undo()
    assert fixture.told == {}
    fixture.pool.rebuild()
    fixture.until(lambda: len(fixture.told) == 4)
    assert set(fixture.told.values()) == {0}
    fixture.close()


def test_another_that_has_come_since_is_let_be(kafka: EmbeddedKafka) -> None:
    """The other's record is newer than this one knows: nothing more is sent, and the error names it."""
    first = ExactlyOnceFixture(kafka, Notebook())
    first.ready()
    second = ExactlyOnceFixture(kafka, Notebook())
    second.ready()
    first.pool._break("made up")
    first.pool.rebuild()
    first.until(lambda: first.pool.phase is Phase.FENCED)
    assert first.pool.closed
    assert "another bruce with this spool's identity delivers: on" in first.pool.trouble
    second.send(0, 2)
    second.until(lambda: len(second.told) == 2)
    first.close()
    second.close()


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
