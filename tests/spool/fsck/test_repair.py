"""A repair by hand: killed anywhere, beside others, of a file by itself; and the index rebuilt."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from spool.errors import BadSpool, SpoolBusy
from spool.format.frame import SEQUENCE
from spool.format.scan import read_header
from spool.format.segment import seal
from spool.fsck.check import Check
from spool.fsck.finding import Kind, Severity
from spool.fsck.repair import Action, Mode, apply, copy_file, plan, plan_file, reindex
from spool.index.committed import read_committed
from spool.index.log_end import read_footer
from spool.layout import Layout
from spool.storage import failpoint
from spool.storage.failpoint import POINTS
from spool.storage.lock import Lock
from tests.gallery import kinds
from tests.gallery.good import Good
from tests.gallery.kinds import LATER, SEALED, Copy, flip
from tests.gallery.test_gallery import judge
from tests.gallery.trial import KILLED_IN, NEXT, booted, damaged, start, state_of
from tests.spool import plain
from tests.spool.reads import count_reads
from tests.spool.stored import pack_file

WORST = (kinds.flipped_value, kinds.swapped, kinds.marks_cut)


def worst(good: Good, home: Path) -> tuple[Copy, frozenset[int]]:
    """A copy with damage of several kinds."""
    copy = Copy(good.copy(home), good)
    return copy, frozenset().union(*(spoil(copy) for spoil in WORST))


@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith("repair.")] + ["recover.moving"])
def test_a_repair_that_is_killed_is_done_again(good: Good, home: Path, point: str) -> None:
    """SIGKILL at each place: nothing is worse than before, and another repair ends it."""
    copy, hit = worst(good, home)
    points = home / "points"
    points.write_text(f"{point}\n")
    child = os.fork()
    if child == 0:
        failpoint.ARMED = str(points)
        with booted(KILLED_IN):
            apply(copy.layout, Mode.SKIP_DAMAGED)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    before = home.with_name("between")
    shutil.copytree(home, before)
    judge(good, kinds.flipped_value, hit, start(before, KILLED_IN))
    with booted(KILLED_IN):
        apply(copy.layout, Mode.SKIP_DAMAGED)
        assert [one for one in plan(copy.layout) if one.action is not Action.NONE] == []
    assert (copy.layout.quarantine / "data.mdb").stat().st_size == 8192
    judge(good, kinds.flipped_value, hit, start(home, NEXT))


@pytest.mark.parametrize("spoil", [kinds.leftovers, kinds.cut_at_frame])
def test_a_plan_reads_a_spool_once(
    good: Good, home: Path, spoil: kinds.Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of each segment are read once, those of a packed one, too."""
    layout, _ = damaged(good, spoil, home)
    counts = count_reads(monkeypatch)
    plan(layout)
    # Behind the frames of the one in use it is looked for more.
    for name, frames in zip(good.names[:-1], good.frames[:-1], strict=True):
        read = counts[name] or counts[f"memfd:{name} (deleted)"]
        assert 1000 < read < 1.5 * frames[-1].offset, counts


@pytest.mark.parametrize("name", ["lock", "owner"])
def test_no_repair_beside_others(good: Good, home: Path, name: str) -> None:
    """In a spool that a daemon has, or that a job delivers from, nothing is touched."""
    copy, _ = worst(good, home)
    before = state_of(copy.layout.directory)
    lock = Lock(getattr(copy.layout, name), "held by a test")
    try:
        with pytest.raises(SpoolBusy, match=str(os.getpid())):
            apply(copy.layout, Mode.SKIP_DAMAGED)
        if name == "lock":
            with pytest.raises(SpoolBusy):
                reindex(copy.layout)
    finally:
        lock.release()
    assert state_of(copy.layout.directory) == before


@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith("seal.")])
def test_a_kill_while_a_segment_is_sealed(good: Good, home: Path, point: str) -> None:
    """At each place: verify has nothing to say, and a repair that loses nothing writes the footer."""
    layout = good.copy(home)
    path = layout.segments / good.names[SEALED]
    whole = path.read_bytes()
    with path.open("rb") as file:
        footer = read_footer(file.fileno())
    assert footer
    path.write_bytes(whole[: int(footer.fields["end"])] + bytes(2 * len(whole)))
    points = home / "points"
    points.write_text(f"{point}\n")
    child = os.fork()
    if child == 0:
        failpoint.ARMED = str(points)
        seal(path)
        failpoint.reach("seal.synced")
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert [one for one in Check().spool(layout) if one.severity is not Severity.NOTE] == []
    steps = plan(layout)
    assert {(one.mode, one.action, one.path) for one in steps} <= {(Mode.STRICT, Action.SEAL, path)}
    with booted(KILLED_IN):
        apply(layout, Mode.STRICT)
    assert path.read_bytes() == whole
    assert plan(layout) == []


@pytest.mark.parametrize("back", [10, 40, 100, 200])
def test_a_packed_segment_is_not_sealed_again(good: Good, home: Path, back: int) -> None:
    """A repair that loses nothing leaves it alone, wherever its footer is damaged."""
    layout = good.copy(home)
    path = layout.segments / good.names[SEALED]
    pack_file(path)
    flip(path, path.stat().st_size - back)
    before = path.read_bytes()
    assert Action.SEAL not in {one.action for one in plan(layout)}
    with booted(KILLED_IN):
        apply(layout, Mode.STRICT)
    assert path.read_bytes() == before


def test_what_is_lost_is_known_afterwards(good: Good, home: Path) -> None:
    """A hole replaces the lost frame, all else is in its place; later damage is distinguished from it."""
    layout, hit = damaged(good, kinds.flipped_value, home)
    path = layout.segments / good.names[SEALED]
    (step,) = plan(layout)
    assert (step.action, step.kept) == (Action.REWRITE, 60 - len(hit))
    assert step.lost.tolist() == [[min(hit), len(hit)]]
    original = path.read_bytes()
    with booted(KILLED_IN):
        apply(layout, Mode.SKIP_DAMAGED)
    assert (layout.quarantine / f"{path.name}.damaged").read_bytes() == original
    found = [one for one in Check().spool(layout) if one.kind is not Kind.OUTCOMES]
    assert [(one.kind, one.severity, one.path) for one in found] == [(Kind.GAP, Severity.NOTE, path)]
    assert found[0].sentence == f"a repair left a gap for 3 messages from {min(hit)} on"
    assert len(path.read_bytes()) == len(original)
    flip(path, good.frames[SEALED][-2].offset + 100)
    assert [one.action for one in plan(layout)] == [Action.REWRITE]


def test_an_index_built_by_hand(good: Good, home: Path) -> None:
    """It says what the keeper's said; the old one is in quarantine."""
    layout = good.copy(home)
    before = read_committed(layout.index)
    assert before is not None
    (layout.index / "data.mdb").write_bytes(b"rot")
    reindex(layout)
    after = read_committed(layout.index)
    assert after is not None
    assert (after[0], after[1].tolist()) == (before[0], before[1].tolist())
    assert (layout.quarantine / "index/data.mdb").read_bytes() == b"rot"
    assert state_of(layout.segments) == {
        path.replace(str(good.directory), str(home)): found
        for path, found in state_of(Layout(good.directory / "spool").segments).items()
    }


@pytest.mark.parametrize("spoil", [kinds.removed_last, kinds.cut_live])
def test_no_index_by_hand_where_only_the_old_one_knows(good: Good, home: Path, spoil: kinds.Spoil) -> None:
    """Committed messages that are gone from the end: without it their numbers would be given out again."""
    layout, _ = damaged(good, spoil, home)
    before = read_committed(layout.index)
    with pytest.raises(BadSpool, match=r"gone from the end of .*inspect repair"):
        reindex(layout)
    after = read_committed(layout.index)
    assert before is not None
    assert after is not None
    assert (after[0], after[1].tolist()) == (before[0], before[1].tolist())
    with booted(KILLED_IN):
        apply(layout, Mode.TRUNCATE_TAIL)
        reindex(layout)
        assert layout.list_segments()[-1][0] > before[1][SEQUENCE]


@pytest.mark.parametrize("spoil", [kinds.flipped_value, kinds.header_zeroed, kinds.footer_flipped])
def test_a_file_by_itself(good: Good, home: Path, spoil: kinds.Spoil) -> None:
    """A mended copy is whole but for what is lost; the file is as it was."""
    layout, hit = damaged(good, spoil, home)
    path, to = layout.segments / good.names[SEALED], home / "mended"
    before = path.read_bytes()
    assert plan_file(path) != [] or spoil is kinds.footer_flipped
    copy_file(path, to, Mode.SKIP_DAMAGED)
    assert path.read_bytes() == before
    found = [one for one in Check().files([to]) if one.severity is Severity.DAMAGE]
    assert found == []
    assert int(read_header(to)["first_sequence"]) == int(path.stem)
    frames = plain.read_segment(to.read_bytes()).frames
    if not hit:
        assert [frame.datagrams for frame in frames] == [f.datagrams for f in good.frames[SEALED]]


def test_a_file_that_is_packed(good: Good, home: Path) -> None:
    """It is written unpacked."""
    layout = good.copy(home)
    copy_file(layout.segments / good.names[1], home / "mended", Mode.STRICT)
    frames = plain.read_segment((home / "mended").read_bytes()).frames
    assert [frame.datagrams for frame in frames] == [f.datagrams for f in good.frames[1]]


def test_a_header_that_fits_its_check_is_what_it_was(good: Good, home: Path) -> None:
    """A bit of it: the very bytes come back, and with them the marks; zeros: the same numbers."""
    layout = good.copy(home)
    path = layout.segments / good.names[LATER]
    whole = path.read_bytes()
    flip(path, 100)
    with booted(KILLED_IN):
        apply(layout, Mode.TRUNCATE_TAIL)
    assert path.read_bytes() == whole
    kinds.patch(path, 0, bytes(384))
    with booted(KILLED_IN):
        apply(layout, Mode.TRUNCATE_TAIL)
    mended, header = plain.read_segment(path.read_bytes()).header, plain.read_segment(whole).header
    assert {**mended, "boot": 0, "created_ns": 0} == {**header, "boot": 0, "created_ns": 0}
