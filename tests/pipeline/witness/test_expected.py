"""The messages that must be in Kafka, as a spool says, are the same before its segments go, and after."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from pipeline.source.outcomes import Runs
from pipeline.witness import expected as module
from pipeline.witness.expected import Expected, Spools, merge_rows, rows_of
from spool.errors import ReadFailed
from spool.format.block_sums import NO_SEQUENCES, Sequences
from spool.format.segment_format import BLOCK, SUM
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.pipeline.witness.spools import leave
from tests.spool import plain
from tests.spool.fixture import SpoolFixture

MESSAGES = 10_000


def stored(directory: Path, *, discarded: list[int], delivered: int = MESSAGES) -> SpoolFixture:
    """A spool of several segments and blocks; the messages below `delivered` are, or were discarded."""
    spool = SpoolFixture(directory, segment_bytes=1 << 17, max_bytes=16 << 20)
    for at in range(0, MESSAGES, 20):
        spool.append([encode(b"t", b"%d" % one, timestamp=one) for one in range(at, at + 20)])
        spool.step()
    spool.stop()
    mark(spool, delivered, discarded)
    return spool


def mark(spool: SpoolFixture, delivered: int, discarded: list[int]) -> None:
    """Have the deliverer say so."""
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    gone = [Discard(np.array(discarded, np.int64), 15, b"t", 7)] if discarded else []
    marks.commit(Changes(low_watermark=delivered, discarded=gone))
    marks.close()


def look(spool: SpoolFixture) -> Expected:
    """The spool's own words, as a witness that begins now hears them."""
    (side,) = Spools([str(spool.layout.directory)]).look()
    return side.expected


def plain_sums(spool: SpoolFixture, without: list[int]) -> dict[int, list[int]]:
    """[content, times, count] of each block, by the independent reader."""
    blocks: dict[int, list[int]] = {}
    for segment in spool.segments():
        first = int(str(segment.header["first_sequence"])) // BLOCK
        for frame in segment.frames:
            kept = [n for n in range(len(frame.datagrams)) if frame.sequence + n not in without]
            assert len(kept) in (0, len(frame.datagrams))
        segment.frames = [frame for frame in segment.frames if frame.sequence not in without]
        for at, (content, times, count) in enumerate(plain.sums(segment), first):
            row = blocks.setdefault(at, [0, 0, 0])
            row[0], row[1], row[2] = (row[0] + content) % 2**64, (row[1] + times) % 2**32, row[2] + count
    return blocks


def sums_of(expected: Expected) -> dict[int, list[int]]:
    """The same, of what a spool says."""
    return dict(zip(expected.blocks.tolist(), map(list, expected.sums.tolist()), strict=True))


DISCARDED = [*range(100, 120), *range(4200, 4220)]
"""Whole frames, since the independent reader leaves these out."""


def test_all_is_known_of_sealed_segments(tmp_path: Path) -> None:
    """The sums are of what was not discarded, as the independent reader has them; blocks are whole."""
    spool = stored(tmp_path, discarded=DISCARDED)
    expected = look(spool)
    assert len(spool.layout.list_segments()) > 2
    assert sums_of(expected) == plain_sums(spool, DISCARDED)
    assert list(expected.discarded) == DISCARDED
    assert (len(expected.stored), len(expected.open)) == (MESSAGES, 0)
    assert expected.whole.all()
    assert not expected.unknown.any()


def test_of_copies_the_newest_counts(tmp_path: Path) -> None:
    """A copy that is older lacks what must be in Kafka; the witness says that there is one."""
    spool = stored(tmp_path / "live", discarded=[])
    old = tmp_path / "a" / "spool"
    shutil.copytree(spool.layout.directory, old)
    for path in sorted((old / "segments").iterdir())[2:]:
        path.unlink()
    (side,) = Spools([str(old), str(spool.layout.directory)]).look()
    assert side.directory == str(spool.layout.directory)
    assert len(side.expected.stored) == MESSAGES
    assert "are copies of one spool" in side.unread


def test_it_stays_when_segments_go(tmp_path: Path) -> None:
    """Also for the block that is half in a segment that is gone."""
    spool = stored(tmp_path, discarded=DISCARDED)
    before = look(spool)
    for gone in (1, 2):
        leave(spool, gone)
        after = look(spool)
        assert len(spool.layout.list_segments()) > 0
        assert sums_of(after) == sums_of(before)
        assert (after.stored, after.discarded, after.open) == (before.stored, before.discarded, before.open)
        assert after.whole.all()


def test_what_waits_is_open(tmp_path: Path) -> None:
    """Messages above the low watermark need not be in Kafka yet; sums of segments with discards wait, too."""
    spool = stored(tmp_path, discarded=DISCARDED, delivered=4210)
    expected = look(spool)
    assert expected.open | expected.discarded == BitMap64(range(4210, MESSAGES)) | expected.discarded
    assert not expected.whole.all()


def test_without_marks_nothing_must_be_there(tmp_path: Path) -> None:
    """Or every message that was discarded would be missing."""
    spool = stored(tmp_path, discarded=DISCARDED)
    for path in spool.layout.delivery.glob("*.mdb"):
        path.unlink()
    expected = look(spool)
    assert expected.open == expected.stored


def test_topics_are_those_of_footers_and_marks(tmp_path: Path) -> None:
    """A topic of the segment in use is in the marks; without marks they are not known."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"new", b"v")])
    spool.step()
    paths = Spools([str(spool.layout.directory)])
    assert [side.names_all for side in paths.look()] == [False]
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=1, partitions={b"new": [(0, 3)]}))
    marks.close()
    assert [(side.names_all, side.topics) for side in paths.look()] == [(True, {b"new"})]
    spool.stop()


def test_the_segment_in_use_has_no_sums_yet(tmp_path: Path) -> None:
    """Its blocks are not whole before it is sealed."""
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 17, max_bytes=16 << 20)
    spool.append([encode(b"t", b"v", timestamp=1)])
    spool.step()
    expected = look(spool)
    assert (len(expected.stored), expected.whole.tolist(), expected.unknown.tolist()) == (1, [False], [False])
    spool.stop()
    assert look(spool).whole.tolist() == [True]


def test_a_run_without_sums_is_unknown() -> None:
    """Of a segment of an earlier format nothing but missing messages can be told, also after a merge."""
    half = BLOCK // 2
    old = rows_of((0, half), None, NO_SEQUENCES, for_good=True)
    new = rows_of((half, BLOCK), np.array([(7, 8, half)], SUM), NO_SEQUENCES, for_good=False)
    merged = merge_rows([old, new])
    assert merged[["block", "stored", "told", "lost"]].tolist() == [(0, BLOCK, half, half)]


def test_an_archive_has_discarded_messages_too(tmp_path: Path) -> None:
    """Its sums are of all messages, and those need not be there; a segment that is gone has left others."""
    spool = stored(tmp_path, discarded=DISCARDED)
    (side,) = Spools([str(spool.layout.directory)]).look()
    archived = side.archived
    assert archived
    assert sums_of(archived) == plain_sums(spool, [])
    assert archived.whole.all()
    assert (archived.stored, list(archived.discarded)) == (side.expected.stored, [])
    assert archived.open == BitMap64(DISCARDED)
    assert archived.delivered() == side.expected.delivered()
    leave(spool, 1)
    (side,) = Spools([str(spool.layout.directory)]).look()
    assert 0 < side.begin < MESSAGES
    assert side.archived
    unknown = side.archived.blocks[side.archived.unknown]
    assert list(unknown) == list(range(((side.begin - 1) >> 12) + 1))
    assert (side.archived.open, side.archived.stored) == (archived.open, archived.stored)


def test_without_discards_an_archive_is_as_kafka(tmp_path: Path) -> None:
    """Also when segments are gone."""
    spool = stored(tmp_path, discarded=[])
    leave(spool, 1)
    (side,) = Spools([str(spool.layout.directory)]).look()
    assert side.archived is None


def test_a_book_that_cannot_be_read_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The witness goes on with what it was before until it can be read again; the report has the sentence."""
    spool = stored(tmp_path, discarded=[])
    leave(spool, 1)
    whole, book = look(spool).stored, spool.layout.sums.read_bytes()
    spools = Spools([str(spool.layout.directory)])
    assert spools.look()[0].expected.stored == whole
    spool.layout.sums.unlink()
    spool.layout.sums.mkdir()
    for _ in range(2):
        (side,) = spools.look()
        assert side.expected.stored == whole
        assert "messages that have left this spool are not judged" in side.unread
    assert caplog.text.count("messages that have left this spool are not judged") == 1
    (fresh,) = Spools([str(spool.layout.directory)]).look()
    assert (len(fresh.expected.stored) < len(whole), bool(fresh.unread)) == (True, True)
    spool.layout.sums.rmdir()
    spool.layout.sums.write_bytes(book)
    (side,) = spools.look()
    assert (side.expected.stored, side.unread) == (whole, "")


def test_sums_that_cannot_be_read_are_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk gives an error once: the sums of a segment with discards are not known at that look alone."""
    spool = stored(tmp_path, discarded=DISCARDED)
    spools, read = Spools([str(spool.layout.directory)]), module.read_sums

    def fail(path: Path, _discarded: Sequences) -> None:
        raise ReadFailed(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(module, "read_sums", fail)
    (first,) = spools.look()
    monkeypatch.setattr(module, "read_sums", read)
    (second,) = spools.look()
    assert not first.expected.whole[0]
    assert not first.expected.unknown[0]
    assert second.expected.whole[0]


RUNS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), max_size=20).map(
    lambda pairs: np.cumsum(np.array(pairs, np.int64).reshape(-1)).reshape(-1, 2)
)


@given(RUNS, st.integers(0, 3000), st.integers(1, 3000))
def test_the_backlog_of_a_segment(backlog: Runs, first: int, count: int) -> None:
    """Its own messages alone, in runs of any length."""
    found, every = BitMap64([1]), BitMap64()
    module._add_runs(found, module._cut(backlog, (first, first + count)))
    for run in backlog.tolist():
        every.add_range(*run)
    assert set(found) == {1} | (set(every) & set(range(first, first + count)))


@pytest.mark.parametrize("run", [(5, 5), (0, (1 << 28) + 1), ((1 << 64) - 9, (1 << 64) - 2), (0, 1 << 45)])
def test_headers_that_claim_much_cost_nothing(run: tuple[int, int]) -> None:
    """No segment has so many messages: a run of them is not taken in."""
    assert not module._is_possible(run)
    assert module._is_possible((7, 8))
