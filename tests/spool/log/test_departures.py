"""The book has what must be in Kafka of a segment before the segment is gone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from spool.errors import SpoolFull
from spool.format.sums_book import Departed, decode_departed, encode_departed
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.layout import SENT, older
from spool.log import departures
from spool.log.departures import Departures
from spool.log.keeper import EXPIRE_S
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.shared.state import Field
from tests.spool import plain
from tests.spool.fixture import SpoolFixture

PER_SEGMENT = 60


def delivered(directory: Path, discarded: list[int]) -> SpoolFixture:
    """A spool of some segments, of which all messages are delivered, or discarded."""
    spool = SpoolFixture(directory)
    for at in range(400):
        spool.append([encode(b"t", b"%d" % at * 9, timestamp=at)])
        spool.step()
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    gone = [Discard(np.array(discarded, np.int64), 15, b"t", 7)] if discarded else []
    marks.commit(Changes(low_watermark=400, discarded=gone))
    marks.close()
    for first, suffix in spool.layout.list_segments()[:-1]:
        path = spool.layout.segment(first, suffix)
        path.rename(spool.layout.segment(first, SENT))
    return spool


def uuid_of(spool: SpoolFixture) -> bytes:
    """The spool's."""
    return read_identity(spool.layout)


def sent(spool: SpoolFixture) -> list[int]:
    """The first sequences of its sent segments."""
    return [first for first, suffix in spool.layout.list_segments() if suffix == SENT]


def book(spool: SpoolFixture) -> list[Departed]:
    """The segments in its book."""
    data = spool.layout.sums.read_bytes() if spool.layout.sums.exists() else b""
    return list(decode_departed(uuid_of(spool), data))


@pytest.mark.parametrize("discarded", [[], [0, 1, 77, 150, 151, 152]])
def test_sums_are_of_what_was_not_discarded(tmp_path: Path, discarded: list[int]) -> None:
    """For each segment, as the independent reader has them; discarded messages are named."""
    spool = delivered(tmp_path, discarded)
    firsts = sent(spool)
    Departures(spool.layout, uuid_of(spool)).note(firsts)
    found = book(spool)
    assert [segment.first for segment in found] == firsts
    for segment in found:
        read = plain.read_segment(spool.layout.segment(segment.first, SENT).read_bytes())
        gone = [one for one in discarded if segment.first <= one < segment.first + segment.messages]
        for frame in read.frames:
            kept = [frame.sequence + at not in gone for at in range(len(frame.datagrams))]
            assert all(kept) or len(kept) == 1
        read.frames = [frame for frame in read.frames if frame.sequence not in gone]
        assert segment.sums is not None
        assert segment.discarded is not None
        assert segment.sums.tolist() == plain.sums(read)
        assert segment.discarded.tolist() == gone


def test_without_marks_nothing_is_known_of_discards(tmp_path: Path) -> None:
    """And so nothing of the sums: a discarded message would look like one that is missing."""
    spool = delivered(tmp_path, [])
    for path in spool.layout.delivery.glob("*.mdb"):
        path.unlink()
    Departures(spool.layout, uuid_of(spool)).note(sent(spool))
    assert [(one.sums, one.discarded) for one in book(spool)] == [(None, None)] * len(sent(spool))


def test_what_a_crash_left_is_written_over(tmp_path: Path) -> None:
    """A torn record at the end hides nothing that comes behind it."""
    spool = delivered(tmp_path, [])
    firsts = sent(spool)
    Departures(spool.layout, uuid_of(spool)).note(firsts[:1])
    with spool.layout.sums.open("ab") as file:
        torn = encode_departed(uuid_of(spool), Departed(firsts[1], 5, None, None))
        file.write(torn[:-9])
    Departures(spool.layout, uuid_of(spool)).note(firsts[1:])
    assert [segment.first for segment in book(spool)] == firsts


def test_a_long_book_becomes_the_older_one(tmp_path: Path) -> None:
    """Its bytes are bounded."""
    spool = delivered(tmp_path, [])
    keeper = Departures(spool.layout, uuid_of(spool), most_bytes=200)
    for first in sent(spool):
        keeper.note([first])
        assert spool.layout.sums.stat().st_size <= 200
    assert older(spool.layout.sums).stat().st_size <= 200
    assert book(spool)[-1].first == sent(spool)[-1]


def test_a_book_that_is_no_file_keeps_no_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Room for messages is worth more; once the place is free again, there is a book again."""
    spool = delivered(tmp_path, [])
    firsts = sent(spool)
    keeper = Departures(spool.layout, uuid_of(spool))
    spool.layout.sums.mkdir()
    keeper.note(firsts[:1])
    assert "a witness cannot check segments that are removed" in caplog.text
    spool.layout.sums.rmdir()
    keeper.note(firsts[1:])
    assert [segment.first for segment in book(spool)] == firsts[1:]


def test_without_room_segments_go_without_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The room is wanted for messages; the log says what is not known now."""
    spool = delivered(tmp_path, [])

    def full(*_: object) -> None:
        raise SpoolFull("no room")

    monkeypatch.setattr(departures, "reserve", full)
    Departures(spool.layout, uuid_of(spool)).note(sent(spool))
    assert book(spool) == []
    assert "for want of their sums: no room" in caplog.text


def test_the_keeper_writes_before_it_removes(tmp_path: Path) -> None:
    """A daemon's keeper that removes delivered segments leaves their sums."""
    spool = SpoolFixture(tmp_path, keep_delivered_bytes=0)
    for at in range(400):
        spool.append([encode(b"t", b"%d" % at * 9, timestamp=at)])
        spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=400))
    marks.close()
    spool.shared.words[Field.LOW_WATERMARK] = 400
    for _ in range(3):
        spool.step()
        time.sleep(EXPIRE_S)
    left = {first for first, _ in spool.layout.list_segments()}
    gone = [segment for segment in book(spool) if segment.first not in left]
    assert len(gone) > 1
    assert gone[0].first == 0
    assert all(one.sums is not None and one.sums["count"].sum() == one.messages for one in gone)
    spool.stop()
