"""A segment that the disk cannot read, whole or in part: skipped, reported, and never called lost."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from spool.errors import ReadFailed
from spool.format.batch import Topics
from spool.format.packed import pack
from spool.fsck.check import Check
from spool.fsck.finding import Kind, Severity
from spool.fsck.repair import Action, Mode, apply, plan
from spool.index.segment_list import SegmentList
from spool.log.keeper import Pauses
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import UNTOLD
from spool.read.files import Span
from spool.read.reader import Reader, Unread
from spool.read.selection import Selection
from tests.spool import plain
from tests.spool.fixture import SpoolFixture
from tests.spool.read.test_reader import drain, make_reader
from tests.spool.stored import mark_often
from tests.spool.unreadable import unreadable


@pytest.fixture
def full(spool: SpoolFixture) -> SpoolFixture:
    """Four sealed segments with several marks, and one in use."""
    fill(spool)
    mark_often(spool)
    return spool


def fill(spool: SpoolFixture) -> None:
    """Four sealed segments, and one in use."""
    spool.fill(100)
    for _ in range(8):
        spool.step()
    assert len(spool.layout.list_segments()) >= 5


def place(spool: SpoolFixture, at: int) -> tuple[Path, int, int]:
    """(path, first sequence, that of the next) of a segment, by its place in the log."""
    named = spool.layout.list_segments()
    return spool.layout.segment(*named[at]), named[at][0], named[at + 1][0]


def place_of_footer(path: Path) -> int:
    """The offset behind the last frame of a sealed segment."""
    return plain.read_segment(path.read_bytes()).end


def passed_by(reader: Reader) -> list[int]:
    """The sequences that this reader could not read since the last look."""
    return sequences_of(reader.take_unread())


def sequences_of(unread: Sequence[Unread]) -> list[int]:
    """The sequences in these ranges."""
    return sorted({s for one in unread for s in range(one.first, one.end)})


@pytest.mark.parametrize("at", [0, 1, 3], ids=["the first", "one between", "the last sealed one"])
@pytest.mark.parametrize("end", [64, 1 << 30], ids=["header", "all of it"])
def test_all_other_segments_are_read(full: SpoolFixture, at: int, end: int) -> None:
    """Unreadable messages are reported, not as damage; after healing they are read, and the rest stays."""
    path, first, behind = place(full, at)
    reader, records = make_reader(full), full.records()
    with unreadable(path, 0, end):
        assert drain(reader) == records[:first] + records[behind:]
        unread = reader.take_unread()
        assert sequences_of(unread) == list(range(first, behind))
        assert all(str(path) in str(one.error) for one in unread)
        assert not reader.take_damage()
        reader.seek(first + 1)
        assert drain(reader) == records[behind:]
        assert passed_by(reader) == list(range(first + 1, behind))
    reader.seek(first)
    assert drain(reader) == records[first:]
    assert not reader.take_unread()
    assert not reader.take_damage()


def test_a_segment_is_entered_again_behind_a_bad_sector(full: SpoolFixture) -> None:
    """The frames before it are read, and those from the next mark on; all of them without a footer."""
    path, first, behind = place(full, 1)
    records = full.records()
    with unreadable(path, 3000, 3500):
        reader = make_reader(full)
        found = [s for s, _ in drain(reader)]
    missing = passed_by(reader)
    assert sorted(found + missing) == [s for s, _ in records]
    assert first < missing[0] <= missing[-1] < behind - 1
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert len(missing) < (behind - first) // 2
    with unreadable(path, path.stat().st_size - 8):
        reader = make_reader(full)
        assert drain(reader) == records
        assert not passed_by(reader)


def test_a_disk_is_not_asked_for_each_mark(full: SpoolFixture) -> None:
    """Each error may take seconds: a dead segment costs a few, not one for each mark."""
    path, first, behind = place(full, 1)
    reader, asked = make_reader(full), list[int]()
    enter = reader._enter

    def count(offset: int) -> None:
        asked.append(offset)
        enter(offset)

    end = place_of_footer(path)
    with unreadable(path, 600, end), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_enter", count)
        drain(reader)
    missing = passed_by(reader)
    assert first <= missing[0] < missing[-1] == behind - 1
    assert 2 <= len(asked) <= 3 < (end - 600) // 1500


def test_a_packed_segment(full: SpoolFixture) -> None:
    """One error, at any place, and it waits as a whole: each block is found from the one before."""
    path, first, behind = place(full, 1)
    packed = path.with_suffix(".packed")
    with path.open("rb") as source, packed.open("w+b") as target:
        pack(source.fileno(), target.fileno())
    packed.rename(path)
    reader, records = make_reader(full), [(s, d) for s, d in drain(make_reader(full))]
    with unreadable(path, 500, 600):
        assert drain(reader) == records[:first] + records[behind:]
        assert passed_by(reader) == list(range(first, behind))
    reader.seek(first)
    assert drain(reader) == records[first:]


def test_the_segment_in_use_is_waited_for(spool: SpoolFixture) -> None:
    """The next readable place is unknown: the reader waits, and goes on when the disk heals."""
    spool.fill(10)
    spool.step()
    reader, path = make_reader(spool), spool.last_path()
    with unreadable(path, 512):
        before = drain(reader)
        assert reader.next() is None
    (one,) = reader.take_unread()
    assert one.first == one.end == len(before)
    assert before + drain(reader) == spool.records()


@given(chosen=st.randoms(use_true_random=False))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_and_nothing_called_damaged(full: SpoolFixture, chosen: random.Random) -> None:
    """Any ranges of any segments: read and reported messages make the log, each message once."""
    records = full.records()
    with contextlib.ExitStack() as bad:
        for _ in range(chosen.randrange(1, 4)):
            path, *_ = place(full, chosen.randrange(4))
            first = chosen.randrange(9000)
            bad.enter_context(unreadable(path, first, first + chosen.choice([1, 512, 4096])))
        reader = make_reader(full)
        for start in (0, chosen.randrange(300)):
            reader.seek(start)
            reader.take_unread()
            found = dict(drain(reader))
            assert all(found[s] == datagram for s, datagram in records if s in found)
            told = set(passed_by(reader))
            assert sorted(told | set(found)) == [s for s, _ in records[start:]]
            assert not told & set(found)
    assert not reader.take_damage()
    reader.seek(0)
    assert drain(reader) == records


def test_a_catalogue_without_a_header(full: SpoolFixture) -> None:
    """The segments around it give its range, also for several, until the header can be read."""
    whole = SegmentList(full.layout)
    for chosen in ((0,), (1,), (1, 2), (0, 1), (3,)):
        with contextlib.ExitStack() as bad:
            for at in chosen:
                bad.enter_context(unreadable(place(full, at)[0], 0, 64))
            found = SegmentList(full.layout, retry_s=0.0)
            assert [(i.first_sequence, i.number, i.stored) for i in found.segments] == [
                (i.first_sequence, i.number, i.stored) for i in whole.segments
            ]
            assert [at for at, i in enumerate(found.segments) if i.identity == UNTOLD] == list(chosen)
            assert [found.most(i) for i in found.segments] == [whole.most(i) for i in whole.segments]
            assert not found.damaged
        found.refresh()
        assert found.segments == whole.segments


def test_over_an_epoch_nothing_is_thought_to_be_less(full: SpoolFixture) -> None:
    """A low watermark that the neighbours move must never move too far; epochs are not 2^32 messages."""
    full.boot += 1
    full.reopen()
    full.fill(60)
    for _ in range(8):
        full.step()
    whole = SegmentList(full.layout)
    for at, info in enumerate(whole.segments[:-1]):
        with unreadable(full.layout.segment(*full.layout.list_segments()[at]), 0, 64):
            found = SegmentList(full.layout, retry_s=0.0)
            most = [whole.most(one) for one in whole.segments]
            assert all(found.most(one) >= least for one, least in zip(found.segments, most, strict=True))
            assert [one.stored for one in found.segments] == [one.stored for one in whole.segments]
            reader = make_reader(full)
            got = [s for s, _ in drain(reader)]
            ends = [(one.first, one.end) for one in reader.take_unread()]
            assert ends == [(info.first_sequence, info.first_sequence + most[at])]
            assert not reader.take_damage()
            assert not [s for s in got if info.first_sequence <= s < whole.segments[at + 1].first_sequence]


def test_marks_hold_while_a_header_cannot_be_read(full: SpoolFixture) -> None:
    """Watermark and bits of that segment are believed, rewritten unchanged, and match after healing."""
    path, first, _ = place(full, 1)
    marks = Marks(full.layout.delivery, SegmentList(full.layout))
    marks.commit(Changes(first + 5, offsets={-1: first + 5}))
    marks.close()
    with unreadable(path, 0, 64):
        marks = Marks(full.layout.delivery, SegmentList(full.layout))
        assert marks.low_watermark() == (first + 5, first + 5)
        marks.commit(Changes(first + 5, offsets={-1: first + 5}))
        assert marks.vanished() is None
        marks.close()
    marks = Marks(full.layout.delivery, SegmentList(full.layout))
    assert marks.low_watermark() == (first + 5, first + 5)
    assert not marks.mismatches()
    marks.close()


def test_a_floor_that_comes_to_it(full: SpoolFixture) -> None:
    """All messages before a segment with an unreadable header are delivered: this stays after healing."""
    path, first, _ = place(full, 1)
    with unreadable(path, 0, 64):
        marks = Marks(full.layout.delivery, SegmentList(full.layout))
        marks.commit(Changes(first, offsets={-1: first}))
        assert (marks.low_watermark(), marks.offsets()) == ((first, first), {-1: first})
        marks.close()
    marks = Marks(full.layout.delivery, SegmentList(full.layout))
    assert (marks.low_watermark(), marks.offsets()) == ((first, first), {-1: first})
    assert not marks.mismatches()
    marks.close()


@pytest.mark.parametrize("end", [64, 1 << 30], ids=["header", "all of it"])
def test_a_start_leaves_it_alone(full: SpoolFixture, end: int, caplog: pytest.LogCaptureFixture) -> None:
    """Not repaired, renamed, quarantined, or taken for empty; the log goes on behind the last segment."""
    path, *_ = place(full, 1)
    before, names, records = path.read_bytes(), full.layout.list_segments(), full.records()
    with unreadable(path, 0, end):
        full.reopen()
        full.fill(3)
        full.step()
    assert path.read_bytes() == before
    assert full.layout.list_segments()[: len(names)] == names
    assert not list(full.layout.quarantine.iterdir())
    assert full.records()[: len(records)] == records
    assert len(full.records()) == len(records) + 9
    assert "the disk gives an error for its header" in caplog.text


def test_a_full_segment_is_sealed_when_it_can_be_read(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others are sealed meanwhile; it is not copied, as a copy would lose its unreadable bytes."""
    spool = SpoolFixture(memory, pauses=Pauses(seal=0.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool.keeper._committer, "seal_one", lambda: False)
        spool.fill(80)
        spool.step()
    path, *_ = place(spool, 1)
    before = path.read_bytes()
    spool.keeper._committer._unread.clear()
    with unreadable(path, 3000):
        for _ in range(12):
            spool.step()
        assert [bool(s.footer) for s in spool.segments()[:3]] == [True, False, True]
        assert path.read_bytes() == before
        assert caplog.text.count("it is sealed when the disk gives it") == 1
    for _ in range(4):
        spool.step()
    assert spool.segments()[1].footer
    spool.crash()


def test_a_keeper_that_begins_with_an_unsealed_one(spool: SpoolFixture) -> None:
    """The messages behind it are committed all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool.keeper._committer, "seal_one", lambda: False)
        spool.fill(80)
        spool.step()
    records = spool.records()
    path, *_ = place(spool, 1)
    with unreadable(path, 3000):
        spool.reopen()
        assert spool.synced == len(records)
    assert spool.records() == records


def test_who_selects_is_told(full: SpoolFixture) -> None:
    """A replay leaves nothing out silently: it ends with an error."""
    path, *_ = place(full, 1)
    selection = Selection(SegmentList(full.layout), Topics(), Span())
    with unreadable(path, 3000), pytest.raises(ReadFailed, match="cannot be read: Input/output error"):
        drain(selection)


@pytest.mark.parametrize("first", [0, 3000], ids=["header", "body"])
def test_verify_and_repair_say_what_it_is(spool: SpoolFixture, first: int) -> None:
    """One finding, without consequences; a repair copies the readable part only with consent to the loss."""
    fill(spool)
    path, *_ = place(spool, 1)
    spool.stop()
    whole = path.read_bytes()
    with unreadable(path, first, first + 500):
        found = [one for one in Check().spool(spool.layout) if one.severity is not Severity.NOTE]
        assert [(one.kind, one.path) for one in found] == [(Kind.UNREADABLE, path)]
        steps = [(one.path, one.action, one.mode) for one in plan(spool.layout)]
        if first:
            assert steps == [(path, Action.REWRITE, Mode.SKIP_DAMAGED)]
        else:
            assert steps == [(path, Action.NONE, Mode.STRICT)]
        apply(spool.layout, Mode.TRUNCATE_TAIL)
        assert path.read_bytes() == whole
        apply(spool.layout, Mode.SKIP_DAMAGED)
    assert (path.read_bytes() == whole) == (not first)
    reader = Reader(SegmentList(spool.layout), Topics())
    reader.allow(1 << 30, 0)
    count = len(drain(reader))
    lost = sum(one.end - one.first for one in reader.take_damage())
    assert count + lost == 300
    assert (lost > 0) == bool(first)
