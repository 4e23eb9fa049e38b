"""The plan: which segments, how far, and what the daemon recorded of their messages."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pipeline.errors import JobFailed
from pipeline.source.outcomes import _pending, read_outcomes, tell_delivered
from pipeline.source.plan import find_spools, plan_spool
from pipeline.source.segments import SegmentReading
from spool.format.frame import POSITION, SEQUENCE, STORED
from spool.format.scan import read_header
from spool.format.segment_format import HEADER
from spool.index.committed import CommittedFile, read_committed
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.layout import SEGMENT, SENT
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.native.digest import digest
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file, shorten


def sequences(spool: SpoolFixture) -> list[int]:
    """Every sequence number that the plan of a spool leads to."""
    parts = plan_spool(spool.layout).parts
    return [
        n for part in parts for piece in SegmentReading(part).pieces() for n in piece.batch.sequence.tolist()
    ]


def test_a_plan_counts_what_it_reads(spool: SpoolFixture) -> None:
    """`stored`, `next_sequence` and `runs` are those of the messages that the parts hold."""
    spool.fill(60, messages=5)
    spool.step()
    spool.fill(1)
    spool.crash()
    plan = plan_spool(spool.layout)
    assert sequences(spool) == list(range(300))
    assert (plan.stored, plan.next_sequence) == (300, 300)
    assert plan.topics() == {"t0", "t1"}
    assert plan.runs[0][0] == 0
    assert plan.runs[-1][1] == 300
    assert all(before[1] == after[0] for before, after in zip(plan.runs, plan.runs[1:], strict=False))


def test_a_segment_may_be_renamed_and_removed(spool: SpoolFixture) -> None:
    """A segment that is called sent after the plan is read all the same; one that is gone is an error."""
    spool.fill(40, messages=5)
    spool.step()
    spool.crash()
    parts = plan_spool(spool.layout).parts
    os.rename(spool.layout.segment(0, SEGMENT), spool.layout.segment(0, SENT))
    assert sum(len(piece.batch) for piece in SegmentReading(parts[0]).pieces()) > 0
    spool.layout.segment(0, SENT).unlink()
    with pytest.raises(JobFailed, match=r"segment 1 of .* was removed while the job ran"):
        list(SegmentReading(parts[0]).pieces())


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_footer_of_a_segment_that_ended_sooner(spool: SpoolFixture, at: int) -> None:
    """Messages behind the end that it names are read and counted, also in a packed segment and the last."""
    while len(spool.layout.list_segments()) < 3:
        spool.fill(3)
        spool.step()
    spool.stop()
    path = spool.layout.segment(*spool.layout.list_segments()[at])
    frames, count = spool.segments()[at].frames, len(spool.records())
    shorten(path, frames[len(frames) // 2].offset)
    if at == 1:
        pack_file(path)
    assert sequences(spool) == list(range(count))
    plan = plan_spool(spool.layout)
    assert (plan.stored, plan.next_sequence) == (count, count)
    assert (plan.segments[at].footer, plan.segments[at - 1].footer is None) == (None, False)


@pytest.mark.parametrize("last", [False, True])
def test_damage_is_counted(spool: SpoolFixture, *, last: bool) -> None:
    """The bytes of a damaged frame are noted, in the middle of a segment and at its end."""
    spool.fill(1)
    if last:
        spool.fill(1)
    start = int(spool.writer.tail[POSITION])
    spool.fill(1)
    end = int(spool.writer.tail[POSITION])
    if not last:
        spool.fill(1)
    spool.step()
    spool.crash()
    with spool.last_path().open("r+b") as file:
        file.seek(start + 70)
        file.write(b"\xff\xff")
    plan = plan_spool(spool.layout)
    reading = SegmentReading(plan.parts[0])
    read = [n for piece in reading.pieces() for n in piece.batch.sequence.tolist()]
    assert read == ([0, 1, 2, 3, 4, 5] if last else [0, 1, 2, 6, 7, 8])
    assert reading.damaged == [(start, end)]
    assert plan.stored == 9


def test_a_damaged_header_is_named_and_counted(spool: SpoolFixture) -> None:
    """Each such file is in the plan, by number; runs or footers count its messages, once."""
    spool.fill(60, messages=5)
    spool.stop()
    names = spool.layout.list_segments()
    hurt = (0, 2, len(names) - 1)
    for at in hurt:
        with spool.layout.segment(*names[at]).open("r+b") as file:
            file.write(b"xx")
    plan = plan_spool(spool.layout)
    assert [one.file.number for one in plan.damaged] == [at + 1 for at in hurt]
    assert plan.unreadable == [str(spool.layout.segment(*names[at])) for at in hurt]
    assert plan.stored + sum(one.messages for one in plan.damaged) == 300
    assert [part.number for part in plan.parts] == [at + 1 for at in range(len(names)) if at not in hurt]


@pytest.mark.parametrize("stored", [0, 1 << 60, (1 << 64) - 1])
def test_a_header_that_counts_what_cannot_be_is_damaged(spool: SpoolFixture, stored: int) -> None:
    """Nothing is counted by it, and nothing made as large as it says."""
    spool.fill(400)
    spool.stop()
    path = spool.layout.segment(*spool.layout.list_segments()[2])
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, 1)
    header["stored"] = stored
    header["check"] = digest(bytes(data[: HEADER.itemsize - 8]))
    path.write_bytes(data)
    assert int(read_header(path)["stored"]) == stored
    plan = plan_spool(spool.layout)
    assert plan.unreadable == [str(path)]
    assert plan.stored == 1200
    tell_delivered(plan)
    assert sum(end - first for first, end in plan.runs) == 1200


@pytest.mark.parametrize(("spool_id", "stored"), [(b"s", 1 << 62), (b"s", -5), (b"s", 1 << 20), (b"", 3)])
def test_a_committed_end_that_cannot_be_is_not_believed(
    spool: SpoolFixture, spool_id: bytes, stored: int
) -> None:
    """A copy's folder may have an index that is wrong, or of another spool: its last segment is read."""
    spool.fill(10)
    spool.step()
    spool.crash()
    known = read_committed(spool.layout.index)
    assert known is not None
    number, tail = known
    tail[STORED] = tail[SEQUENCE] = stored
    (spool.layout.index / "committed").unlink()
    own = read_identity(spool.layout) if spool_id else bytes(16)
    lying = CommittedFile(spool.layout.index, own)
    lying.write(number, tail)
    lying.close()
    plan = tell_delivered(plan_spool(spool.layout))
    assert (plan.stored, plan.next_sequence, plan.runs) == (30, 30, [(0, 30)])
    assert sequences(spool) == list(range(30))


def test_the_name_of_a_spool_is_no_pattern(spool: SpoolFixture) -> None:
    """Of `host1` and `host[1]` each is found by its own name, and both by a pattern."""
    place = spool.layout.directory.parent
    for name in ("host1", "host[1]"):
        (place / name / "segments").mkdir(parents=True)
    for pattern, names in (("host[1]", {"host[1]"}), ("host?", {"host1"}), ("host*", {"host1", "host[1]"})):
        assert {layout.directory.name for layout in find_spools([str(place / pattern)])} == names


def test_marks_that_have_not_begun(spool: SpoolFixture) -> None:
    """A daemon was killed while it made them: what is stored waits, and is not lost."""
    spool.fill(10)
    spool.step()
    spool.crash()
    (spool.layout.delivery / "data.mdb").touch()
    found = read_outcomes(plan_spool(spool.layout))
    assert (found.marked, found.discarded.tolist()) == (True, [])
    assert [tuple(run) for run in found.backlog.tolist()] == [(0, 30)]


def test_small_chunks_give_the_same(spool: SpoolFixture) -> None:
    """However little is read at a time, each message comes once."""
    spool.fill(60, messages=5)
    spool.step()
    spool.crash()
    parts = plan_spool(spool.layout).parts
    for size in (64, 1000, 1 << 20):
        read = [
            n
            for p in parts
            for piece in SegmentReading(p, size).pieces()
            for n in piece.batch.sequence.tolist()
        ]
        assert read == list(range(300))


def test_backlog_is_what_no_mark_resolves() -> None:
    """Backlog: messages from the low watermark on that are not resolved; gaps in numbers are not."""
    resolved = np.array([12, 13, 19, 1 << 32])
    assert _pending([(0, 10), (10, 20), (1 << 32, (1 << 32) + 3)], 5, resolved).tolist() == [
        [5, 10],
        [10, 12],
        [14, 19],
        [(1 << 32) + 1, (1 << 32) + 3],
    ]
    assert _pending([(0, 10)], 10, np.empty(0, np.int64)).tolist() == []


def test_outcomes_come_from_the_marks(spool: SpoolFixture) -> None:
    """The low watermark and the discards of the marks are the daemon's; without marks there are none."""
    spool.fill(4)
    spool.step()
    spool.crash()
    plan = plan_spool(spool.layout)
    assert read_outcomes(plan).discarded.tolist() == []
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=7, discarded=[Discard(np.array([2]), 15, b"t0", 1)]))
    marks.close()
    outcomes = read_outcomes(plan)
    assert (outcomes.discarded.tolist(), outcomes.backlog.tolist()) == ([2], [[7, 12]])
