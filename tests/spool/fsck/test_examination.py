"""A segment file, examined by itself: any bytes, its neighbours, and a name that changes under the look."""

from __future__ import annotations

import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.format.segment_format import HEADER_BYTES
from spool.fsck.check import Check
from spool.fsck.examination import Examination
from spool.fsck.finding import Finding, Kind, Severity
from spool.index.log_end import read_footer
from spool.layout import SENT, SPARE, Layout
from tests.spool.fixture import SpoolFixture
from tests.spool.fsck.checked import check, damages, flip, frames_of, patch, path_of, rewrite_header


def test_every_flipped_bit_is_found(layout: Layout) -> None:
    """A flipped bit anywhere in a sealed segment, except in padding, which is never read."""
    path, chance = path_of(layout, 1), random.Random(7)
    data = path.read_bytes()
    with path.open("rb") as file:
        footer = read_footer(file.fileno())
    assert footer is not None
    ends = [frame.offset for frame in frames_of(path)[1:]] + [int(footer.fields["end"])]
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


def test_what_is_no_datagram(spool: SpoolFixture) -> None:
    """A frame with a right digest must hold datagrams."""
    spool.append([b"this is none"])
    spool.fill(1)
    spool.crash()
    found = check(spool.layout)
    assert [kind for kind, _ in damages(found)] == [Kind.DATAGRAM]
    assert found[0].offset == HEADER_BYTES


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
