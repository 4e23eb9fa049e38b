"""Counting frames over time."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from spool.format.scan import digest_address
from spool.format.segment import list_files
from spool.format.wire import Reason, encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from spool.native.memory import address_of
from spool.read import overview
from spool.read.files import Span, read_frames
from spool.read.overview import SpoolTotals, TooManyIntervals, take_totals, timeline
from spool.shared.ledger import Ledger
from spool.shared.ledger import add as add_to_ledger
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture
from tests.spool.marks.test_marks import bitmap

SECOND = 10**9
START = 1_800_000_000 * SECOND


def quiet(sentence: str) -> None:
    """The callback of damage: there must be none."""
    raise AssertionError(sentence)


def fill(spool: SpoolFixture, seconds: list[int]) -> None:
    """A frame at each of these seconds, with as many messages as its place in the list, from 1 on."""
    for count, second in enumerate(seconds, 1):
        burst, received_ns = [encode(b"t", b"v")] * count, START + second * SECOND
        spool.writer.append(burst, refused={1: (2, b"short")}, received_ns=received_ns)
        spool.step()


def test_every_second(spool: SpoolFixture) -> None:
    """The messages of each second, empty ones included; the clock may have been set back."""
    fill(spool, [3, 3, 7, 5])
    found = timeline(list_files(spool.layout), Span(), 40, quiet)
    assert found.step_s == 1
    assert ((found.start_ns - START) // SECOND).tolist() == [3, 4, 5, 6, 7]
    assert found.messages.tolist() == [3, 0, 4, 0, 3]
    assert found.discarded.tolist() == [4, 0, 2, 0, 2]
    bodies = [one[1]["body_bytes"] for path in list_files(spool.layout) for one in read_frames(path)]  # type: ignore[union-attr,index]
    assert found.bytes.sum() == np.concatenate(bodies).sum()


def test_steps(spool: SpoolFixture) -> None:
    """The shortest step within the limit, or the requested one; at multiples of it."""
    fill(spool, [0, 61, 119, 600])
    found = timeline(list_files(spool.layout), Span(), 11, quiet)
    assert found.step_s == 60
    assert found.messages.tolist() == [1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 4]
    assert timeline(list_files(spool.layout), Span(), 3, quiet, 300).messages.tolist() == [6, 0, 4]


def test_a_step_that_is_too_fine(spool: SpoolFixture) -> None:
    """A clock that jumped by ten years gets weeks; seconds are refused, and the error gives their number."""
    years = 10 * 365 * 86400
    fill(spool, [0, years])
    files = list_files(spool.layout)
    with pytest.raises(TooManyIntervals) as raised:
        timeline(files, Span(), 100_000, quiet, 1)
    assert raised.value.count == years + 1
    assert timeline(files, Span(), 100_000, quiet).messages.sum() == 3


def test_a_part(spool: SpoolFixture) -> None:
    """By time and by sequence; an empty part is no error."""
    fill(spool, [0, 1, 2, 3])
    files = list_files(spool.layout)
    by_time = Span(from_ns=START + SECOND, to_ns=START + 3 * SECOND)
    assert timeline(files, by_time, 40, quiet).messages.tolist() == [2, 3]
    assert timeline(files, Span(first=1, end=3), 40, quiet).messages.tolist() == [2]
    assert not len(timeline(files, Span(from_ns=START + 9 * SECOND), 40, quiet).start_ns)


def test_segments_outside_of_the_range_are_not_read(spool: SpoolFixture) -> None:
    """By their footers; damage in them is not told, either, until they are asked for."""
    for second in [0] * 30 + [36_000] * 30:
        spool.append([encode(b"t", b"v")] * 20, received_ns=START + second * SECOND)
    spool.stop()
    files, told = list_files(spool.layout), list[str]()
    with files[0].open("r+b") as file:
        file.seek(5000)
        file.write(b"damaged" * 20)
    late = Span(from_ns=START + 18_000 * SECOND)
    assert timeline(files, late, 40, told.append).messages.sum() == 600
    assert not told
    assert timeline(files, Span(first=600), 40, told.append).messages.sum() == 600
    assert not told
    assert timeline(files, Span(), 40, told.append).messages.sum() < 1200
    assert told


def test_damage_is_told(spool: SpoolFixture, tmp_path: Path) -> None:
    """Unreadable frames are named, and all else is counted."""
    fill(spool, [0, 1, 2])
    (path,) = list_files(spool.layout)
    (offsets, _), *_ = [one for one in read_frames(path) if isinstance(one, tuple)]
    with path.open("r+b") as file:
        file.seek(int(offsets[1]) + 70)
        file.write(b"rot")
    letter, told = tmp_path / "letter", list[str]()
    letter.write_text("dear reader")
    found = timeline([letter, path], Span(), 40, told.append)
    assert found.messages.tolist() == [1, 0, 3]
    assert told[0].startswith(f"{letter} is no segment")
    assert told[1] == f"{path}: 2 messages cannot be read at byte {offsets[1]}"


SHORT, FULL, LARGE, UNKNOWN = (
    int(r) for r in (Reason.SHORT, Reason.SPOOL_FULL, Reason.TOO_LARGE, Reason.UNKNOWN_TOPIC)
)


def nothing_staged() -> list[tuple[int, int]]:
    """There is no staging file."""
    return []


def look(spool: SpoolFixture, *staged: tuple[int, int]) -> SpoolTotals:
    """The totals, which must balance; `staged`: (burst, datagrams)."""
    totals = take_totals(spool.layout, lambda: list(staged))
    assert totals.received == totals.delivered + sum(totals.by_reason().values()) + totals.backlog
    assert min(totals.delivered, totals.backlog, totals.received) >= 0
    return totals


def mark(spool: SpoolFixture, changes: Changes) -> None:
    """Commit marks like a deliverer that then dies."""
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(changes)
    marks.close()


def fill_ledger(spool: SpoolFixture, burst: int, count: int) -> None:
    """The ledger takes a burst, since the spool is full."""
    ledger = Ledger(spool.layout.ledger)
    slot, name = ledger.begin(), np.frombuffer(b"t", np.uint8)
    for _ in range(count):
        add_to_ledger(slot, address_of(name), 1, FULL, 7, digest_address())
    ledger.commit(burst)


def burst_of(spool: SpoolFixture) -> int:
    """The number of the last burst in the log."""
    return int(spool.writer.tail[2])


def test_an_empty_spool_balances(spool: SpoolFixture) -> None:
    """All totals are zero."""
    totals = look(spool)
    assert (totals.received, totals.delivered, totals.backlog, totals.low_watermark) == (0, 0, 0, 0)
    assert totals.by_reason() == {}


def test_everything_has_its_column(spool: SpoolFixture) -> None:
    """Stored, refused, in the ledger, staged, delivered, discarded after acceptance."""
    spool.fill(20)
    spool.append([], refused={SHORT: (4, b"x")})
    spool.step()
    fill_ledger(spool, burst_of(spool) + 1, 5)
    discarded = [Discard(np.array([12]), LARGE, b"t", 1), Discard(np.array([3]), UNKNOWN, b"u", 2)]
    mark(spool, Changes(10, {(1, 0): bitmap(12, 13, 14)}, None, discarded))
    totals = look(spool, (burst_of(spool) + 2, 7))
    assert totals.received == 60 + 4 + 5 + 7
    assert totals.delivered == 13 - 2
    assert totals.by_reason() == {SHORT: 4, FULL: 5, UNKNOWN: 1, LARGE: 1}
    assert totals.backlog == 60 + 7 - 13
    assert totals.low_watermark == 10


def test_a_staged_burst_counts_until_it_is_stored(spool: SpoolFixture) -> None:
    """Before it is appended it is staged, after that it is stored, and never both."""
    spool.fill(4)
    number = burst_of(spool)
    assert look(spool, (number + 1, 3)).received == 15
    assert look(spool, (number, 3)).received == 12
    fill_ledger(spool, number + 1, 3)
    assert look(spool, (number + 1, 3)).received == 15
    assert look(spool, (number + 2, 2)).received == 17
    assert look(spool, (number + 1, 3), (number + 2, 2), (number + 3, 4)).received == 15 + 6


def test_without_marks_the_names_tell(spool: SpoolFixture) -> None:
    """Messages in segments called sent are delivered, and no others."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    spool.shared.words[Field.LOW_WATERMARK] = segment_list.segments[2].first_sequence
    spool.step()
    totals = look(spool)
    assert totals.delivered == totals.low_watermark == segment_list.segments[2].first_sequence


def test_marks_that_cannot_be_read_are_no_error(spool: SpoolFixture) -> None:
    """The totals are taken without them, and nothing is changed."""
    spool.fill(5)
    spool.step()
    mark(spool, Changes(low_watermark=9))
    assert look(spool).delivered == 9
    path = spool.layout.delivery / "data.mdb"
    path.write_bytes(b"\xff" * 8192 + path.read_bytes()[8192:])
    before = path.read_bytes()
    assert look(spool).delivered == 0
    assert path.read_bytes() == before


def test_files_that_move_are_looked_at_again(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is renamed between the listing and the look; endless renaming is an error."""
    spool.fill(5)
    real, failures = overview.live_segment, [1, 2, 3]

    def live_segment(layout: object) -> object:
        if failures:
            failures.pop()
            raise FileNotFoundError
        return real(layout)  # type: ignore[arg-type]

    monkeypatch.setattr(overview, "live_segment", live_segment)
    assert look(spool).received == 15
    failures += range(5)
    with pytest.raises(FileNotFoundError):
        take_totals(spool.layout, nothing_staged)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@example(seed=283, steps=5)  # everything delivered, then a boot that ended badly
@example(seed=283, steps=7)  # and then new messages, in a segment without a name
@example(seed=138215, steps=7)  # everything delivered up to the number behind an empty segment
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 25))
def test_the_books_always_balance(tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int) -> None:
    """Compared with independent counts, over intake, delivery, discards, and unclean boots."""
    chance = random.Random(seed)
    spool = SpoolFixture(tmp_path_factory.mktemp("totals"))
    stored = refused = done = lost = 0
    try:
        for _ in range(steps):
            match chance.randrange(5):
                case 0 | 1:
                    count = chance.randint(1, 15)
                    spool.fill(count)
                    stored += 3 * count
                case 2:
                    count = chance.randint(1, 9)
                    spool.append([], refused={SHORT: (count, b"x")})
                    refused += count
                case 3:
                    spool.step()
                    records = [sequence for sequence, _ in spool.records()]
                    gone = chance.randint(done, len(records))
                    chosen = np.array([s for s in records[done:gone] if chance.random() < 0.2], np.int64)
                    discarded = [Discard(chosen, LARGE, b"t", 1)] if len(chosen) else []
                    low_watermark = records[gone] if gone < len(records) else spool.synced
                    if stored:
                        mark(spool, Changes(low_watermark=low_watermark, discarded=discarded))
                        done, lost = gone, lost + len(chosen)
                case 4:
                    spool.step()
                    spool.boot += chance.randint(0, 1)
                    spool.reopen()
            totals = look(spool)
            assert (totals.received, totals.backlog) == (stored + refused, stored - done)
            assert totals.delivered == done - lost
    finally:
        spool.crash()


def test_marks_ahead_of_the_log_are_not_counted(spool: SpoolFixture) -> None:
    """A disk has lost the end of a segment that was delivered: later messages are backlog all the same."""
    sent = spool.fill(60)
    spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(0, {(1, 0): np.full(CHUNK_BYTES, 255, np.uint8)}))
    marks.close()
    first, second = (spool.layout.list_segments()[n][0] for n in (0, 1))
    account = take_totals(spool.layout, list)
    assert account.resolved == second - first
    assert account.backlog == len(sent) - (second - first)
