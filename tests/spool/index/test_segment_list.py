"""The segment list follows the keeper's changes to the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spool.errors import BadSpool
from spool.index.segment_list import LastingSegmentList, SegmentList
from spool.layout import SEGMENT, SENT
from spool.native.digest import digest
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture


def sequences(spool: SpoolFixture) -> list[int]:
    """The sequences of every stored message."""
    return [sequence for sequence, _ in spool.records()]


def test_it_knows_every_named_segment(spool: SpoolFixture) -> None:
    """Number, first sequence and preceding counts equal the second reader's; spares are not listed."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    expected = [
        (s.header["first_sequence"], s.header["number"], s.header["stored"]) for s in spool.segments()
    ]
    assert [(i.first_sequence, i.number, i.stored) for i in segment_list.segments] == expected
    assert len({info.identity for info in segment_list.segments}) == len(expected) > 2
    assert segment_list.segments[1] == segment_list.by_number(2)
    assert segment_list.by_number(99) is None


def test_at_finds_the_segment(spool: SpoolFixture) -> None:
    """For every message, and for numbers before and behind them all."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    for sequence in sequences(spool):
        info = segment_list.segments[segment_list.at(sequence)]
        assert info.first_sequence <= sequence
        assert segment_list.stored_below(sequence) == sequence
    assert segment_list.at(1 << 60) == len(segment_list.segments) - 1
    assert segment_list.at(0) == 0


def test_stored_below_knows_of_gaps(spool: SpoolFixture) -> None:
    """Numbers that were never used do not count."""
    spool.fill(20)
    spool.step()
    spool.boot += 1
    spool.reopen()
    spool.fill(20)
    spool.step()
    segment_list, numbers = SegmentList(spool.layout), sequences(spool)
    assert numbers[-1] > 1 << 32
    assert [segment_list.stored_below(sequence) for sequence in numbers] == list(range(len(numbers)))
    assert segment_list.stored_below(1 << 31) == segment_list.stored_below(1 << 32) == 60


def test_a_segment_keeps_its_identity_when_it_is_called_sent(spool: SpoolFixture) -> None:
    """Renamed before a refresh, between listing and look, or between refresh and open."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    before = list(segment_list.segments)
    spool.shared.words[Field.LOW_WATERMARK] = before[2].first_sequence
    spool.step()
    os.close(segment_list.open(before[0]))
    assert segment_list._read(before[0].first_sequence, SEGMENT) == before[0]
    assert segment_list.sent_below() == 0
    segment_list.refresh()
    assert segment_list.segments == before
    assert segment_list.sent == {before[0].first_sequence, before[1].first_sequence}
    assert segment_list.sent_below() == before[2].first_sequence


def test_a_segment_that_is_gone_is_gone(spool: SpoolFixture) -> None:
    """Removed between listing and look: None; before a refresh: not found; after it: not listed."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    first = segment_list.segments[0]
    spool.layout.segment(0).unlink()
    assert segment_list._read(0, SEGMENT) is None
    with pytest.raises(FileNotFoundError):
        segment_list.open(first)
    segment_list.refresh()
    assert first not in segment_list.segments
    assert segment_list.sent_below() == segment_list.segments[0].first_sequence


def test_a_damaged_header_is_noted(spool: SpoolFixture) -> None:
    """The segment is left out and named in `damaged`; one that was read before stays known."""
    spool.fill(60)
    spool.step()
    known = SegmentList(spool.layout)
    second = known.segments[1].first_sequence
    path = spool.layout.segment(second)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    segment_list = SegmentList(spool.layout)
    assert segment_list.damaged == {second}
    assert second not in {info.first_sequence for info in segment_list.segments}
    known.refresh()
    assert known.segments[1].first_sequence == second


def test_an_empty_spool(tmp_path: Path) -> None:
    """No message is stored, and none is delivered."""
    made = SpoolFixture(tmp_path)
    segment_list = SegmentList(made.layout)
    assert segment_list.segments == []
    # By it rows of the marks are the spool's own, also before the first message.
    assert segment_list.spool == digest(made.identity.spool)
    assert segment_list.sent_below() == segment_list.stored_below(0) == segment_list.at(7) == 0
    made.crash()


def test_two_spools_have_two_identities(tmp_path: Path) -> None:
    """Also for segments of the same number and the same messages."""
    spools = [SpoolFixture(tmp_path / name) for name in ("one", "two") if not (tmp_path / name).mkdir()]
    segment_lists = []
    for made in spools:
        made.fill(3)
        made.step()
        segment_lists.append(SegmentList(made.layout))
        made.crash()
    assert segment_lists[0].spool != segment_lists[1].spool
    assert segment_lists[0].segments[0].identity != segment_lists[1].segments[0].identity


def test_sent_or_not_a_header_must_be_one(spool: SpoolFixture) -> None:
    """A file that is no segment is damaged under either name."""
    spool.layout.segment(5, SENT).write_bytes(b"x" * 1000)
    segment_list = SegmentList(spool.layout)
    assert segment_list.damaged == {5}
    with pytest.raises(BadSpool):
        segment_list._header(5, SENT)


def test_segments_that_last(spool: SpoolFixture) -> None:
    """Removed segments stay known, in order, and new ones come behind them; a plain list forgets them."""
    spool.fill(60)
    spool.step()
    lasting, plain = LastingSegmentList(spool.layout), SegmentList(spool.layout)
    before = plain.segments
    assert len(before) > 2
    for pair in spool.layout.list_segments()[:2]:
        spool.layout.segment(*pair).unlink()
    spool.fill(60)
    spool.step()
    spool.crash()
    for segment_list in (lasting, plain):
        segment_list.refresh()
    assert lasting.segments == [*before[:2], *plain.segments]
    assert plain.segments[: len(before) - 2] == before[2:]
