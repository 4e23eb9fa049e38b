"""A task's book tells its next attempt what was delivered, and only as far as that asks."""

from __future__ import annotations

import numpy as np
import pytest

from dispatch.transactions.progress import (
    dead_letter_runs,
    decode,
    encode,
)
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from pipeline.delivery.task_book import MOST_RUNS, WHOLE, TaskBook
from pipeline.errors import JobFailed
from spool.format.wire import DEAD_LETTERED, Reason
from tests.pipeline.delivery.test_route_plan import BY, numbers

SEGMENTS = [(0, 1, 77), (100, 2, 88)]


def test_a_book_tells_the_next_attempt_what_no_file_has() -> None:
    """All transactions since the last outcome file are in each record; those in a file are not."""
    book = TaskBook(SEGMENTS)
    assert book.recover(Begun(None, ProgressPosition(0, 5))) == ""
    book.committed(numbers(1, 2, 100), (), 6)
    record = decode(encode(book.progress(2, BY, numbers(3, 101), ())))
    again = TaskBook(SEGMENTS)
    again.recover(Begun(record, ProgressPosition(0, 7)))
    assert again.delivered.tolist() == [1, 2, 3, 100, 101]
    book.committed(numbers(3, 101), (), 7)
    book.recorded()
    after = TaskBook(SEGMENTS)
    after.recover(Begun(decode(encode(book.progress(3, BY, numbers(4), ()))), ProgressPosition(0, 8)))
    assert after.delivered.tolist() == [4]
    # Messages that another attempt delivered are in our records until they are in a file of ours.
    assert decode(encode(again.progress(3, BY, numbers(), ()))).delivered[0].sequences().tolist() == [1, 2, 3]


def test_a_book_tells_dead_letters_from_messages() -> None:
    """The next attempt, and the one after it, know which of them the dead-letter topic has."""
    book = TaskBook(SEGMENTS)
    book.recover(Begun(None, ProgressPosition(0, 0)))
    letters = dead_letter_runs({2: (Reason.TOO_LARGE, b"t"), 101: (Reason.TOO_LARGE, b"t")})
    book.committed(numbers(1, 2, 3, 101), letters, 1)
    again = TaskBook(SEGMENTS)
    again.recover(Begun(decode(encode(book.progress(2, BY, numbers(), ()))), ProgressPosition(0, 2)))
    dead = Reason.TOO_LARGE | DEAD_LETTERED
    told = {outcome: found.tolist() for outcome, found in again.known(numbers(0, 1, 2, 3)).items()}
    assert told == {dead: [2], 0: [1, 3]}
    # The file has those that the task has read; the rest is known to no other file.
    again.recorded()
    after = TaskBook(SEGMENTS)
    after.recover(Begun(decode(encode(again.progress(3, BY, numbers(4), ()))), ProgressPosition(0, 3)))
    assert {outcome: found.tolist() for outcome, found in after.known(np.arange(200)).items()} == {
        dead: [101],
        0: [4],
    }


def test_a_record_of_another_log_counts_for_nothing() -> None:
    """A segment of the same number with another identity is that of a restored copy."""
    book = TaskBook(SEGMENTS)
    book.recover(Begun(None, ProgressPosition(0, 0)))
    record = book.progress(1, BY, numbers(1, 100), ())
    restored = TaskBook([(0, 1, 77), (100, 2, 89)])
    restored.recover(Begun(record, ProgressPosition(0, 1)))
    assert restored.delivered.tolist() == [1]


def test_a_task_of_an_older_lease_sends_nothing() -> None:
    """Its name was closed since, or a later job has used it; a task of the newest lease goes on.

    It knows all the same which messages were delivered.
    """
    book = TaskBook(SEGMENTS, 3)
    book.recover(Begun(None, ProgressPosition(0, 5)))
    record = decode(encode(book.progress(1, BY, numbers(1), ())))
    old, newer = TaskBook(SEGMENTS, 2), TaskBook(SEGMENTS, 4)
    assert "was taken back" in old.recover(Begun(record, ProgressPosition(0, 6)))
    assert (old.closed, old.delivered.tolist()) == (True, [1])
    assert newer.recover(Begun(record, ProgressPosition(0, 6))) == ""
    assert newer.delivered.tolist() == [1]


def test_a_book_forgets_what_nobody_asks_for() -> None:
    """A batch asks for nothing below its first message; what one record cannot tell ends the task."""
    book = TaskBook(WHOLE)
    book.recover(Begun(None, ProgressPosition(0, 0)))
    record = book.progress(1, BY, numbers(1, 2, 2**40), ())
    later = TaskBook(WHOLE, 2, since=2)
    later.recover(Begun(decode(encode(record)), ProgressPosition(0, 1)))
    assert later.delivered.tolist() == [2, 2**40]
    assert later.progress(2, BY, numbers(), ()).delivered[0].sequences().tolist() == [2, 2**40]
    with pytest.raises(JobFailed, match="use smaller batches"):
        later.progress(3, BY, np.arange(0, 2 * MOST_RUNS + 2, 2), ())
    assert len(encode(book.progress(2, BY, np.arange(0, 3 * MOST_RUNS - 9, 3) + 2**40, ()))) < 1_000_000
