"""Outcome files become marks: each once, whatever dies, and never for a message that they are not about.

Discards of jobs are in the discard file before they count.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings

from router.outcome_import import FILED_AT_ONCE, OutcomeImport
from router.timing import STOP_S
from spool.format.wire import DEAD_LETTERED, Reason, encode
from spool.index.segment_list import SegmentList
from spool.log.retention import Stock
from spool.marks import outcome_file
from spool.marks.discard_file import DiscardFile, Records, read_discard_file, read_file
from spool.marks.marks import Marks
from spool.marks.outcome_file import list_outcomes, read_task, write_outcomes
from spool.marks.task_files import write_counts
from spool.read.overview import SpoolTotals, take_totals
from spool.storage import failpoint
from tests.router.fake import Clock
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import lost_of

TOO_LARGE = int(Reason.TOO_LARGE)


class ImportFixture:
    """A spool of several segments, and a directory of a job."""

    def __init__(self, directory: Path) -> None:
        self.spool = SpoolFixture(directory)
        self.layout = self.spool.layout
        self.outcomes = self.layout.outcomes / "job"
        self.outcomes.mkdir(parents=True)
        self.count = 0

    def fill(self, frames: int = 12, messages: int = 20) -> None:
        """Append frames to topics `a` and `b` in turn; about four fill a segment."""
        for frame in range(frames):
            first = self.spool.append([encode(b"ab"[frame % 2 :][:1], b"v" * 60)] * messages)
            self.count = first + messages
            self.spool.step()

    def write(self, delivered: Sequence[int], discarded: dict[int, int] | None = None) -> Path:
        """Write the outcomes of one task."""
        discarded = discarded or {}
        sequences = np.array([*delivered, *discarded], np.int64)
        reasons = np.array([0] * len(delivered) + list(discarded.values()), np.int32)
        self.outcomes.mkdir(exist_ok=True)
        return write_outcomes(self.outcomes, "task", self.spool.identity.spool, sequences, reasons)

    def import_outcomes(
        self, keep: str = "job", file: DiscardFile | None = None, filed_at_once: int = FILED_AT_ONCE
    ) -> SpoolTotals:
        """The owner takes over what there is; the totals then."""
        importing = OutcomeImport(
            self.layout, self.spool.identity.spool, file=file, filed_at_once=filed_at_once
        )
        assert importing.step(keep)
        low_watermark = importing.low_watermark
        importing.close()
        account = take_totals(self.layout, list)
        assert account.low_watermark == low_watermark
        assert account.received == account.delivered + account.backlog + sum(account.by_reason().values())
        return account

    def lost(self) -> dict[int, int]:
        """Sequence -> reason, as the marks have it."""
        marks = Marks(self.layout.delivery, SegmentList(self.layout))
        try:
            return lost_of(marks)
        finally:
            marks.close()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[ImportFixture]:
    """Twelve frames in three segments."""
    made = ImportFixture(tmp_path)
    made.fill()
    yield made
    made.spool.crash()


def test_what_was_delivered_is_marked(fixture: ImportFixture) -> None:
    """In any order, over all segments: the low watermark rises over whole ranges; files and marks agree."""
    odd, even = range(1, fixture.count, 2), range(0, fixture.count, 2)
    fixture.write(odd)
    account = fixture.import_outcomes()
    assert (account.low_watermark, account.delivered, account.backlog) == (0, len(odd), len(even))
    fixture.write(even[:100])
    fixture.write(even[50:])
    account = fixture.import_outcomes()
    assert (account.low_watermark, account.delivered, account.backlog) == (fixture.count, fixture.count, 0)
    assert list_outcomes(fixture.outcomes) == []


def test_discards_are_counted_once_by_topic(fixture: ImportFixture) -> None:
    """With reason, topic and sample; a message that another attempt delivered was not discarded."""
    discarded = {
        3: int(Reason.TOO_LARGE),
        25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC,
        26: int(Reason.TOO_LARGE),
    }
    fixture.write([26], discarded)
    fixture.write([], discarded)
    for _ in range(2):
        account = fixture.import_outcomes()
        fixture.write([], discarded)
    assert {(d.topic, d.reason, d.count) for d in account.discarded} == {
        (b"a", Reason.TOO_LARGE, 1),
        (b"b", DEAD_LETTERED + Reason.UNKNOWN_TOPIC, 1),
    }
    assert (account.delivered, account.dead_lettered) == (1, 1)
    assert fixture.lost() == {3: Reason.TOO_LARGE, 25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC}
    marks = Marks(fixture.layout.delivery, SegmentList(fixture.layout))
    assert {(s.sequence, s.data) for s in marks.samples()} >= {(3, encode(b"a", b"v" * 60))}
    marks.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_files_at_any_time(chance: st.DataObject) -> None:
    """Resolved is what some file says, once; for any overlap of tasks, and any time of the import."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        fixture = ImportFixture(Path(directory))
        fixture.fill(frames=9)
        told: dict[int, bool] = {}
        for _ in range(chance.draw(st.integers(1, 6))):
            mine = chance.draw(st.sets(st.integers(0, fixture.count - 1), max_size=60))
            delivered = [s for s in mine if chance.draw(st.booleans())]
            fixture.write(delivered, dict.fromkeys(mine - set(delivered), int(Reason.TOO_LARGE)))
            account = fixture.import_outcomes()
            for s in mine:
                told.setdefault(s, s in delivered)
            assert (account.resolved, account.delivered) == (len(told), sum(told.values()))
        fixture.spool.crash()


def test_what_is_not_about_this_log_marks_nothing(
    fixture: ImportFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged, of another spool, beyond the log or before it: quarantine, and a sentence."""
    whole = fixture.write(range(10))
    write_outcomes(fixture.outcomes, "foreign", bytes(16), np.arange(50), np.zeros(50, np.int32))
    fixture.write([fixture.count])
    fixture.write([-1])
    fixture.write([], {5: 2 * DEAD_LETTERED})
    damaged = fixture.write([20, 21])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    caplog.set_level(logging.ERROR)
    account = fixture.import_outcomes()
    assert (account.delivered, account.low_watermark) == (10, 10)
    assert not whole.exists()
    assert list_outcomes(fixture.outcomes) == []
    assert len(list_outcomes(fixture.layout.quarantine)) == 5
    said = " ".join(caplog.messages)
    for words in ("is of the spool 0000", "never stored", "reasons that this release", "is damaged"):
        assert words in said


def test_numbers_that_were_never_given_out(tmp_path: Path) -> None:
    """In the gap that a power loss leaves between two epochs no message can have been delivered."""
    fixture = ImportFixture(tmp_path)
    fixture.fill(frames=3)
    before = fixture.count
    fixture.spool.lose_power(random.Random(1))
    fixture.spool.open()
    fixture.fill(frames=3)
    assert fixture.count > before + 1000
    fixture.write([before + 500])
    fixture.write([fixture.count - 1, 0])
    assert fixture.import_outcomes().resolved == 2
    assert len(list_outcomes(fixture.layout.quarantine)) == 1
    fixture.spool.crash()


def test_segments_that_are_gone_were_resolved(fixture: ImportFixture) -> None:
    """A late file about segments that have been removed changes nothing, and is no fault."""
    fixture.write(range(fixture.count))
    fixture.import_outcomes()
    stock = Stock(fixture.layout, fixture.spool.identity, fixture.spool.options)
    assert stock.retire(fixture.count) > 0
    stock.remove([stock.sent()[0][0]])
    fixture.write(range(30))
    account = fixture.import_outcomes()
    assert (account.delivered, account.backlog) == (fixture.count, 0)
    assert list_outcomes(fixture.layout.quarantine) == []


def test_what_is_refused_is_passed_over(fixture: ImportFixture, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is refused to us stops nothing: it is said once, and the next owner tries again."""
    bad, good = fixture.write(range(10)), fixture.write(range(10, 20))
    importing = OutcomeImport(fixture.layout, fixture.spool.identity.spool)
    real_read, real_unlink = outcome_file.read_bytes, Path.unlink

    def read(path: Path, most: int) -> bytes:
        if path == bad:
            raise PermissionError(13, "Permission denied")
        return real_read(path, most)

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path == good:
            raise PermissionError(13, "Permission denied")
        real_unlink(path, missing_ok=missing_ok)

    with mock.patch.object(outcome_file, "read_bytes", read), mock.patch.object(Path, "unlink", unlink):
        for _ in range(3):
            assert importing.step()
    importing.close()
    assert list_outcomes(fixture.outcomes) == sorted([bad, good])
    read_error, remove_error = caplog.messages
    assert "cannot be read" in read_error
    assert "cannot be removed" in remove_error
    assert fixture.import_outcomes(keep="").delivered == 20
    assert not fixture.outcomes.exists()


def test_tasks_of_the_job_that_delivers_find_what_was_taken_over(fixture: ImportFixture) -> None:
    """While it delivers; its file is not imported again, and goes with the lease."""
    fixture.write(range(7))
    assert fixture.import_outcomes(keep=fixture.outcomes.name).delivered == 7
    assert list_outcomes(fixture.outcomes) == []
    (found,) = read_task(fixture.outcomes, "")
    assert found.sequences.tolist() == list(range(7))
    assert read_task(fixture.outcomes, "another-") == []
    assert fixture.import_outcomes(keep=fixture.outcomes.name).delivered == 7
    assert fixture.import_outcomes(keep="").delivered == 7
    assert not fixture.outcomes.exists()


def test_a_late_task_is_told(fixture: ImportFixture) -> None:
    """The directory of a job that delivers no more goes, with what is half written; the rest is believed."""
    fixture.write(range(7))
    (fixture.outcomes / "task-2.out.tmp").write_bytes(b"half")
    assert fixture.import_outcomes(keep="another").delivered == 7
    assert not fixture.outcomes.exists()
    with pytest.raises(FileNotFoundError):
        write_outcomes(
            fixture.outcomes, "late", fixture.spool.identity.spool, np.arange(3), np.zeros(3, np.int32)
        )


def test_marks_that_cannot_be_written_keep_the_files(fixture: ImportFixture) -> None:
    """On a full disk nothing is forgotten, and it is counted once when there is room again."""
    fixture.write(range(5), {7: int(Reason.TOO_LARGE)})
    importing = OutcomeImport(fixture.layout, fixture.spool.identity.spool)
    with mock.patch.object(Marks, "_commit", side_effect=lmdb.MapFullError("full")):
        assert not importing.step("job")
        assert not importing.step("")
    assert len(list_outcomes(fixture.outcomes)) == 1
    assert importing.step("job")
    importing.close()
    account = fixture.import_outcomes()
    assert (account.delivered, account.by_reason()) == (5, {Reason.TOO_LARGE: 1})


@pytest.mark.crash
@pytest.mark.parametrize("point", ["mark.written", "mark.committed", "adopt.marked", "adopt.removed"])
def test_who_dies_in_between_counts_nothing_twice(fixture: ImportFixture, point: str, tmp_path: Path) -> None:
    """SIGKILL of the owner at each step: the next one has every outcome, once."""
    fixture.write(range(40), {50: int(Reason.TOO_LARGE)})
    points = tmp_path / "points"
    for _ in range(2):
        points.write_text(f"{point}\n")
        fixture.write(range(60, 70), {71: int(Reason.TOO_LARGE)})
        pid = os.fork()
        if pid == 0:
            failpoint.ARMED = str(points)
            fixture.import_outcomes()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert points.read_text() == ""
    account = fixture.import_outcomes()
    assert (account.delivered, account.by_reason()) == (50, {Reason.TOO_LARGE: 2})
    assert list_outcomes(fixture.outcomes) == []


def histories(fixture: ImportFixture) -> dict[bytes, list[tuple[int, int]]]:
    """The marks' counts by topic."""
    marks = Marks(fixture.layout.delivery, SegmentList(fixture.layout))
    try:
        return marks.partitions()
    finally:
        marks.close()


def test_counts_are_in_the_marks_with_what_went_by_them(fixture: ImportFixture) -> None:
    """For topics that the marks do not know, or that grew since; an older file changes nothing."""
    fixture.fill()
    spool = fixture.spool.identity.spool
    write_counts(fixture.outcomes, "job", spool, {b"a": [(0, 3)], b"b": [(0, 2)]})
    fixture.write(range(5))
    assert fixture.import_outcomes().low_watermark == 5
    assert histories(fixture) == {b"a": [(0, 3)], b"b": [(0, 2)]}
    write_counts(fixture.outcomes, "job-1", spool, {b"a": [(0, 7)], b"b": [(0, 2), (40, 4)]})
    fixture.import_outcomes()
    write_counts(fixture.outcomes, "job-0", spool, {b"b": [(0, 2)]})
    fixture.import_outcomes(keep="")
    assert histories(fixture) == {b"a": [(0, 3)], b"b": [(0, 2), (40, 4)]}
    assert not fixture.outcomes.exists()


def test_counts_of_another_spool_are_not_believed(fixture: ImportFixture) -> None:
    """A file that rotted is not believed either; both go to quarantine."""
    fixture.fill()
    write_counts(fixture.outcomes, "other", bytes(16), {b"a": [(0, 3)]})
    rotten = write_counts(fixture.outcomes, "rotten", fixture.spool.identity.spool, {b"a": [(0, 3)]})
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"?")
    fixture.import_outcomes()
    assert histories(fixture) == {}
    assert sorted(path.name for path in fixture.layout.quarantine.iterdir()) == [
        "other.counts",
        "rotten.counts",
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the discard file."""
    return tmp_path / "discards"


class Full(DiscardFile):
    """A file whose disk is full, for a while."""

    full = True

    def append(self, records: Records) -> None:
        """Write nothing."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(records)


def test_the_file_has_what_was_discarded(fixture: ImportFixture, path: Path) -> None:
    """The datagram as received; what has a dead letter, or may be in Kafka, is counted only."""
    odd = {
        3: TOO_LARGE,
        25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC,
        30: int(Reason.UNCONFIRMED),
        90: int(Reason.UNKNOWN_TOPIC),
    }
    fixture.write([26, 27], {**odd, 26: TOO_LARGE})
    account = fixture.import_outcomes(file=DiscardFile(path, 1 << 20))
    spool = fixture.spool.identity.spool
    assert [(one.spool, one.sequence, one.reason, one.datagram) for one in read_discard_file(path)] == [
        (spool, 3, TOO_LARGE, encode(b"a", b"v" * 60)),
        (spool, 90, Reason.UNKNOWN_TOPIC, encode(b"a", b"v" * 60)),
    ]
    assert (account.delivered, account.dead_lettered) == (2, 1)
    assert fixture.lost() == odd
    assert {(d.topic, d.reason) for d in account.discarded} == {
        (b"a", TOO_LARGE),
        (b"b", DEAD_LETTERED + Reason.UNKNOWN_TOPIC),
        (b"b", Reason.UNCONFIRMED),
        (b"a", Reason.UNKNOWN_TOPIC),
    }
    marks = Marks(fixture.layout.delivery, SegmentList(fixture.layout))
    assert sorted(sample.sequence for sample in marks.samples()) == sorted(odd)
    marks.close()


def test_another_attempt_files_nothing_again(fixture: ImportFixture, path: Path) -> None:
    """Two tasks, or two owners, report the same discards: one record each."""
    for _ in range(3):
        fixture.write([1], dict.fromkeys(range(40, 60), TOO_LARGE))
        account = fixture.import_outcomes(file=DiscardFile(path, 1 << 20))
    assert account.by_reason() == {TOO_LARGE: 20}
    assert [one.sequence for one in read_file(path)] == list(range(40, 60))


@pytest.mark.sample(one_of=3)
@pytest.mark.crash
@pytest.mark.parametrize(
    "point", ["adopt.filed", "mark.written", "mark.committed", "adopt.marked", "adopt.removed"]
)
def test_killed_on_the_way(fixture: ImportFixture, path: Path, tmp_path: Path, point: str) -> None:
    """SIGKILL at each step, again and again: none is missing, and each counts once.

    Twice in the file are only those of the one write that was not marked yet.
    """
    discarded = dict.fromkeys(range(0, 100, 2), TOO_LARGE)
    fixture.write(range(1, 100, 2), discarded)
    points = tmp_path / "points"
    kills = 3
    for _ in range(kills):
        points.write_text(f"{point}\n")
        pid = os.fork()
        if pid == 0:
            failpoint.ARMED = str(points)
            fixture.import_outcomes(file=DiscardFile(path, 1 << 20), filed_at_once=16)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            break
        assert points.read_text() == ""
    account = fixture.import_outcomes(file=DiscardFile(path, 1 << 20), filed_at_once=16)
    assert (account.by_reason(), account.delivered, account.backlog) == (
        {TOO_LARGE: 50},
        50,
        fixture.count - 100,
    )
    assert [one.sequence for one in read_discard_file(path)] == sorted(discarded)
    raw = len(list(read_file(path)))
    assert raw <= 50 + kills * 16
    if point == "adopt.filed":
        assert raw == 50 + kills * 16
    assert list_outcomes(fixture.outcomes) == []


def test_on_a_full_disk_they_wait(fixture: ImportFixture, path: Path) -> None:
    """While the job delivers: what was delivered counts, discards stay open, and one sentence says why."""
    clock, file = Clock(), Full(path, 1 << 20)
    fixture.write(range(10), {20: TOO_LARGE, 21: DEAD_LETTERED + TOO_LARGE})
    importing = OutcomeImport(fixture.layout, fixture.spool.identity.spool, file=file, clock=clock)
    for _ in range(3):
        assert importing.step("job")
        clock.now += 1
    assert importing.take_counts() == (10, 1)
    assert importing.trouble.startswith(
        f"the discard file {path} cannot be written (No space left on device)"
    )
    assert len(list_outcomes(fixture.outcomes)) == 1
    # Others go on meanwhile.
    fixture.write(range(10, 15))
    assert importing.step("job")
    assert (importing.take_counts(), bool(importing.trouble)) == ((5, 0), True)
    file.full = False
    clock.now += STOP_S
    assert importing.step("job")
    importing.close()
    assert (importing.trouble, list_outcomes(fixture.outcomes)) == ("", [])
    account = take_totals(fixture.layout, list)
    assert (account.delivered, account.dead_lettered, account.by_reason()) == (15, 1, {TOO_LARGE: 2})
    assert [one.sequence for one in read_discard_file(path)] == [20]


def test_what_no_file_takes_is_open_again(
    fixture: ImportFixture, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the job is over nothing stops who delivers next: he sends it, and is refused as the job was."""
    fixture.write(range(10), {20: TOO_LARGE})
    importing = OutcomeImport(fixture.layout, fixture.spool.identity.spool, file=Full(path, 1 << 20))
    assert importing.step("job")
    assert importing.step("")
    importing.close()
    assert not fixture.outcomes.exists()
    account = take_totals(fixture.layout, list)
    assert (account.delivered, account.by_reason(), account.backlog) == (10, {}, fixture.count - 10)
    assert "the job is over, and 1 of them are open again" in caplog.text
