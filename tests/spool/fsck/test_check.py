"""Checking a spool: each kind of damage is found under its name, and nothing is written."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spool.errors import NoSpool
from spool.format.damage import ranges
from spool.format.segment_format import VERSION, decode_header
from spool.format.wire import Reason
from spool.fsck.check import Check, Resolved, look_up
from spool.fsck.finding import Kind, Severity
from spool.index.log_end import EPOCH
from spool.layout import SENT, SPARE, Layout, segment_name
from spool.storage.ab_slots import SLOTS_BYTES
from tests.spool import plain
from tests.spool.fixture import SpoolFixture
from tests.spool.fsck.checked import check, damages, flip, frames_of, patch, path_of, rewrite_header


@pytest.mark.parametrize(
    ("found", "words", "left"),
    [
        (Resolved(11, 11, 0), ", all delivered before", 0),
        (Resolved(1, 1, 0), ", delivered before", 0),
        (Resolved(11, 4, 0), ", 4 of them delivered before", 7),
        (Resolved(11, 4, 3), ", 7 of them delivered or discarded before", 4),
        (Resolved(11, 0, 0), "", 11),
        (Resolved(0, 0, 0), "", 0),
    ],
)
def test_words(found: Resolved, words: str, left: int) -> None:
    """Nothing is said where none is known to have been delivered."""
    assert (found.words(), found.left) == (words, left)


def test_a_count_that_no_spool_has(tmp_path: Path) -> None:
    """A damaged header may count any number: no memory is taken for it. Without marks nothing is known."""
    layout = Layout(tmp_path)
    assert look_up(layout, [ranges((0, 1 << 60)), ranges()]) == [Resolved(1 << 60, 0, 0), Resolved(0, 0, 0)]
    assert look_up(layout, [ranges((0, 3), (7, 2)), ranges()]) == [Resolved(5, 0, 0), Resolved(0, 0, 0)]


Spoil = Callable[[Layout], object]


def state_of(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Content and times of every file."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        )
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_sound_spool_has_no_findings(layout: Layout) -> None:
    """The check looks at everything, finds nothing, and writes nothing."""
    before = state_of(layout.directory)
    one = Check()
    assert list(one.spool(layout)) == []
    assert state_of(layout.directory) == before
    segments = [path_of(layout, at) for at in range(len(layout.list_segments()))]
    assert one.totals.segments == len(segments)
    assert (
        one.totals.messages
        == sum(len(plain.read_segment(p.read_bytes()).messages()) for p in segments)
        == 270
    )
    assert one.totals.frames == 90
    assert one.totals.bytes == sum(path.stat().st_size for path in segments)


def test_progress_is_told(layout: Layout) -> None:
    """After each segment the totals are shown."""
    seen: list[int] = []
    list(Check(lambda totals: seen.append(totals.segments)).spool(layout))
    assert seen == list(range(1, len(layout.list_segments()) + 1))


def test_a_new_spool_has_no_findings(memory: Path) -> None:
    """Spares are no damage, and no segment."""
    spool = SpoolFixture(memory / "new")
    spool.crash()
    one = Check()
    assert list(one.spool(spool.layout)) == []
    assert one.totals.segments == 0


def test_no_spool(tmp_path: Path) -> None:
    """A directory that holds no spool is named."""
    with pytest.raises(NoSpool):
        check(Layout(tmp_path))


def test_a_copy_without_its_index(layout: Layout, tmp_path: Path) -> None:
    """Index, marks and ledger may be absent."""
    copy = tmp_path / "copy"
    shutil.copytree(layout.segments, copy / "segments")
    found = check(Layout(copy))
    assert [(f.kind, f.severity) for f in found] == [(Kind.IDENTITY, Severity.NOTE)]


def _spoil_frame(layout: Layout) -> None:
    path = path_of(layout, 1)
    flip(path, frames_of(path)[2].offset + 80)


def _zero_frame(layout: Layout) -> None:
    path = path_of(layout, 1)
    one = frames_of(path)[2]
    patch(path, one.offset, bytes(frames_of(path)[3].offset - one.offset))


def _spoil_last_frame(layout: Layout) -> None:
    path = path_of(layout, 1)
    flip(path, frames_of(path)[-1].offset + 80)


def _stale_frame(layout: Layout) -> None:
    path = path_of(layout, 1)
    first, second, third = frames_of(path)[1:4]
    assert third.offset - second.offset == second.offset - first.offset
    patch(path, second.offset, path.read_bytes()[first.offset : second.offset])


def _cut_sealed(layout: Layout) -> None:
    path = path_of(layout, 1)
    os.truncate(path, frames_of(path)[-1].offset)


def _zero_footer(layout: Layout) -> None:
    path = path_of(layout, 1)
    flip(path, path.stat().st_size - 40)


def _header(layout: Layout) -> None:
    flip(path_of(layout, 1), 60)


def _version(layout: Layout) -> None:
    rewrite_header(path_of(layout, 1), version=VERSION + 1)


def _remove(layout: Layout) -> None:
    path_of(layout, 2).unlink()


def _swap(layout: Layout) -> None:
    one, other = path_of(layout, 1), path_of(layout, 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _rename(layout: Layout) -> None:
    path = path_of(layout, 1)
    path.rename(path.with_name(segment_name(int(path.stem) + 1, path.suffix)))


def _foreign(layout: Layout) -> None:
    rewrite_header(path_of(layout, 1), spool=bytes(16))


def _previous(layout: Layout) -> None:
    rewrite_header(path_of(layout, 3), burst=0)


def _discarded(layout: Layout) -> None:
    header = decode_header(path_of(layout, 3).read_bytes(), "")
    counts = header["discarded"].copy()
    counts[3] += 1
    rewrite_header(path_of(layout, 3), discarded=counts)


def _directory(layout: Layout) -> None:
    path = path_of(layout, 1)
    path.unlink()
    path.mkdir()


def _identity(layout: Layout) -> None:
    layout.identity.write_bytes(b"no uuid at all\n")


def _ledger(layout: Layout) -> None:
    layout.ledger.write_bytes(b"x" * SLOTS_BYTES)


def _short_ledger(layout: Layout) -> None:
    layout.ledger.write_bytes(b"x" * 100)


def _cut_index(layout: Layout) -> None:
    os.truncate(layout.index / "data.mdb", 8192)


def _garbage_index(layout: Layout) -> None:
    (layout.index / "data.mdb").write_bytes(random.Random(1).randbytes(65536))


def _cut_marks(layout: Layout) -> None:
    os.truncate(layout.delivery / "data.mdb", 8192)


SPOILED = [
    pytest.param(_spoil_frame, [Kind.FRAME], id="flipped bit in a frame"),
    pytest.param(_zero_frame, [Kind.FRAME], id="zeros for a frame"),
    pytest.param(_spoil_last_frame, [Kind.FRAME], id="flipped bit in the last frame"),
    pytest.param(_stale_frame, [Kind.CHAIN], id="the frame before in place of a frame"),
    pytest.param(_cut_sealed, [Kind.MISSING], id="a sealed segment cut at a frame"),
    pytest.param(_zero_footer, [Kind.FOOTER], id="flipped bit in a footer"),
    pytest.param(_header, [Kind.HEADER], id="flipped bit in a header"),
    pytest.param(_version, [Kind.VERSION], id="newer version"),
    pytest.param(_remove, [Kind.MISSING], id="a segment gone"),
    pytest.param(_swap, [Kind.NAME, Kind.NAME], id="two segments swapped"),
    pytest.param(_rename, [Kind.NAME], id="a segment renamed"),
    pytest.param(_foreign, [Kind.FOREIGN], id="another spool's segment"),
    pytest.param(_previous, [Kind.ORDER], id="a header that does not continue"),
    pytest.param(_discarded, [Kind.ORDER], id="a header that counts otherwise"),
    pytest.param(_directory, [Kind.UNREADABLE], id="a directory for a segment"),
    pytest.param(_identity, [Kind.IDENTITY], id="no uuid in the identity"),
    pytest.param(_ledger, [Kind.LEDGER], id="garbage for the ledger"),
    pytest.param(_short_ledger, [Kind.LEDGER], id="a short ledger"),
    pytest.param(_cut_index, [Kind.INDEX], id="the index cut off"),
    pytest.param(_garbage_index, [Kind.INDEX], id="garbage for the index"),
    pytest.param(_cut_marks, [Kind.MARKS], id="the marks cut off"),
]


@pytest.mark.parametrize(("spoil", "kinds"), SPOILED)
def test_damage_is_found_under_its_name(layout: Layout, spoil: Spoil, kinds: list[Kind]) -> None:
    """Each kind of damage, in the file where it is, and only its consequences beside it."""
    spoil(layout)
    before = state_of(layout.directory)
    found = check(layout)
    names = [kind for kind, _ in damages(found)]
    for kind in kinds:
        assert names.count(kind) >= kinds.count(kind), found
    # Consequences may be reported, too: missing segments, a wrong order, or void marks.
    assert set(names) <= {*kinds, Kind.MISSING, Kind.ORDER, Kind.MARKS}, found
    assert all(f.sentence and "\n" not in f.sentence for f in found)
    assert state_of(layout.directory) == before


def test_where_and_how_much(layout: Layout) -> None:
    """A finding gives the offset, and the first and number of the lost messages."""
    path = path_of(layout, 1)
    frame, behind = frames_of(path)[2:4]
    flip(path, frame.offset + 80)
    (found,) = check(layout)
    assert (found.path, found.offset) == (path, frame.offset)
    assert found.sentence == (
        f"{behind.offset - frame.offset} bytes hold no good frame; "
        f"3 messages from {frame.sequence} on cannot be read"
    )


def test_a_new_epoch_is_no_gap(spool: SpoolFixture) -> None:
    """Behind an unclean boot the numbers go on at a multiple of 2^32."""
    spool.fill(20)
    spool.crash()
    spool.boot += 1
    spool.open()
    spool.fill(20)
    spool.step()
    spool.crash()
    assert spool.layout.list_segments()[-1][0] >= EPOCH
    assert damages(check(spool.layout)) == []


def test_segments_without_messages(spool: SpoolFixture) -> None:
    """Frames with discards alone, and the number that is skipped behind them, are sound."""
    for _ in range(60):
        spool.append([], refused={int(Reason.SHORT): (1, b"x" * 256)})
        spool.step()
    spool.fill(3)
    spool.stop()
    assert len(spool.layout.list_segments()) > 2
    assert check(spool.layout) == []


def test_a_spare_with_a_torn_header(layout: Layout) -> None:
    """A spare that was to be taken into use at the moment of the crash is a spare."""
    spare = layout.segment(layout.list_spares()[-1], SPARE)
    flip(spare, 100)
    assert check(layout) == []


def test_a_segment_that_is_retired_meanwhile(layout: Layout) -> None:
    """A segment renamed to sent, or removed, between the listing and the look is no damage."""
    first, second = path_of(layout, 0), path_of(layout, 1)
    shutil.rmtree(layout.delivery)
    found = Check().spool(layout)
    listed = layout.list_segments()

    class Moving(Layout):
        def list_segments(self) -> list[tuple[int, str]]:
            if first.exists():
                first.unlink()
                second.rename(second.with_suffix(SENT))
            return listed

    found = Check().spool(Moving(layout.directory))
    assert damages(list(found)) == []


# -- files by themselves ------------------------------------------------------------------------------
