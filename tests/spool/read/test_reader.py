"""The reader gives every committed message once, in order, and names exactly the unreadable ones."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from spool.format.batch import Topics
from spool.format.wire import Reason, encode
from spool.index.segment_list import SegmentList
from spool.read.reader import Damage, Reader
from spool.shared.state import Field
from tests.spool import plain
from tests.spool.fixture import SpoolFixture


def make_reader(spool: SpoolFixture) -> Reader:
    """At the start of the log, allowed to read synced messages; a segment is several batches."""
    reader = Reader(SegmentList(spool.layout, retry_s=0.0), Topics(), 1024)
    reader.allow(*spool.shared.place(Field.SYNCED))
    return reader


def drain(reader: Reader) -> list[tuple[int, bytes]]:
    """(sequence, datagram) of everything up to the limit."""
    found = []
    while batch := reader.next():
        assert len(batch)
        found += [(int(s), batch.datagram(row)) for row, s in enumerate(batch.sequence.tolist())]
        assert reader.sequence == found[-1][0] + 1
    return found


def missing(reader: Reader) -> set[int]:
    """The sequences it called damaged."""
    lost = [s for damage in reader.take_damage() for s in range(damage.first, damage.end)]
    assert len(lost) == len(set(lost))
    return set(lost)


def frames_of(path: Path) -> list[tuple[int, int]]:
    """(offset, bytes) of each frame of a segment file."""
    segment = plain.read_segment(path.read_bytes())
    offsets = [frame.offset for frame in segment.frames] + [segment.end]
    return [(offset, end - offset) for offset, end in pairwise(offsets)]


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_all_segments_in_order(spool: SpoolFixture) -> None:
    """Every datagram unchanged, from sealed segments and from the one in use."""
    spool.fill(100)
    spool.step()
    assert drain(make_reader(spool)) == spool.records()
    assert len(spool.segments()) > 3


def test_no_further_than_it_is_allowed(spool: SpoolFixture) -> None:
    """Uncommitted messages are not seen; once they are committed, reading goes on there."""
    spool.fill(10)
    spool.step()
    reader = make_reader(spool)
    assert len(drain(reader)) == 30
    spool.fill(5)
    assert drain(reader) == []
    spool.step()
    assert drain(reader) == []
    reader.allow(*spool.shared.place(Field.SYNCED))
    assert drain(reader) == spool.records()[30:]
    assert reader.take_damage() == []


def test_an_empty_spool_has_nothing(spool: SpoolFixture) -> None:
    """Later messages are read from its start."""
    reader = make_reader(spool)
    assert reader.next() is None
    spool.fill(1)
    spool.step()
    reader.allow(*spool.shared.place(Field.SYNCED))
    assert drain(reader) == spool.records()


def test_seeking(spool: SpoolFixture) -> None:
    """To any message: the next batch begins with it."""
    spool.fill(80)
    spool.step()
    records = spool.records()
    reader = make_reader(spool)
    for sequence in (0, 1, 5, 100, 239, 17, 240):
        reader.seek(sequence)
        assert drain(reader) == records[sequence:]
    reader.close()


def test_over_a_gap_in_the_numbers(spool: SpoolFixture) -> None:
    """An epoch is no damage; a seek into the gap finds the next message."""
    spool.fill(20)
    spool.step()
    spool.boot += 1
    spool.reopen()
    spool.fill(20)
    spool.step()
    reader, records = make_reader(spool), spool.records()
    assert drain(reader) == records
    for sequence in (60, 1 << 20, 1 << 32):
        reader.seek(sequence)
        assert drain(reader) == records[60:]
    assert reader.take_damage() == []


def test_frames_without_messages(spool: SpoolFixture) -> None:
    """Bursts with only refused datagrams are skipped, also as the first and the last ones."""
    refused = {int(Reason.SHORT): (1, b"x")}
    for _ in range(30):
        spool.append([], refused=refused)
    spool.fill(3)
    for _ in range(30):
        spool.append([], refused=refused)
    spool.step()
    reader = make_reader(spool)
    assert drain(reader) == spool.records()
    for sequence in range(10):
        reader.seek(sequence)
        assert drain(reader) == spool.records()[sequence:]


def test_retired_under_its_eyes(spool: SpoolFixture) -> None:
    """A segment that is called sent, or removed, while it is read is read to its end."""
    spool.fill(60)
    spool.step()
    reader, records = make_reader(spool), spool.records()
    first = reader.next()
    assert first is not None
    count = len(first)
    spool.shared.words[Field.LOW_WATERMARK] = spool.synced
    spool.step()
    spool.layout.segment(0, ".sent").unlink()
    assert drain(reader) == records[count:]
    assert reader.take_damage() == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), hits=st.integers(1, 6), start=st.integers(0, 200), gap=st.booleans())
def test_damage_is_told_exactly(
    tmp_path_factory: pytest.TempPathFactory, seed: int, hits: int, start: int, *, gap: bool
) -> None:
    """Bits flipped in any frame: the others are read, the missing messages are named, and no others.

    Also when reading starts in the middle of it.
    """
    chance = random.Random(seed)
    spool = SpoolFixture(tmp_path_factory.mktemp("spool"))
    try:
        spool.fill(40)
        spool.step()
        if gap:
            spool.boot += 1
            spool.reopen()
        spool.fill(40)
        spool.step()
        records = spool.records()
        paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()[:-1]]
        frames = [(path, *frame) for path in paths for frame in frames_of(path)]
        for path, offset, size in chance.sample(frames, hits):
            flip(path, offset + chance.randrange(size), chance.randrange(8))
        reader = make_reader(spool)
        reader.seek(records[start][0])
        found = drain(reader)
        wanted = records[start:]
        assert set(found) <= set(wanted)
        assert [s for s, _ in found] == sorted({s for s, _ in found})
        assert missing(reader) == {s for s, _ in wanted} - {s for s, _ in found}
        assert len(found) >= len(wanted) - 3 * hits
        reader.close()
    finally:
        spool.crash()


def test_the_end_of_a_segment_is_damaged(spool: SpoolFixture) -> None:
    """The next segment gives the count stored before it; the loss is not counted into that one."""
    spool.fill(60)
    spool.step()
    records = spool.records()
    second = SegmentList(spool.layout).segments[1].first_sequence
    path = spool.layout.segment(0)
    offset, size = frames_of(path)[-1]
    data = bytearray(path.read_bytes())
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    reader = make_reader(spool)
    assert drain(reader) == records[: second - 3] + records[second:]
    assert reader.take_damage() == [Damage(second - 3, second)]
    reader.seek(second - 1)
    assert drain(reader) == records[second:]
    assert reader.take_damage() == [Damage(second - 1, second)]


def test_a_segment_without_its_header(spool: SpoolFixture) -> None:
    """All its messages are damaged, and reading goes on behind it."""
    spool.fill(60)
    spool.step()
    records = spool.records()
    infos = SegmentList(spool.layout).segments
    path = spool.layout.segment(infos[1].first_sequence)
    path.write_bytes(b"rot" + path.read_bytes()[3:])
    reader = make_reader(spool)
    first, end = infos[1].first_sequence, infos[2].first_sequence
    assert drain(reader) == records[:first] + records[end:]
    assert missing(reader) == set(range(first, end))


def test_a_frame_inside_a_message_is_not_believed(spool: SpoolFixture) -> None:
    """Damage before a message that contains a whole frame, digest and all, of other messages."""
    spool.fill(1)
    spool.step()
    path = spool.last_path()
    offset, size = frames_of(path)[-1]
    frame = path.read_bytes()[offset : offset + size]
    carrier = b"\0" * 7 + frame
    spool.append([encode(b"t", b"%d" % shift + b"\0" * shift + carrier) for shift in range(8)])
    spool.fill(2)
    spool.step()
    records = spool.records()
    path = spool.last_path()
    offset, _ = frames_of(path)[1]
    flip(path, offset + 3)
    reader = make_reader(spool)
    assert drain(reader) == records[:3] + records[11:]
    assert reader.take_damage() == [Damage(3, 11)]


def test_a_reader_that_is_lapped_goes_on_where_the_log_begins(memory: Path) -> None:
    """Its next segments are removed while it reads: no error, no damage, and no kept message is missed."""
    spool = SpoolFixture(memory)
    spool.fill(100, messages=6)
    spool.step()
    reader = Reader(SegmentList(spool.layout), Topics())
    reader.seek(0)
    reader.allow(*spool.shared.place(Field.SYNCED))
    assert reader.next() is not None
    spool.shared.words[Field.LOW_WATERMARK] = limit = spool.layout.list_segments()[4][0]
    spool.step()
    spool.keeper._stock.remove(first for first, _ in spool.keeper._stock.sent())
    seen: list[int] = []
    while batch := reader.next():
        seen += batch.sequence.tolist()
    assert [s for s in seen if s >= limit] == list(range(limit, spool.synced))
    assert reader.take_damage() == []
    reader.seek(0)
    batch = reader.next()
    assert batch is not None
    assert batch.sequence[0] == limit
    reader.close()
    spool.crash()
