"""The books balance: received = delivered + discarded + backlog, whenever somebody looks."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from spool import account
from spool.account import Account, take_account
from spool.catalogue import Catalogue
from spool.changes import Changes, Discard
from spool.kernel import address_of
from spool.ledger import Ledger
from spool.ledger import add as add_to_ledger
from spool.marks import CHUNK_BYTES, Marks
from spool.page import Field
from spool.scan import digest_address
from spool.wire import Reason
from tests.spool.rig import Rig
from tests.spool.test_marks import bitmap

SHORT, FULL, LARGE, UNKNOWN = (
    int(r) for r in (Reason.SHORT, Reason.SPOOL_FULL, Reason.TOO_LARGE, Reason.UNKNOWN_TOPIC)
)


def nothing_staged() -> list[tuple[int, int]]:
    """There is no staging file."""
    return []


def look(rig: Rig, *staged: tuple[int, int]) -> Account:
    """The books, which must balance; `staged`: (burst, datagrams)."""
    books = take_account(rig.layout, lambda: list(staged))
    assert books.received == books.delivered + sum(books.by_reason().values()) + books.backlog
    assert min(books.delivered, books.backlog, books.received) >= 0
    return books


def mark(rig: Rig, changes: Changes) -> None:
    """Commit marks, as a deliverer that then dies."""
    marks = Marks(rig.layout.delivery, Catalogue(rig.layout))
    marks.commit(changes)
    marks.close()


def fill_ledger(rig: Rig, burst: int, count: int) -> None:
    """The ledger takes a burst, since the spool is full."""
    ledger = Ledger(rig.layout.ledger)
    bank, name = ledger.begin(), np.frombuffer(b"t", np.uint8)
    for _ in range(count):
        add_to_ledger(bank, address_of(name), 1, FULL, 7, digest_address())
    ledger.commit(burst)


def burst_of(rig: Rig) -> int:
    """The number of the last burst in the log."""
    return int(rig.writer.tail[2])


def test_an_empty_spool_balances(rig: Rig) -> None:
    """With nothing in it."""
    books = look(rig)
    assert (books.received, books.delivered, books.backlog, books.floor) == (0, 0, 0, 0)
    assert books.by_reason() == {}


def test_everything_has_its_column(rig: Rig) -> None:
    """Stored, refused, in the ledger, staged, delivered, discarded after acceptance."""
    rig.fill(20)
    rig.append([], refused={SHORT: (4, b"x")})
    rig.step()
    fill_ledger(rig, burst_of(rig) + 1, 5)
    discarded = [Discard(np.array([12]), LARGE, b"t", 1), Discard(np.array([3]), UNKNOWN, b"u", 2)]
    mark(rig, Changes(10, {(1, 0): bitmap(12, 13, 14)}, None, discarded))
    books = look(rig, (burst_of(rig) + 2, 7))
    assert books.received == 60 + 4 + 5 + 7
    assert books.delivered == 13 - 2
    assert books.by_reason() == {SHORT: 4, FULL: 5, UNKNOWN: 1, LARGE: 1}
    assert books.backlog == 60 + 7 - 13
    assert books.floor == 10


def test_a_staged_burst_counts_until_it_is_stored(rig: Rig) -> None:
    """Before it is appended it is staged, after that it is stored, and never both."""
    rig.fill(4)
    number = burst_of(rig)
    assert look(rig, (number + 1, 3)).received == 15
    assert look(rig, (number, 3)).received == 12
    fill_ledger(rig, number + 1, 3)
    assert look(rig, (number + 1, 3)).received == 15
    assert look(rig, (number + 2, 2)).received == 17
    assert look(rig, (number + 1, 3), (number + 2, 2), (number + 3, 4)).received == 15 + 6


def test_without_marks_the_names_tell(rig: Rig) -> None:
    """What lies in segments called sent is delivered, and nothing else."""
    rig.fill(60)
    rig.step()
    catalogue = Catalogue(rig.layout)
    rig.page.words[Field.FLOOR] = catalogue.segments[2].first_sequence
    rig.step()
    books = look(rig)
    assert books.delivered == books.floor == catalogue.segments[2].first_sequence


def test_marks_that_cannot_be_read_are_no_error(rig: Rig) -> None:
    """The books are taken without them, and nothing is changed."""
    rig.fill(5)
    rig.step()
    mark(rig, Changes(floor=9))
    assert look(rig).delivered == 9
    path = rig.layout.delivery / "data.mdb"
    path.write_bytes(b"\xff" * 8192 + path.read_bytes()[8192:])
    before = path.read_bytes()
    assert look(rig).delivered == 0
    assert path.read_bytes() == before


def test_files_that_move_are_looked_at_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that gets its name between the listing and the look; for ever is an error."""
    rig.fill(5)
    real, failures = account.live_segment, [1, 2, 3]

    def live_segment(layout: object) -> object:
        if failures:
            failures.pop()
            raise FileNotFoundError
        return real(layout)  # type: ignore[arg-type]

    monkeypatch.setattr(account, "live_segment", live_segment)
    assert look(rig).received == 15
    failures += range(5)
    with pytest.raises(FileNotFoundError):
        take_account(rig.layout, nothing_staged)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@example(seed=283, steps=5)  # everything delivered, then a boot that ended badly
@example(seed=283, steps=7)  # and then new messages, in a segment without a name
@example(seed=138215, steps=7)  # everything delivered up to the number behind an empty segment
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 25))
def test_the_books_always_balance(tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int) -> None:
    """Against counts of our own, while messages come, are delivered, discarded, and boots end badly."""
    chance = random.Random(seed)
    rig = Rig(tmp_path_factory.mktemp("books"))
    stored = refused = done = lost = 0
    try:
        for _ in range(steps):
            match chance.randrange(5):
                case 0 | 1:
                    count = chance.randint(1, 15)
                    rig.fill(count)
                    stored += 3 * count
                case 2:
                    count = chance.randint(1, 9)
                    rig.append([], refused={SHORT: (count, b"x")})
                    refused += count
                case 3:
                    rig.step()
                    records = [sequence for sequence, _ in rig.records()]
                    gone = chance.randint(done, len(records))
                    chosen = np.array([s for s in records[done:gone] if chance.random() < 0.2], np.int64)
                    discarded = [Discard(chosen, LARGE, b"t", 1)] if len(chosen) else []
                    floor = records[gone] if gone < len(records) else rig.synced
                    if stored:
                        mark(rig, Changes(floor=floor, discarded=discarded))
                        done, lost = gone, lost + len(chosen)
                case 4:
                    rig.step()
                    rig.boot += chance.randint(0, 1)
                    rig.reopen()
            books = look(rig)
            assert (books.received, books.backlog) == (stored + refused, stored - done)
            assert books.delivered == done - lost
    finally:
        rig.crash()


def test_marks_ahead_of_the_log_are_not_counted(rig: Rig) -> None:
    """A disk has lost the end of a segment that was delivered: what follows is backlog all the same."""
    sent = rig.fill(60)
    rig.step()
    marks = Marks(rig.layout.delivery, Catalogue(rig.layout))
    marks.commit(Changes(0, {(1, 0): np.full(CHUNK_BYTES, 255, np.uint8)}))
    marks.close()
    first, second = (rig.layout.list_segments()[n][0] for n in (0, 1))
    account = take_account(rig.layout, list)
    assert account.resolved == second - first
    assert account.backlog == len(sent) - (second - first)
