"""The records of a transactional.id: the last one is found wherever it is, and whoever wrote it."""

from __future__ import annotations

import re
import time
from datetime import datetime

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.records import Letters
from dispatch.transactions import runner
from dispatch.transactions.exactly_once import Phase
from spool.format.batch import Topics
from spool.format.wire import Reason
from spool.native.digest import TOPIC_BYTES
from tests.dispatch.batches import Message, build_datagrams
from tests.dispatch.transactions.deliverer import ExactlyOnceFixture, Notebook


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
        batch = build_datagrams(Topics(), [topic], [Message(sequence, -1, b"v")])
        when = np.ones(1, np.int64)
        letter = Letters(batch, 0 * when, np.array([Reason.UNKNOWN_TOPIC], np.int32), when, when)
        assert fixture.pool.post(letter, fixture.pool.partitions.flats[0, :1]).tolist() == [0]
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
    """The other's record is newer than this one knows: nothing more is sent, and the error names it.

    Since when it delivers is in UTC.
    """
    first = ExactlyOnceFixture(kafka, Notebook())
    first.ready()
    second = ExactlyOnceFixture(kafka, Notebook())
    second.ready()
    first.pool._break("made up")
    first.pool.rebuild()
    first.until(lambda: first.pool.phase is Phase.FENCED)
    assert first.pool.closed
    told = r"another bruce with this spool's identity delivers: on \S+, since (\S+);"
    since = re.search(told, first.pool.trouble)
    assert since, first.pool.trouble
    assert abs(datetime.fromisoformat(since[1]).timestamp() - time.time()) < 600
    assert since[1].endswith("Z")
    second.send(0, 2)
    second.until(lambda: len(second.told) == 2)
    first.close()
    second.close()
