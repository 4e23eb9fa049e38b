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
from tests.spool.rig import Rig

BY = Deliverer(bytes(16), "here", 1)
PLACE = ProgressPosition(2, 17)
COUNT = 100


class Desk:
    """A spool of 100 messages, its marks, and their book; `reopen` is what a new process finds."""

    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory)
        self.rig.append([encode(b"t", bytes(20))] * COUNT)
        self.rig.step()
        self.open()

    def open(self) -> None:
        self.marks = Marks(self.rig.layout.delivery, SegmentList(self.rig.layout))
        segment_list = SegmentList(self.rig.layout)
        self.acks = Acks(self.marks, segment_list)
        self.book = ProgressBook(self.acks, segment_list, self.rig.layout)

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
def desk(tmp_path: Path) -> Iterator[Desk]:
    """It has begun, for the first time."""
    made = Desk(tmp_path / "spool")
    assert made.book.recover(Begun(None, PLACE)) == ""
    yield made
    made.close()
    made.rig.crash()


def told(progress: Progress) -> list[int]:
    """Every sequence that a record names."""
    return sorted(int(s) for block in progress.delivered for s in block.sequences())


def test_a_record_names_all_that_the_marks_may_not_have(desk: Desk) -> None:
    """This transaction's, and those before it until marks with them are durable."""
    assert told(desk.deliver(np.arange(10), 1, 20)) == list(range(10))
    assert told(desk.deliver(np.arange(20, 25), 2, 22)) == [*range(10), *range(20, 25)]
    desk.write_down()
    assert told(desk.deliver(np.arange(30, 32), 3, 24)) == [30, 31]
    assert desk.acks.generation == 1


def test_what_is_being_written_is_still_named(desk: Desk) -> None:
    """Marks on their way to the disk are no marks yet."""
    desk.deliver(np.arange(10), 1, 20)
    desk.acks.write_down({})
    record = desk.deliver(np.arange(10, 12), 2, 22)
    assert told(record) == list(range(12))
    assert record.generation == 0
    desk.acks.wait()


def test_a_successor_takes_it_for_delivered(desk: Desk) -> None:
    """Without any marks: the record alone says it, by the position that it is at."""
    record = desk.deliver(np.array([3, 4, 50]), 1, 20)
    desk.reopen()
    assert 3 in desk.open_ones()
    assert desk.book.recover(Begun(record, ProgressPosition(2, 20))) == ""
    assert not {3, 4, 50} & set(desk.open_ones())
    assert {2, 5, 49, 51} <= set(desk.open_ones())
    # The next record keeps naming them, until they are marked.
    assert told(desk.book.progress(2, BY, np.array([60]), [])) == [3, 4, 50, 60]
    desk.write_down()
    assert told(desk.book.progress(2, BY, np.array([60]), [])) == [60]
    desk.reopen()
    assert desk.book.place == ProgressPosition(2, 20)


def test_dead_letters_are_discards_to_a_successor(desk: Desk) -> None:
    """By reason and topic, each once, those in the log only; named until the marks have them."""
    posted = dead_letter_runs({3: (Reason.TOO_LARGE, b"t"), 50: (Reason.UNKNOWN_TOPIC, b"none")})
    ahead = dead_letter_runs({COUNT: (Reason.UNKNOWN_TOPIC, b"none")})
    record = desk.deliver(np.array([3, 4, 50]), 1, 20, posted)
    again = desk.book.progress(2, BY, np.array([60]), [])
    assert [s for one in again.letters for s in one.sequences()] == [3, 50]
    desk.reopen()
    desk.book.recover(Begun(record._replace(letters=[*posted, *ahead]), PLACE))
    desk.book.recover(Begun(record, PLACE))
    assert not {3, 4, 50} & set(desk.open_ones())
    desk.write_down()
    rows = {(row.reason, row.topic): row.count for row in desk.marks.discards()}
    assert rows == {
        (Reason.TOO_LARGE | DEAD_LETTERED, b"t"): 1,
        (Reason.UNKNOWN_TOPIC | DEAD_LETTERED, b"none"): 1,
    }
    assert desk.book.progress(2, BY, np.array([60]), []).letters == []


def test_closed_lanes_are_delivered_and_forgotten_once_that_is_marked(desk: Desk) -> None:
    """Their file stays until the marks have it; a damaged file's number is not believed."""
    write_transactional_tasks(desk.rig.layout, TransactionalTasks(3, 8))
    assert desk.book.lanes == TransactionalTasks(3, 8)
    records = [desk.book.progress(1, BY, np.array([n, 70 + n]), []) for n in (3, 4)]
    desk.reopen()
    assert desk.book.recover(Begun(None, PLACE, records)) == ""
    assert not {3, 4, 73, 74} & set(desk.open_ones())
    assert told(desk.book.progress(2, BY, np.array([60]), [])) == [3, 4, 60, 73, 74]
    assert desk.book.lanes == TransactionalTasks(3, 8)
    desk.write_down()
    desk.book.progress(2, BY, np.array([60]), [])
    assert desk.book.lanes is None
    for damage in (b"", b"x" * 40):
        desk.rig.layout.lanes.write_bytes(damage)
        assert desk.book.lanes == TransactionalTasks(0, 0)
    # TransactionalTasks that delivered nothing leave nothing to be marked.
    desk.book.recover(Begun(None, PLACE, []))
    desk.book.progress(2, BY, np.array([60]), [])
    assert desk.book.lanes is None


def test_marks_that_are_older_stop_it(desk: Desk) -> None:
    """The deliveries between them and the record's base are unknown."""
    last = Progress(9, 4, BY, [])
    assert "generation 0, there 4" in desk.book.recover(Begun(last, PLACE))


def test_another_segment_of_that_number_is_not_meant(desk: Desk) -> None:
    """A copy that went its own way: its messages with these numbers are others."""
    record = desk.deliver(np.arange(10), 1, 20)
    strangers = [block._replace(identity=block.identity ^ 1) for block in record.delivered]
    desk.reopen()
    desk.book.recover(Begun(record._replace(delivered=strangers), PLACE))
    assert desk.open_ones()[:10] == list(range(10))


def test_a_record_that_is_ahead_of_the_log(desk: Desk) -> None:
    """Numbers behind the end of the log go to messages that were never sent: those are delivered."""
    record = desk.deliver(np.arange(90, 100), 1, 20)
    block = record.delivered[0]
    ahead = Runs(block.segment, block.identity, np.array([95]), np.array([COUNT]))
    desk.reopen()
    desk.book.recover(Begun(record._replace(delivered=[ahead]), PLACE))
    desk.rig.append([encode(b"t", bytes(20))] * 10)
    desk.rig.step()
    assert desk.open_ones() == [*range(95), *range(COUNT, COUNT + 10)]
