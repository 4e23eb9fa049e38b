"""Index, marks, outcome files and ledger, held against the segments."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from spool.fsck import metadata_check
from spool.fsck.examination import Examination
from spool.fsck.finding import Kind, Severity
from spool.index.identity import read_identity
from spool.index.index import Index
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.marks.outcome_file import write_outcomes
from spool.shared.ledger import Ledger
from tests.spool.fixture import SpoolFixture
from tests.spool.fsck.checked import check, damages, flip, frames_of, patch, path_of, rewrite_header


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
    entries = metadata_check.read_entries(layout.index)
    assert entries
    first, *others = entries[-1]
    monkeypatch.setattr(metadata_check, "read_entries", lambda _: [*entries[:-1], (first + 1, *others)])
    assert damages(check(layout)) == [(Kind.INDEX, "data.mdb")]


def test_a_committed_place_between_frames(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed end must be the end of a frame."""
    found = metadata_check.read_committed(layout.index)
    assert found is not None
    number, tail = found
    tail[0] -= 8
    monkeypatch.setattr(metadata_check, "read_committed", lambda _: (number, tail))
    assert damages(check(layout)) == [(Kind.INDEX, "committed")]


def test_a_committed_end_that_is_gone(layout: Layout) -> None:
    """It is a finding: nothing tells then whether the log's end is there."""
    (layout.index / "committed").write_bytes(b"")
    assert damages(check(layout)) == [(Kind.INDEX, "committed")]


def test_an_index_that_has_just_been_made(layout: Layout) -> None:
    """Each start makes a new one: a kill before its first commit is no damage."""
    shutil.rmtree(layout.index)
    layout.index.mkdir()
    (layout.index / "data.mdb").touch()
    assert check(layout) == []
    Index(layout.index, read_identity(layout), bytes(16)).close()
    assert check(layout) == []
    (layout.index / "committed").unlink()
    assert check(layout) == []


def test_a_ledger_that_counts(spool: SpoolFixture) -> None:
    """A ledger with entries is read like one without."""
    ledger = Ledger(spool.layout.ledger)
    ledger.begin()
    ledger.commit(1)
    spool.crash()
    assert check(spool.layout) == []
