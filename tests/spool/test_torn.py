"""A torn tail: a crash costs the unfinished last frame, at whatever byte it was cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from spool.format.frame import BURST, MARK, POSITION, SEQUENCE, STORED
from spool.format.scan import read_header
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES
from spool.format.wire import encode
from spool.index.log_end import LiveSegment, end_of, live_segment
from spool.log.recovery import lost_end
from spool.read.backlog import Backlog
from spool.read.overview import take_totals
from spool.shared.runtime import shared_state_path
from tests.spool import plain
from tests.spool.fixture import SECTOR, SpoolFixture
from tests.spool.memory import Chain


@pytest.mark.parametrize("named", [False, True])
def test_nothing_behind_a_torn_frame_is_counted(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """A frame in its body, by one who knows the keys: no look at the dead spool finds it, nor a start."""
    monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(memory))
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"t", b"mine")])
    if named:
        spool.step()
    writer, planted = spool.writer, Chain(4096, 0, secret=spool.identity.secret)
    planted.tail[[SEQUENCE, BURST]] = 1, 1
    planted.append([encode(b"t", b"forged")], {}, (0, 0))
    frame = planted.memory[HEADER_BYTES : int(planted.tail[POSITION])]
    at = int(writer.tail[POSITION])
    assert writer._mapping
    writer._mapping.bytes[at + 8 : at + 12] = list(int(writer.tail[MARK]).to_bytes(4, "little"))
    body = at + HEAD_BYTES
    writer._mapping.bytes[body : body + len(frame)] = frame
    spool.crash()
    live = live_segment(spool.layout)
    assert live is not None
    # Without the shared state, as after a power loss, a right digest is all that can be asked for.
    assert take_totals(spool.layout, list).tail[STORED] == 2
    page = shared_state_path(memory, spool.identity.spool, spool.identity.boot)
    page.write_bytes((tmp_path / f"page-{spool.boot}-{spool.identity.spool.hex()}").read_bytes())
    page.chmod(0o640)
    assert take_totals(spool.layout, list).tail[STORED] == 1
    assert Backlog(spool.layout).look().topics == {b"t": 1}
    committed = end_of(live).tail
    found = lost_end(spool.layout, spool.identity.spool, committed)
    assert found is not None
    assert found[1][STORED] == 1


def torn_ends(path: Path, data: bytes) -> int:
    """How many messages both readers find when the segment has these bytes."""
    path.write_bytes(data)
    end = end_of(LiveSegment(path, read_header(path)))
    segment = plain.read_segment(data)
    assert end.tail[POSITION] == segment.end
    assert end.tail[STORED] == len(segment.messages())
    assert end.appendable
    return int(end.tail[STORED])


@pytest.fixture
def whole(spool: SpoolFixture, tmp_path: Path) -> tuple[bytes, list[plain.Frame], int, Path]:
    """(bytes of a segment of four frames, its frames, the end of the last one, a path to write to)."""
    spool.fill(4)
    data = spool.last_path().read_bytes()
    segment = plain.read_segment(data)
    return data, segment.frames, segment.end, tmp_path / "torn"


def test_every_cut_of_the_last_frame_leaves_the_frames_before(
    whole: tuple[bytes, list[plain.Frame], int, Path],
) -> None:
    """The last frame zeroed from any byte on, or the file cut there: exactly the others are left."""
    data, frames, end, path = whole
    start = frames[-1].offset
    body = int.from_bytes(data[start + 24 : start + 28], "little")
    for at in range(start, end):
        # Behind the digest's last byte only zeros are missing.
        kept = 12 if at >= start + 64 + body else 9
        assert torn_ends(path, data[:at] + bytes(len(data) - at)) == kept, at
        assert torn_ends(path, data[:at]) == 9, at


def test_every_start_of_the_last_frame_may_be_missing(
    whole: tuple[bytes, list[plain.Frame], int, Path],
) -> None:
    """The last frame's first bytes zeroed up to any byte: it is torn too."""
    data, frames, end, path = whole
    start = frames[-1].offset
    for at in range(start + 1, end):
        assert torn_ends(path, data[:start] + bytes(at - start) + data[at:]) == 9


def test_every_subset_of_sectors_of_the_last_frame(spool: SpoolFixture, tmp_path: Path) -> None:
    """For any set of sectors of the last frame on the disk, the frame is there whole or not at all."""
    spool.fill(2)
    spool.append([encode(b"t", bytes(range(256)) * 10)])
    data = spool.last_path().read_bytes()
    segment = plain.read_segment(data)
    start, end = segment.frames[-1].offset, segment.end
    sectors = range(start // SECTOR, (end + SECTOR - 1) // SECTOR)
    assert len(sectors) >= 5
    for kept in itertools.product((True, False), repeat=len(sectors)):
        changed = bytearray(data)
        for sector, keep in zip(sectors, kept, strict=True):
            first, last = max(start, sector * SECTOR), min(end, (sector + 1) * SECTOR)
            if not keep:
                changed[first:last] = bytes(last - first)
        assert torn_ends(tmp_path / "torn", bytes(changed)) == (7 if all(kept) else 6)


@pytest.mark.parametrize("cut", [1, 8, 9, 40, 64, 65, 100])
def test_the_log_goes_on_over_a_torn_frame(spool: SpoolFixture, cut: int) -> None:
    """After a restart the next frame has the place and the numbers of the torn one."""
    sent = spool.fill(3)
    path = spool.last_path()
    data = bytearray(path.read_bytes())
    last = plain.read_segment(bytes(data)).frames[-1]
    end = plain.read_segment(bytes(data)).end
    spool.crash()
    data[last.offset + cut : end] = bytes(end - last.offset - cut)
    path.write_bytes(data)
    # The shared state says that more was written, and so shows that the frame is gone: remove it, too.
    spool.shared.words[:] = 0
    spool.open()
    again = spool.fill(2)
    assert spool.records() == list(enumerate(sent[:6] + again))
