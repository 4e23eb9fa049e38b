"""The book between transactions and marks: nothing is forgotten between the two, and nothing made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dispatch.transactions.progress import DeadLetterRuns, Deliverer, Progress, Runs, dead_letter_runs
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from router.outcomes.acks import Acks
from router.outcomes.progress_book import ProgressBook
from spool.format.wire import DEAD_LETTERED, Reason, encode
from spool.index.segment_list import SegmentList
from spool.marks.marks import Marks
from spool.marks.task_files import TransactionalTasks, write_transactional_tasks
from tests.spool.fixture import SpoolFixture

BY = Deliverer(bytes(16), "here", 1)
PLACE = ProgressPosition(2, 17)
COUNT = 100


class ProgressFixture:
    """A spool of 100 messages, its marks, and their book; `reopen` is what a new process finds."""

    def __init__(self, directory: Path) -> None:
        self.spool = SpoolFixture(directory)
        self.spool.append([encode(b"t", bytes(20))] * COUNT)
        self.spool.step()
        self.open()

    def open(self) -> None:
        self.marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        segment_list = SegmentList(self.spool.layout)
        self.acks = Acks(self.marks, segment_list)
        self.book = ProgressBook(self.acks, segment_list, self.spool.layout)

    def close(self) -> None:
        self.acks.close()
        self.marks.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def deliver(
        self,
        sequences: npt.NDArray[np.int64],
        number: int,
        offset: int,
        letters: Sequence[DeadLetterRuns] = (),
    ) -> Progress:
        """A transaction that is committed; its record."""
        record = self.book.progress(number, BY, sequences, letters)
        self.book.committed(sequences, letters, offset)
        self.acks.resolve(sequences)
        return record

    def write_down(self) -> None:
        self.acks.write_down({})
        self.acks.wait()

    def open_ones(self) -> list[int]:
        every = np.arange(COUNT + 10, dtype=np.int64)
        return every[self.acks.open(every)].tolist()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[ProgressFixture]:
    """It has begun, for the first time."""
    made = ProgressFixture(tmp_path / "spool")
    assert made.book.recover(Begun(None, PLACE)) == ""
    yield made
    made.close()
    made.spool.crash()


def told(progress: Progress) -> list[int]:
    """Every sequence that a record names."""
    return sorted(int(s) for block in progress.delivered for s in block.sequences())


def test_a_record_names_all_that_the_marks_may_not_have(fixture: ProgressFixture) -> None:
    """This transaction's, and those before it until marks with them are durable."""
    assert told(fixture.deliver(np.arange(10), 1, 20)) == list(range(10))
    assert told(fixture.deliver(np.arange(20, 25), 2, 22)) == [*range(10), *range(20, 25)]
    fixture.write_down()
    assert told(fixture.deliver(np.arange(30, 32), 3, 24)) == [30, 31]
    assert fixture.acks.generation == 1


def test_what_is_being_written_is_still_named(fixture: ProgressFixture) -> None:
    """Marks on their way to the disk are no marks yet."""
    fixture.deliver(np.arange(10), 1, 20)
    fixture.acks.write_down({})
    record = fixture.deliver(np.arange(10, 12), 2, 22)
    assert told(record) == list(range(12))
    assert record.generation == 0
    fixture.acks.wait()


def test_a_successor_takes_it_for_delivered(fixture: ProgressFixture) -> None:
    """Without any marks: the record alone says it, by the position that it is at."""
    record = fixture.deliver(np.array([3, 4, 50]), 1, 20)
    fixture.reopen()
    assert 3 in fixture.open_ones()
    assert fixture.book.recover(Begun(record, ProgressPosition(2, 20))) == ""
    assert not {3, 4, 50} & set(fixture.open_ones())
    assert {2, 5, 49, 51} <= set(fixture.open_ones())
    # The next record keeps naming them, until they are marked.
    assert told(fixture.book.progress(2, BY, np.array([60]), [])) == [3, 4, 50, 60]
    fixture.write_down()
    assert told(fixture.book.progress(2, BY, np.array([60]), [])) == [60]
    fixture.reopen()
    assert fixture.book.place == ProgressPosition(2, 20)


def test_dead_letters_are_discards_to_a_successor(fixture: ProgressFixture) -> None:
    """By reason and topic, each once, those in the log only; named until the marks have them."""
    posted = dead_letter_runs({3: (Reason.TOO_LARGE, b"t"), 50: (Reason.UNKNOWN_TOPIC, b"none")})
    ahead = dead_letter_runs({COUNT: (Reason.UNKNOWN_TOPIC, b"none")})
    record = fixture.deliver(np.array([3, 4, 50]), 1, 20, posted)
    again = fixture.book.progress(2, BY, np.array([60]), [])
    assert [s for one in again.letters for s in one.sequences()] == [3, 50]
    fixture.reopen()
    fixture.book.recover(Begun(record._replace(letters=[*posted, *ahead]), PLACE))
    fixture.book.recover(Begun(record, PLACE))
    assert not {3, 4, 50} & set(fixture.open_ones())
    fixture.write_down()
    rows = {(row.reason, row.topic): row.count for row in fixture.marks.discards()}
    assert rows == {
        (Reason.TOO_LARGE | DEAD_LETTERED, b"t"): 1,
        (Reason.UNKNOWN_TOPIC | DEAD_LETTERED, b"none"): 1,
    }
    assert fixture.book.progress(2, BY, np.array([60]), []).letters == []


def test_closed_lanes_are_delivered_and_forgotten_once_that_is_marked(fixture: ProgressFixture) -> None:
    """Their file stays until the marks have it; a damaged file's number is not believed."""
    write_transactional_tasks(fixture.spool.layout, TransactionalTasks(3, 8))
    assert fixture.book.tasks == TransactionalTasks(3, 8)
    records = [fixture.book.progress(1, BY, np.array([n, 70 + n]), []) for n in (3, 4)]
    fixture.reopen()
    assert fixture.book.recover(Begun(None, PLACE, records)) == ""
    assert not {3, 4, 73, 74} & set(fixture.open_ones())
    assert told(fixture.book.progress(2, BY, np.array([60]), [])) == [3, 4, 60, 73, 74]
    assert fixture.book.tasks == TransactionalTasks(3, 8)
    fixture.write_down()
    fixture.book.progress(2, BY, np.array([60]), [])
    assert fixture.book.tasks is None
    for damage in (b"", b"x" * 40):
        fixture.spool.layout.transactional_tasks.write_bytes(damage)
        assert fixture.book.tasks == TransactionalTasks(0, 0)
    # TransactionalTasks that delivered nothing leave nothing to be marked.
    fixture.book.recover(Begun(None, PLACE, []))
    fixture.book.progress(2, BY, np.array([60]), [])
    assert fixture.book.tasks is None


def test_marks_that_are_older_stop_it(fixture: ProgressFixture) -> None:
    """The deliveries between them and the record's base are unknown."""
    last = Progress(9, 4, BY, [])
    assert "generation 0, there 4" in fixture.book.recover(Begun(last, PLACE))


def test_another_segment_of_that_number_is_not_meant(fixture: ProgressFixture) -> None:
    """A copy that went its own way: its messages with these numbers are others."""
    record = fixture.deliver(np.arange(10), 1, 20)
    strangers = [block._replace(identity=block.identity ^ 1) for block in record.delivered]
    fixture.reopen()
    fixture.book.recover(Begun(record._replace(delivered=strangers), PLACE))
    assert fixture.open_ones()[:10] == list(range(10))


def test_a_record_that_is_ahead_of_the_log(fixture: ProgressFixture) -> None:
    """Numbers behind the end of the log go to messages that were never sent: those are delivered."""
    record = fixture.deliver(np.arange(90, 100), 1, 20)
    block = record.delivered[0]
    ahead = Runs(block.segment, block.identity, np.array([95]), np.array([COUNT]))
    fixture.reopen()
    fixture.book.recover(Begun(record._replace(delivered=[ahead]), PLACE))
    fixture.spool.append([encode(b"t", bytes(20))] * 10)
    fixture.spool.step()
    assert fixture.open_ones() == [*range(95), *range(COUNT, COUNT + 10)]


def test_a_broker_that_tells_no_offset(fixture: ProgressFixture) -> None:
    """The record before stays the place to read from, and the marks are written as ever."""
    fixture.deliver(np.arange(10), 1, -1001)
    fixture.write_down()
    fixture.reopen()
    assert fixture.acks.progress == PLACE
    assert fixture.open_ones() == list(range(10, COUNT + 10))
