"""Appending: frames fill segments to the last byte, and continue in the next one."""

from __future__ import annotations

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
from tests.spool.rig import SEGMENT_BYTES, Rig

FIXED = HEAD_BYTES + 12 + len(encode(b"t", b""))
"""Bytes of a frame of one message without a value."""


def frame_of(size: int) -> list[bytes]:
    """One message whose frame takes at least `size` bytes (a multiple of 8), `size` - 7 unpadded."""
    return [encode(b"t", b"v" * (size - FIXED))]


@pytest.mark.parametrize("over", range(-9, 10))
def test_a_frame_around_the_size_of_what_is_left(rig: Rig, over: int) -> None:
    """A frame that fits to the byte stays in its segment; one byte more, and it begins the next one."""
    left = SEGMENT_BYTES - HEADER_BYTES - 1024
    rig.append(frame_of(1024))
    rig.append(frame_of(left + over))
    assert rig.writer.number == (1 if over <= 0 else 2)
    rig.append(frame_of(104))
    assert [sequence for sequence, _ in rig.records()] == [0, 1, 2]
    rig.reopen()
    assert [sequence for sequence, _ in rig.records()] == [0, 1, 2]
    assert rig.synced == 3


@pytest.mark.parametrize("over", range(-9, 10))
def test_a_frame_around_the_size_of_a_segment(rig: Rig, over: int) -> None:
    """A frame as large as an empty segment is appended; a larger one is refused, and nothing breaks."""
    rig.append(frame_of(1024))
    rig.step()
    whole = frame_of(SEGMENT_BYTES - HEADER_BYTES + over)
    if over <= 0:
        assert rig.writer.append(whole) == 1
        assert rig.writer.tail[POSITION] == (SEGMENT_BYTES if over > -8 else SEGMENT_BYTES - 8)
    else:
        with pytest.raises(SpoolFull):
            rig.writer.append(whole)
    rig.step()
    count = len(rig.records())
    rig.append(frame_of(104))
    rig.reopen()
    assert len(rig.records()) == count + 1


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2000), max_size=3), max_size=30),
    st.integers(SEGMENT_BYTES - 9, SEGMENT_BYTES + 9),
)
def test_any_frames_in_segments_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, frames: list[list[int]], segment_bytes: int
) -> None:
    """With messages of any size, and segments of odd sizes: all are there, in order, after a crash."""
    rig = Rig(tmp_path_factory.mktemp("rig"), segment_bytes=segment_bytes)
    sent = []
    for i, sizes in enumerate(frames):
        burst = [encode(b"t", b"%d" % i + b"v" * size) for size in sizes]
        rig.step()
        rig.append(burst, refused={} if burst else {1: (1, b"x")})
        sent += burst
    rig.reopen()
    assert [d for _, d in rig.records()] == sent
    assert rig.synced == int(rig.shared.words[Field.WRITTEN_SEQUENCE])
    rig.crash()


def test_without_a_spare_nothing_changes(tmp_path: Path) -> None:
    """An appender without a next segment reports that, and goes on when there is one."""
    rig = Rig(tmp_path)
    rig.shared.words[Field.SPARE] = 0
    with pytest.raises(SpoolFull):
        rig.writer.append(frame_of(1024))
    assert rig.writer.base == 0
    rig.shared.words[Field.SPARE] = 1
    assert rig.writer.append(frame_of(1024)) == 0
    rig.crash()


def test_a_segment_of_nothing_but_discards_keeps_its_name(rig: Rig) -> None:
    """The segment behind one without messages has its own name: one number is skipped."""
    while rig.writer.number < 3:
        rig.append([], refused={1: (5, b"x" * 200)})
    rig.append(frame_of(1024))
    rig.step()
    refused = sum(s.refused().get(1, 0) for s in rig.segments())
    last = rig.segments()[-1].header
    assert refused == int(rig.writer.tail[DISCARDED + 1])
    assert last["discarded"][1] + rig.segments()[-1].refused().get(1, 0) == refused  # type: ignore[index]
    assert [rig.layout.segment(n).exists() for n in (0, 1, 2)] == [True] * 3
    rig.reopen()
    assert int(rig.writer.tail[DISCARDED + 1]) == refused
    assert len(rig.records()) == 1


def test_restarts_with_discards_only_keep_every_count(rig: Rig) -> None:
    """Clean stops after nothing but discards: no segment takes the place of another, no count is lost."""
    for _ in range(3):
        rig.append([], refused={2: (7, b"x")})
        rig.stop()
        rig.open()
    assert int(rig.writer.tail[DISCARDED + 2]) == 21
    assert sum(s.refused()[2] for s in rig.segments()) == 21


def test_frames_that_the_page_knows_are_missed(rig: Rig) -> None:
    """When announced frames are gone within one boot, their numbers are not used again."""
    sent = rig.fill(3)
    rig.crash()
    path = rig.layout.segment(0) if rig.layout.segment(0).exists() else rig.last_path()
    data = path.read_bytes()
    last = rig_offsets(rig)[-1]
    path.write_bytes(data[:last] + bytes(len(data) - last))
    rig.open()
    new = rig.fill(1)
    assert rig.records() == [*enumerate(sent[:6]), *enumerate(new, 1 << 32)]


def test_a_segment_named_meanwhile_is_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper renames the live segment while a new appender looks for it: it looks again."""
    sent = rig.fill(3)
    rig.writer.close()
    real, looks = writer.live_segment, []

    def look(layout: Layout) -> LiveSegment | None:
        found = real(layout)
        if not looks:
            rig.keeper.commit()
        looks.append(found)
        return found

    monkeypatch.setattr(writer, "live_segment", look)
    rig.writer = writer.Writer(rig.layout, rig.identity, rig.shared)
    assert len(looks) == 2
    sent += rig.fill(1)
    assert rig.records() == list(enumerate(sent))


def rig_offsets(rig: Rig) -> list[int]:
    """The offsets of the frames of the last segment."""
    return [frame.offset for frame in rig.segments()[-1].frames]
