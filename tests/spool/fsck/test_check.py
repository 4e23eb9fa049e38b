"""Checking a spool: each kind of damage is found under its name, and nothing is written.

These are the tests of `spool.fsck.examination`, `spool.fsck.finding` and `spool.fsck.metadata_check`, too.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from spool.errors import NoSpool
from spool.format.damage import ranges
from spool.format.segment_format import HEADER, HEADER_BYTES, decode_header
from spool.format.wire import Reason
from spool.fsck import metadata_check
from spool.fsck.check import Check, Resolved, look_up
from spool.fsck.examination import Examination
from spool.fsck.finding import Finding, Kind, Severity
from spool.index.identity import read_identity
from spool.index.log_end import EPOCH, read_footer
from spool.index.segment_list import SegmentList
from spool.layout import SENT, SPARE, Layout, segment_name
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.marks.outcome_file import write_outcomes
from spool.native.digest import digest
from spool.shared.ledger import Ledger
from spool.storage.ab_slots import SLOTS_BYTES
from tests.spool import plain
from tests.spool.fixture import SpoolFixture


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


@pytest.fixture
def layout(spool: SpoolFixture) -> Layout:
    """Five segments, most of them sealed, with marks and an index, and no process at work."""
    for _ in range(30):
        spool.fill(3)
        spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    bitmap = np.zeros(2008, np.uint8)
    bitmap[0] = 0b1010
    number = marks.segment_list.segments[2].number
    low_watermark = marks.segment_list.segments[1].first_sequence
    marks.commit(
        Changes(
            low_watermark=low_watermark,
            chunks={(number, 0): bitmap},
            offsets={1: low_watermark, -1: low_watermark},
        )
    )
    marks.close()
    spool.crash()
    assert len(spool.layout.list_segments()) == 5
    return spool.layout


def check(layout: Layout) -> list[Finding]:
    """The findings of a check of a whole spool."""
    return list(Check().spool(layout))


def damages(found: list[Finding]) -> list[tuple[Kind, str]]:
    """(kind, file name) of the damage."""
    return [(f.kind, f.path.name) for f in found if f.severity is Severity.DAMAGE]


def path_of(layout: Layout, at: int) -> Path:
    """The path of a segment by its place."""
    return layout.segment(*layout.list_segments()[at])


def patch(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit."""
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))


def frames_of(path: Path) -> list[plain.Frame]:
    """The frames of a segment, as the second reader sees them."""
    return plain.read_segment(path.read_bytes()).frames


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


def rewrite_header(path: Path, **fields: object) -> None:
    """Change header fields, and set a right check."""
    record = np.frombuffer(path.read_bytes()[:HEADER_BYTES], HEADER).copy()
    for name, value in fields.items():
        record[name] = value
    record["check"] = digest(record.tobytes()[:-8])
    patch(path, 0, record.tobytes())


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
    rewrite_header(path_of(layout, 1), version=3)


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


def test_every_flipped_bit_is_found(layout: Layout) -> None:
    """A flipped bit anywhere in a sealed segment, except in padding, which is never read."""
    path, chance = path_of(layout, 1), random.Random(7)
    data = path.read_bytes()
    with path.open("rb") as file:
        footer = read_footer(file.fileno())
    assert footer is not None
    ends = [frame.offset for frame in frames_of(path)[1:]] + [int(footer[0]["end"])]
    padding = {at for end in ends for at in range(end - 8, end) if not any(data[at:end])}
    places = [at for at in range(len(data)) if at not in padding]
    for at in chance.sample(places, 300):
        flip(path, at, bit := chance.randrange(8))
        assert damages(list(Check().files([path]))), at
        flip(path, at, bit)
    assert check(layout) == []


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_torn_end_is_no_damage(layout: Layout, share: float) -> None:
    """An unfinished frame at the end of the last segment is left by a crash: a note."""
    path = path_of(layout, -1)
    last = frames_of(path)[-1]
    # As if it had never been committed.
    shutil.rmtree(layout.index)
    end = len(path.read_bytes().rstrip(b"\0"))
    cut = last.offset + max(1, int((end - last.offset) * share))
    patch(path, cut, bytes(end - cut))
    found = check(layout)
    assert [(f.kind, f.severity, f.path, f.offset) for f in found] == [
        (Kind.TORN, Severity.NOTE, path, last.offset)
    ]


def test_committed_messages_that_are_gone(layout: Layout) -> None:
    """The index knows the synced end: a log that ends before it is damaged, torn or not."""
    path = path_of(layout, -1)
    last = frames_of(path)[-1]
    patch(path, last.offset, bytes(path.stat().st_size - last.offset))
    (found,) = check(layout)
    assert (found.kind, found.path, found.offset) == (Kind.MISSING, path, last.offset)
    assert found.sentence == "gone from its end, though committed: 3 messages"


def test_the_last_segment_is_gone(layout: Layout) -> None:
    """The index knows of it."""
    path_of(layout, -1).unlink()
    assert damages(check(layout)) == [(Kind.MISSING, path_of(layout, -1).name)]


def test_delivered_messages_that_are_gone(layout: Layout) -> None:
    """Marks beyond the end of the log show that it was longer."""
    shutil.rmtree(layout.index)
    end = Examination(path_of(layout, -1), last=True)
    assert list(end.findings()) == []
    marks = Marks(layout.delivery, SegmentList(layout))
    marks.commit(Changes(low_watermark=int(end.tail[1]) + 5))
    marks.close()
    (found,) = check(layout)
    assert found.kind is Kind.MISSING
    assert "are marked as delivered; the log ends before" in found.sentence


def test_outcome_files(layout: Layout) -> None:
    """A file that has yet to be imported is a note; one that never can be is damage, with the reason."""
    outcomes = layout.outcomes / "job"
    outcomes.mkdir(parents=True)
    uuid, reasons = read_identity(layout), np.zeros(3, np.int32)
    whole = write_outcomes(outcomes, "1-whole", uuid, np.arange(3), reasons)
    foreign = write_outcomes(outcomes, "2-foreign", bytes(16), np.arange(3), reasons)
    beyond = write_outcomes(outcomes, "3-beyond", uuid, (1 << 40) + np.arange(3), reasons)
    damaged = write_outcomes(outcomes, "4-damaged", uuid, np.arange(3), reasons)
    flip(damaged, damaged.stat().st_size - 12)
    found = check(layout)
    assert {f.kind for f in found} == {Kind.OUTCOMES}
    assert {f.path: (f.severity, f.sentence) for f in found} == {
        whole: (
            Severity.NOTE,
            "a job has written down what became of 3 messages; the marks get it from the daemon, "
            "`brucectl drain` or the next job",
        ),
        foreign: (Severity.DAMAGE, f"it is of the spool {bytes(16).hex()}, and not of this one"),
        beyond: (Severity.DAMAGE, "it speaks of messages that were never stored"),
        damaged: (
            Severity.DAMAGE,
            "it is damaged; remove it: what it called delivered will be sent again",
        ),
    }


def test_marks_of_other_segments(layout: Layout) -> None:
    """Rows that do not match their segment, as after a restored snapshot, count for nothing; one finding."""
    path = path_of(layout, 2)
    rewrite_header(path, created_ns=1)
    (found,) = check(layout)
    assert (found.kind, found.path) == (Kind.MARKS, layout.delivery / "data.mdb")
    assert found.sentence.startswith("rows do not match their segments: 1 of 'mark'")


def test_an_entry_that_leads_nowhere(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of the index must lead to the frame that it names."""
    found = metadata_check.read_index(layout.index)
    assert found is not None
    committed, entries = found
    first, number, offset, before, burst = entries[-1]
    monkeypatch.setattr(
        metadata_check,
        "read_index",
        lambda _: (committed, [*entries[:-1], (first + 1, number, offset, before, burst)]),
    )
    assert damages(check(layout)) == [(Kind.INDEX, "data.mdb")]


def test_a_committed_place_between_frames(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed end must be the end of a frame."""
    found = metadata_check.read_index(layout.index)
    assert found is not None
    assert found[0] is not None
    (number, tail), entries = found[0], found[1]
    tail[0] -= 8
    monkeypatch.setattr(metadata_check, "read_index", lambda _: ((number, tail), entries))
    assert damages(check(layout)) == [(Kind.INDEX, "data.mdb")]


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


def test_a_ledger_that_counts(spool: SpoolFixture) -> None:
    """A ledger with entries is read like one without."""
    ledger = Ledger(spool.layout.ledger)
    ledger.begin()
    ledger.commit(1)
    spool.crash()
    assert check(spool.layout) == []


def test_what_is_no_datagram(spool: SpoolFixture) -> None:
    """A frame with a right digest must hold datagrams."""
    spool.append([b"this is none"])
    spool.fill(1)
    spool.crash()
    found = check(spool.layout)
    assert [kind for kind, _ in damages(found)] == [Kind.DATAGRAM]
    assert found[0].offset == HEADER_BYTES


def test_a_spare_with_a_torn_header(layout: Layout) -> None:
    """A spare that was to be taken into use at the moment of the crash is a spare."""
    spare = layout.segment(layout.list_spares()[-1], SPARE)
    flip(spare, 100)
    assert check(layout) == []


def test_a_segment_that_has_no_name_yet(spool: SpoolFixture) -> None:
    """One in use, and not yet synced, is checked like the others."""
    spool.fill(3)
    spool.crash()
    (number,) = [
        n
        for n in spool.layout.list_spares()
        if spool.layout.segment(n, SPARE).read_bytes()[384:392] != bytes(8)
    ]
    path = spool.layout.segment(number, SPARE)
    one = Check()
    assert list(one.spool(spool.layout)) == []
    assert one.totals.messages == 9
    flip(path, frames_of(path)[1].offset + 70)
    assert damages(check(spool.layout)) == [(Kind.FRAME, path.name)]


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


@pytest.mark.parametrize("removed", [False, True])
def test_a_segment_that_is_retired_under_the_look(
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    removed: bool,  # noqa: FBT001  (a parameter of the test)
) -> None:
    """The same between two times that one look opens it; what is left counts once."""
    shutil.rmtree(layout.delivery)
    path, head = path_of(layout, 0), Examination._head
    first = Examination(path, last=False)
    assert list(first.findings()) == []

    def late(self: Examination) -> Iterator[Finding]:
        if removed and self.path == path:
            path.unlink()
        elif self.path == path:
            path.rename(path.with_suffix(SENT))
        return head(self)

    monkeypatch.setattr(Examination, "_head", late)
    one = Check()
    assert damages(list(one.spool(layout))) == []
    assert one.totals.messages == 270 - removed * first.totals.messages


# -- files by themselves ------------------------------------------------------------------------------


def test_bare_files(layout: Layout, tmp_path: Path) -> None:
    """Segment files in any order, under any name, without anything beside them."""
    paths = []
    for number, pair in enumerate(layout.list_segments()):
        paths.append(tmp_path / f"{9 - number}.bin")
        shutil.copy(layout.segment(*pair), paths[-1])
    one = Check()
    assert list(one.files(paths)) == []
    assert one.totals.messages == 270
    # A file that is not among them is not missing.
    assert list(Check().files([paths[0], paths[3]])) == []
    patch(paths[2], 64, b"\0" * 8)
    assert damages(list(Check().files(paths)))[0] == (Kind.HEADER, paths[2].name)


def test_neighbours_are_held_together(layout: Layout) -> None:
    """Of two files that follow one another the second must continue the first."""
    rewrite_header(path_of(layout, 2), stored=10**6)
    found = list(Check().files([path_of(layout, 2), path_of(layout, 1)]))
    assert [kind for kind, _ in damages(found)] == [Kind.MISSING]


@pytest.mark.parametrize(
    "data", [b"", b"x" * 100, b"bruceseg" + bytes(100), bytes(70_000), random.Random(3).randbytes(70_000)]
)
def test_no_segment(tmp_path: Path, data: bytes) -> None:
    """Any file is checked to its end, and reported as no segment."""
    path = tmp_path / "file"
    path.write_bytes(data)
    assert damages(list(Check().files([path]))) == [(Kind.HEADER, "file")]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """A file that the system refuses is a finding; a missing one is an error."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    assert damages(list(Check().files([path]))) == [(Kind.UNREADABLE, "socket")]
    with pytest.raises(FileNotFoundError):
        list(Check().files([tmp_path / "nothing"]))


def test_frames_behind_a_damaged_header(layout: Layout) -> None:
    """The messages are counted all the same."""
    path = path_of(layout, 1)
    whole = Check()
    list(whole.files([path]))
    flip(path, 20)
    one = Check()
    assert damages(list(one.files([path]))) == [(Kind.HEADER, path.name)]
    assert one.totals.messages == whole.totals.messages


def test_random_damage_never_ends_the_check(layout: Layout) -> None:
    """For any bytes the check has findings, and no exception."""
    chance = random.Random(11)
    files = [path for path in layout.directory.rglob("*") if path.is_file() and path.suffix != ".mdb"]
    originals = {path: path.read_bytes() for path in files}
    for _ in range(40):
        path = chance.choice(files)
        data = bytearray(originals[path])
        for _ in range(chance.randrange(1, 6)):
            start = chance.randrange(len(data)) if data else 0
            length = chance.randrange(1, 4000)
            kind = chance.randrange(3)
            if kind == 0:
                data[start : start + length] = chance.randbytes(length)
            elif kind == 1:
                del data[start : start + length]
            else:
                data[start:start] = data[:length]
        path.write_bytes(data)
        assert isinstance(check(layout), list)
        path.write_bytes(originals[path])
    assert check(layout) == []
