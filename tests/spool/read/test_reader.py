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
from tests.spool.rig import Rig


def make_reader(rig: Rig) -> Reader:
    """At the start of the log, allowed to read synced messages; a segment is several batches."""
    reader = Reader(SegmentList(rig.layout, retry_s=0.0), Topics(), 1024)
    reader.allow(*rig.shared.place(Field.SYNCED))
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


def test_all_segments_in_order(rig: Rig) -> None:
    """Every datagram unchanged, from sealed segments and from the one in use."""
    rig.fill(100)
    rig.step()
    assert drain(make_reader(rig)) == rig.records()
    assert len(rig.segments()) > 3


def test_no_further_than_it_is_allowed(rig: Rig) -> None:
    """Uncommitted messages are not seen; once they are committed, reading goes on there."""
    rig.fill(10)
    rig.step()
    reader = make_reader(rig)
    assert len(drain(reader)) == 30
    rig.fill(5)
    assert drain(reader) == []
    rig.step()
    assert drain(reader) == []
    reader.allow(*rig.shared.place(Field.SYNCED))
    assert drain(reader) == rig.records()[30:]
    assert reader.take_damage() == []


def test_an_empty_spool_has_nothing(rig: Rig) -> None:
    """Later messages are read from its start."""
    reader = make_reader(rig)
    assert reader.next() is None
    rig.fill(1)
    rig.step()
    reader.allow(*rig.shared.place(Field.SYNCED))
    assert drain(reader) == rig.records()


def test_seeking(rig: Rig) -> None:
    """To any message: the next batch begins with it."""
    rig.fill(80)
    rig.step()
    records = rig.records()
    reader = make_reader(rig)
    for sequence in (0, 1, 5, 100, 239, 17, 240):
        reader.seek(sequence)
        assert drain(reader) == records[sequence:]
    reader.close()


def test_over_a_gap_in_the_numbers(rig: Rig) -> None:
    """An epoch is no damage; a seek into the gap finds the next message."""
    rig.fill(20)
    rig.step()
    rig.boot += 1
    rig.reopen()
    rig.fill(20)
    rig.step()
    reader, records = make_reader(rig), rig.records()
    assert drain(reader) == records
    for sequence in (60, 1 << 20, 1 << 32):
        reader.seek(sequence)
        assert drain(reader) == records[60:]
    assert reader.take_damage() == []


def test_frames_without_messages(rig: Rig) -> None:
    """Bursts with only refused datagrams are skipped, also as the first and the last ones."""
    refused = {int(Reason.SHORT): (1, b"x")}
    for _ in range(30):
        rig.append([], refused=refused)
    rig.fill(3)
    for _ in range(30):
        rig.append([], refused=refused)
    rig.step()
    reader = make_reader(rig)
    assert drain(reader) == rig.records()
    for sequence in range(10):
        reader.seek(sequence)
        assert drain(reader) == rig.records()[sequence:]


def test_retired_under_its_eyes(rig: Rig) -> None:
    """A segment that is called sent, or removed, while it is read is read to its end."""
    rig.fill(60)
    rig.step()
    reader, records = make_reader(rig), rig.records()
    first = reader.next()
    assert first is not None
    count = len(first)
    rig.shared.words[Field.LOW_WATERMARK] = rig.synced
    rig.step()
    rig.layout.segment(0, ".sent").unlink()
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
    rig = Rig(tmp_path_factory.mktemp("rig"))
    try:
        rig.fill(40)
        rig.step()
        if gap:
            rig.boot += 1
            rig.reopen()
        rig.fill(40)
        rig.step()
        records = rig.records()
        paths = [rig.layout.segment(*pair) for pair in rig.layout.list_segments()[:-1]]
        frames = [(path, *frame) for path in paths for frame in frames_of(path)]
        for path, offset, size in chance.sample(frames, hits):
            flip(path, offset + chance.randrange(size), chance.randrange(8))
        reader = make_reader(rig)
        reader.seek(records[start][0])
        found = drain(reader)
        wanted = records[start:]
        assert set(found) <= set(wanted)
        assert [s for s, _ in found] == sorted({s for s, _ in found})
        assert missing(reader) == {s for s, _ in wanted} - {s for s, _ in found}
        assert len(found) >= len(wanted) - 3 * hits
        reader.close()
    finally:
        rig.crash()


def test_the_end_of_a_segment_is_damaged(rig: Rig) -> None:
    """The next segment gives the count stored before it; the loss is not counted into that one."""
    rig.fill(60)
    rig.step()
    records = rig.records()
    second = SegmentList(rig.layout).segments[1].first_sequence
    path = rig.layout.segment(0)
    offset, size = frames_of(path)[-1]
    data = bytearray(path.read_bytes())
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    reader = make_reader(rig)
    assert drain(reader) == records[: second - 3] + records[second:]
    assert reader.take_damage() == [Damage(second - 3, second)]
    reader.seek(second - 1)
    assert drain(reader) == records[second:]
    assert reader.take_damage() == [Damage(second - 1, second)]


def test_a_segment_without_its_header(rig: Rig) -> None:
    """All its messages are damaged, and reading goes on behind it."""
    rig.fill(60)
    rig.step()
    records = rig.records()
    infos = SegmentList(rig.layout).segments
    path = rig.layout.segment(infos[1].first_sequence)
    path.write_bytes(b"rot" + path.read_bytes()[3:])
    reader = make_reader(rig)
    first, end = infos[1].first_sequence, infos[2].first_sequence
    assert drain(reader) == records[:first] + records[end:]
    assert missing(reader) == set(range(first, end))


def test_a_frame_inside_a_message_is_not_believed(rig: Rig) -> None:
    """Damage before a message that contains a whole frame, digest and all, of other messages."""
    rig.fill(1)
    rig.step()
    path = rig.last_path()
    offset, size = frames_of(path)[-1]
    frame = path.read_bytes()[offset : offset + size]
    carrier = b"\0" * 7 + frame
    rig.append([encode(b"t", b"%d" % shift + b"\0" * shift + carrier) for shift in range(8)])
    rig.fill(2)
    rig.step()
    records = rig.records()
    path = rig.last_path()
    offset, _ = frames_of(path)[1]
    flip(path, offset + 3)
    reader = make_reader(rig)
    assert drain(reader) == records[:3] + records[11:]
    assert reader.take_damage() == [Damage(3, 11)]


def test_a_reader_that_is_lapped_goes_on_where_the_log_begins(memory: Path) -> None:
    """Its next segments are removed while it reads: no error, no damage, and no kept message is missed."""
    rig = Rig(memory)
    rig.fill(100, messages=6)
    rig.step()
    reader = Reader(SegmentList(rig.layout), Topics())
    reader.seek(0)
    reader.allow(*rig.shared.place(Field.SYNCED))
    assert reader.next() is not None
    rig.shared.words[Field.LOW_WATERMARK] = limit = rig.layout.list_segments()[4][0]
    rig.step()
    rig.keeper._stock.remove(first for first, _ in rig.keeper._stock.sent())
    seen: list[int] = []
    while batch := reader.next():
        seen += batch.sequence.tolist()
    assert [s for s in seen if s >= limit] == list(range(limit, rig.synced))
    assert reader.take_damage() == []
    reader.seek(0)
    batch = reader.next()
    assert batch is not None
    assert batch.sequence[0] == limit
    reader.close()
    rig.crash()
