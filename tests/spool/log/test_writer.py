"""Appending: frames fill segments to the last byte, and continue in the next one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.errors import SpoolFull
from spool.format.frame import DISCARDED, POSITION
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES
from spool.format.wire import encode
from spool.index.log_end import LiveSegment
from spool.layout import Layout
from spool.log import writer
from spool.shared.state import Field
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture

FIXED = HEAD_BYTES + 12 + len(encode(b"t", b""))
"""Bytes of a frame of one message without a value."""


def frame_of(size: int) -> list[bytes]:
    """One message whose frame takes at least `size` bytes (a multiple of 8), `size` - 7 unpadded."""
    return [encode(b"t", b"v" * (size - FIXED))]


@pytest.mark.parametrize("over", range(-9, 10))
def test_a_frame_around_the_size_of_what_is_left(spool: SpoolFixture, over: int) -> None:
    """A frame that fits to the byte stays in its segment; one byte more, and it begins the next one."""
    left = SEGMENT_BYTES - HEADER_BYTES - 1024
    spool.append(frame_of(1024))
    spool.append(frame_of(left + over))
    assert spool.writer.number == (1 if over <= 0 else 2)
    spool.append(frame_of(104))
    assert [sequence for sequence, _ in spool.records()] == [0, 1, 2]
    spool.reopen()
    assert [sequence for sequence, _ in spool.records()] == [0, 1, 2]
    assert spool.synced == 3


@pytest.mark.parametrize("over", range(-9, 10))
def test_a_frame_around_the_size_of_a_segment(spool: SpoolFixture, over: int) -> None:
    """A frame as large as an empty segment is appended; a larger one is refused, and nothing breaks."""
    spool.append(frame_of(1024))
    spool.step()
    whole = frame_of(SEGMENT_BYTES - HEADER_BYTES + over)
    if over <= 0:
        assert spool.writer.append(whole) == 1
        assert spool.writer.tail[POSITION] == (SEGMENT_BYTES if over > -8 else SEGMENT_BYTES - 8)
    else:
        with pytest.raises(SpoolFull):
            spool.writer.append(whole)
    spool.step()
    count = len(spool.records())
    spool.append(frame_of(104))
    spool.reopen()
    assert len(spool.records()) == count + 1


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2000), max_size=3), max_size=30),
    st.integers(SEGMENT_BYTES - 9, SEGMENT_BYTES + 9),
)
def test_any_frames_in_segments_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, frames: list[list[int]], segment_bytes: int
) -> None:
    """With messages of any size, and segments of odd sizes: all are there, in order, after a crash."""
    spool = SpoolFixture(tmp_path_factory.mktemp("spool"), segment_bytes=segment_bytes)
    sent = []
    for i, sizes in enumerate(frames):
        burst = [encode(b"t", b"%d" % i + b"v" * size) for size in sizes]
        spool.step()
        spool.append(burst, refused={} if burst else {1: (1, b"x")})
        sent += burst
    spool.reopen()
    assert [d for _, d in spool.records()] == sent
    assert spool.synced == int(spool.shared.words[Field.WRITTEN_SEQUENCE])
    spool.crash()


def test_without_a_spare_nothing_changes(tmp_path: Path) -> None:
    """An appender without a next segment reports that, and goes on when there is one."""
    spool = SpoolFixture(tmp_path)
    spool.shared.words[Field.SPARE] = 0
    with pytest.raises(SpoolFull):
        spool.writer.append(frame_of(1024))
    assert spool.writer.base == 0
    spool.shared.words[Field.SPARE] = 1
    assert spool.writer.append(frame_of(1024)) == 0
    spool.crash()


def test_a_segment_of_nothing_but_discards_keeps_its_name(spool: SpoolFixture) -> None:
    """The segment behind one without messages has its own name: one number is skipped."""
    while spool.writer.number < 3:
        spool.append([], refused={1: (5, b"x" * 200)})
    spool.append(frame_of(1024))
    spool.step()
    refused = sum(s.refused().get(1, 0) for s in spool.segments())
    last = spool.segments()[-1].header
    assert refused == int(spool.writer.tail[DISCARDED + 1])
    assert last["discarded"][1] + spool.segments()[-1].refused().get(1, 0) == refused  # type: ignore[index]
    assert [spool.layout.segment(n).exists() for n in (0, 1, 2)] == [True] * 3
    spool.reopen()
    assert int(spool.writer.tail[DISCARDED + 1]) == refused
    assert len(spool.records()) == 1


def test_restarts_with_discards_only_keep_every_count(spool: SpoolFixture) -> None:
    """Clean stops after nothing but discards: no segment takes the place of another, no count is lost."""
    for _ in range(3):
        spool.append([], refused={2: (7, b"x")})
        spool.stop()
        spool.open()
    assert int(spool.writer.tail[DISCARDED + 2]) == 21
    assert sum(s.refused()[2] for s in spool.segments()) == 21


def test_frames_that_the_page_knows_are_missed(spool: SpoolFixture) -> None:
    """When announced frames are gone within one boot, their numbers are not used again."""
    sent = spool.fill(3)
    spool.crash()
    path = spool.layout.segment(0) if spool.layout.segment(0).exists() else spool.last_path()
    data = path.read_bytes()
    last = spool_offsets(spool)[-1]
    path.write_bytes(data[:last] + bytes(len(data) - last))
    spool.open()
    new = spool.fill(1)
    # The epoch's first number is the name of the empty segment that begins it.
    assert spool.records() == [*enumerate(sent[:6]), *enumerate(new, (1 << 32) + 1)]


def test_a_segment_named_meanwhile_is_found(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper renames the live segment while a new appender looks for it: it looks again."""
    sent = spool.fill(3)
    spool.writer.close()
    real, looks = writer.live_segment, []

    def look(layout: Layout) -> LiveSegment | None:
        found = real(layout)
        if not looks:
            spool.keeper.commit()
        looks.append(found)
        return found

    monkeypatch.setattr(writer, "live_segment", look)
    spool.writer = writer.Writer(spool.layout, spool.identity, spool.shared)
    assert len(looks) == 2
    sent += spool.fill(1)
    assert spool.records() == list(enumerate(sent))


def spool_offsets(spool: SpoolFixture) -> list[int]:
    """The offsets of the frames of the last segment."""
    return [frame.offset for frame in spool.segments()[-1].frames]


def mapped_kb(folder: Path) -> int:
    """The memory that this process has of the files in a folder."""
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    found = re.findall(rf"{re.escape(str(folder))}/.*?^Rss: +(\d+) kB", smaps, re.MULTILINE | re.DOTALL)
    return sum(map(int, found))


def test_what_is_written_is_let_go(tmp_path: Path) -> None:
    """Of 8 MiB the process keeps less than 2 in its memory; the file has all, and is appended to."""
    spool = SpoolFixture(tmp_path, segment_bytes=16 << 20, max_bytes=64 << 20)
    datagrams = [encode(b"t", b"%d" % number + bytes(63 << 10)) for number in range(128)]
    for datagram in datagrams:
        spool.append([datagram])
        spool.writer.let_go()
        assert mapped_kb(spool.layout.segments) < 2 << 10
    assert spool.writer.number == 1
    assert [datagram for _, datagram in spool.records()] == datagrams
