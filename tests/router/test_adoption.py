"""Outcome files become marks: each once, whatever dies, and never for a message that they are not about."""

from __future__ import annotations

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

from router.adoption import Adoption
from spool import crash_point, outcome_file
from spool.account import Account, take_account
from spool.catalogue import Catalogue
from spool.counts_file import write_counts
from spool.discard_file import DiscardFile
from spool.marks import Marks
from spool.outcome_file import list_outcomes, read_task, write_outcomes
from spool.retention import Stock
from spool.wire import DEAD_LETTERED, Reason, encode
from tests.spool.rig import Rig
from tests.spool.stored import lost_of


class Desk:
    """A spool of several segments, and a directory of a job."""

    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory)
        self.layout = self.rig.layout
        self.outcomes = self.layout.outcomes / "job"
        self.outcomes.mkdir(parents=True)
        self.count = 0

    def fill(self, frames: int = 12, messages: int = 20) -> None:
        """Append frames to topics `a` and `b` in turn; about four fill a segment."""
        for frame in range(frames):
            first = self.rig.append([encode(b"ab"[frame % 2 :][:1], b"v" * 60)] * messages)
            self.count = first + messages
            self.rig.step()

    def write(self, delivered: Sequence[int], discarded: dict[int, int] | None = None) -> Path:
        """One task is done."""
        discarded = discarded or {}
        sequences = np.array([*delivered, *discarded], np.int64)
        reasons = np.array([0] * len(delivered) + list(discarded.values()), np.int32)
        self.outcomes.mkdir(exist_ok=True)
        return write_outcomes(self.outcomes, "task", self.rig.identity.spool, sequences, reasons)

    def adopt(self, keep: str = "job", file: DiscardFile | None = None) -> Account:
        """The owner takes over what there is; the books then."""
        adoption = Adoption(self.layout, self.rig.identity.spool, file=file)
        assert adoption.step(keep)
        floor = adoption.floor
        adoption.close()
        account = take_account(self.layout, list)
        assert account.floor == floor
        assert account.received == account.delivered + account.backlog + sum(account.by_reason().values())
        return account

    def lost(self) -> dict[int, int]:
        """Sequence -> reason, as the marks have it."""
        marks = Marks(self.layout.delivery, Catalogue(self.layout))
        try:
            return lost_of(marks)
        finally:
            marks.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Twelve frames in three segments."""
    made = Desk(tmp_path)
    made.fill()
    yield made
    made.rig.crash()


def test_what_was_delivered_is_marked(desk: Desk) -> None:
    """In any order and over all segments: the floor rises over what is whole, and files and books agree."""
    odd, even = range(1, desk.count, 2), range(0, desk.count, 2)
    desk.write(odd)
    account = desk.adopt()
    assert (account.floor, account.delivered, account.backlog) == (0, len(odd), len(even))
    desk.write(even[:100])
    desk.write(even[50:])
    account = desk.adopt()
    assert (account.floor, account.delivered, account.backlog) == (desk.count, desk.count, 0)
    assert list_outcomes(desk.outcomes) == []


def test_discards_are_counted_once_by_topic(desk: Desk) -> None:
    """With reason, topic and sample; a message that another attempt delivered was not discarded."""
    discarded = {
        3: int(Reason.TOO_LARGE),
        25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC,
        26: int(Reason.TOO_LARGE),
    }
    desk.write([26], discarded)
    desk.write([], discarded)
    for _ in range(2):
        account = desk.adopt()
        desk.write([], discarded)
    assert {(d.topic, d.reason, d.count) for d in account.discarded} == {
        (b"a", Reason.TOO_LARGE, 1),
        (b"b", DEAD_LETTERED + Reason.UNKNOWN_TOPIC, 1),
    }
    assert (account.delivered, account.dead_lettered) == (1, 1)
    assert desk.lost() == {3: Reason.TOO_LARGE, 25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC}
    marks = Marks(desk.layout.delivery, Catalogue(desk.layout))
    assert {(s.sequence, s.data) for s in marks.samples()} >= {(3, encode(b"a", b"v" * 60))}
    marks.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_files_at_any_time(chance: st.DataObject) -> None:
    """Whatever tasks overlap, and whenever files are taken over: resolved is what some file says, once."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        desk = Desk(Path(directory))
        desk.fill(frames=9)
        told: dict[int, bool] = {}
        for _ in range(chance.draw(st.integers(1, 6))):
            mine = chance.draw(st.sets(st.integers(0, desk.count - 1), max_size=60))
            delivered = [s for s in mine if chance.draw(st.booleans())]
            desk.write(delivered, dict.fromkeys(mine - set(delivered), int(Reason.TOO_LARGE)))
            account = desk.adopt()
            for s in mine:
                told.setdefault(s, s in delivered)
            assert (account.resolved, account.delivered) == (len(told), sum(told.values()))
        desk.rig.crash()


def test_what_is_not_about_this_log_marks_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Damaged, of another spool, beyond the log or before it: quarantine, and a sentence."""
    whole = desk.write(range(10))
    write_outcomes(desk.outcomes, "foreign", bytes(16), np.arange(50), np.zeros(50, np.int32))
    desk.write([desk.count])
    desk.write([-1])
    desk.write([], {5: 2 * DEAD_LETTERED})
    damaged = desk.write([20, 21])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    caplog.set_level(logging.ERROR)
    account = desk.adopt()
    assert (account.delivered, account.floor) == (10, 10)
    assert not whole.exists()
    assert list_outcomes(desk.outcomes) == []
    assert len(list_outcomes(desk.layout.quarantine)) == 5
    said = " ".join(caplog.messages)
    for words in ("is of the spool 0000", "never stored", "reasons that this release", "is damaged"):
        assert words in said


def test_numbers_that_were_never_given_out(tmp_path: Path) -> None:
    """In the gap that a power loss leaves between two epochs no message can have been delivered."""
    desk = Desk(tmp_path)
    desk.fill(frames=3)
    before = desk.count
    desk.rig.lose_power(random.Random(1))
    desk.rig.open()
    desk.fill(frames=3)
    assert desk.count > before + 1000
    desk.write([before + 500])
    desk.write([desk.count - 1, 0])
    assert desk.adopt().resolved == 2
    assert len(list_outcomes(desk.layout.quarantine)) == 1
    desk.rig.crash()


def test_segments_that_are_gone_were_resolved(desk: Desk) -> None:
    """A late file about segments that have been removed changes nothing, and is no fault."""
    desk.write(range(desk.count))
    desk.adopt()
    stock = Stock(desk.layout, desk.rig.identity, desk.rig.options)
    assert stock.retire(desk.count) > 0
    stock.remove([stock.sent()[0][0]])
    desk.write(range(30))
    account = desk.adopt()
    assert (account.delivered, account.backlog) == (desk.count, 0)
    assert list_outcomes(desk.layout.quarantine) == []


def test_what_is_refused_is_passed_over(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is refused to us stops nothing: it is said once, and the next owner tries again."""
    bad, good = desk.write(range(10)), desk.write(range(10, 20))
    adoption = Adoption(desk.layout, desk.rig.identity.spool)
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
            assert adoption.step()
    adoption.close()
    assert list_outcomes(desk.outcomes) == sorted([bad, good])
    read_error, remove_error = caplog.messages
    assert "cannot be read" in read_error
    assert "cannot be removed" in remove_error
    assert desk.adopt(keep="").delivered == 20
    assert not desk.outcomes.exists()


def test_tasks_of_the_job_that_delivers_find_what_was_taken_over(desk: Desk) -> None:
    """As long as it delivers; nobody takes it over again, and it goes with the lease."""
    desk.write(range(7))
    assert desk.adopt(keep=desk.outcomes.name).delivered == 7
    assert list_outcomes(desk.outcomes) == []
    (found,) = read_task(desk.outcomes, "")
    assert found.sequences.tolist() == list(range(7))
    assert read_task(desk.outcomes, "another-") == []
    assert desk.adopt(keep=desk.outcomes.name).delivered == 7
    assert desk.adopt(keep="").delivered == 7
    assert not desk.outcomes.exists()


def test_a_late_task_is_told(desk: Desk) -> None:
    """The directory of a job that delivers no more goes, with what is half written; the rest is believed."""
    desk.write(range(7))
    (desk.outcomes / "task-2.out.tmp").write_bytes(b"half")
    assert desk.adopt(keep="another").delivered == 7
    assert not desk.outcomes.exists()
    with pytest.raises(FileNotFoundError):
        write_outcomes(desk.outcomes, "late", desk.rig.identity.spool, np.arange(3), np.zeros(3, np.int32))


def test_marks_that_cannot_be_written_keep_the_files(desk: Desk) -> None:
    """On a full disk nothing is forgotten, and it is counted once when there is room again."""
    desk.write(range(5), {7: int(Reason.TOO_LARGE)})
    adoption = Adoption(desk.layout, desk.rig.identity.spool)
    with mock.patch.object(Marks, "_commit", side_effect=lmdb.MapFullError("full")):
        assert not adoption.step("job")
        assert not adoption.step("")
    assert len(list_outcomes(desk.outcomes)) == 1
    assert adoption.step("job")
    adoption.close()
    account = desk.adopt()
    assert (account.delivered, account.by_reason()) == (5, {Reason.TOO_LARGE: 1})


@pytest.mark.crash
@pytest.mark.parametrize("point", ["mark.written", "mark.committed", "adopt.marked", "adopt.removed"])
def test_who_dies_in_between_counts_nothing_twice(desk: Desk, point: str, tmp_path: Path) -> None:
    """SIGKILL of the owner at each step: the next one has every outcome, once."""
    desk.write(range(40), {50: int(Reason.TOO_LARGE)})
    points = tmp_path / "points"
    for _ in range(2):
        points.write_text(f"{point}\n")
        desk.write(range(60, 70), {71: int(Reason.TOO_LARGE)})
        pid = os.fork()
        if pid == 0:
            crash_point.ARMED = str(points)
            desk.adopt()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert points.read_text() == ""
    account = desk.adopt()
    assert (account.delivered, account.by_reason()) == (50, {Reason.TOO_LARGE: 2})
    assert list_outcomes(desk.outcomes) == []


def histories(desk: Desk) -> dict[bytes, list[tuple[int, int]]]:
    """What the marks know of topics."""
    marks = Marks(desk.layout.delivery, Catalogue(desk.layout))
    try:
        return marks.partitions()
    finally:
        marks.close()


def test_counts_are_in_the_marks_with_what_went_by_them(desk: Desk) -> None:
    """Of topics that the marks do not know, or that grew since; an older file changes nothing."""
    desk.fill()
    spool = desk.rig.identity.spool
    write_counts(desk.outcomes, "job", spool, {b"a": [(0, 3)], b"b": [(0, 2)]})
    desk.write(range(5))
    assert desk.adopt().floor == 5
    assert histories(desk) == {b"a": [(0, 3)], b"b": [(0, 2)]}
    write_counts(desk.outcomes, "job-1", spool, {b"a": [(0, 7)], b"b": [(0, 2), (40, 4)]})
    desk.adopt()
    write_counts(desk.outcomes, "job-0", spool, {b"b": [(0, 2)]})
    desk.adopt(keep="")
    assert histories(desk) == {b"a": [(0, 3)], b"b": [(0, 2), (40, 4)]}
    assert not desk.outcomes.exists()


def test_counts_of_another_spool_are_not_believed(desk: Desk) -> None:
    """Nor is a file that rotted; both go to quarantine."""
    desk.fill()
    write_counts(desk.outcomes, "other", bytes(16), {b"a": [(0, 3)]})
    rotten = write_counts(desk.outcomes, "rotten", desk.rig.identity.spool, {b"a": [(0, 3)]})
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"?")
    desk.adopt()
    assert histories(desk) == {}
    assert sorted(path.name for path in desk.layout.quarantine.iterdir()) == ["other.counts", "rotten.counts"]
