"""What jobs discard is in the discard file before it counts: once, with its reason, whatever dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from router import job_discards
from router.adoption import STOP_S, Adoption
from spool import crash_point
from spool.account import take_account
from spool.catalogue import Catalogue
from spool.discard_file import DiscardFile, GivenUp, read_discard_file, read_file
from spool.marks import Marks
from spool.outcome_file import list_outcomes
from spool.wire import DEAD_LETTERED, Reason, encode
from tests.router.fake import Clock
from tests.router.test_adoption import Desk

TOO_LARGE = int(Reason.TOO_LARGE)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Twelve frames in three segments."""
    made = Desk(tmp_path)
    made.fill()
    yield made
    made.rig.crash()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the discard file."""
    return tmp_path / "discards"


class Full(DiscardFile):
    """A file whose disk is full, for a while."""

    full = True

    def append(self, messages: Sequence[GivenUp]) -> None:
        """Write nothing."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(messages)


def test_the_file_has_what_was_discarded(desk: Desk, path: Path) -> None:
    """The datagram as received; what has a dead letter, or may be in Kafka, is counted only."""
    odd = {
        3: TOO_LARGE,
        25: DEAD_LETTERED + Reason.UNKNOWN_TOPIC,
        30: int(Reason.UNCONFIRMED),
        90: int(Reason.UNKNOWN_TOPIC),
    }
    desk.write([26, 27], {**odd, 26: TOO_LARGE})
    account = desk.adopt(file=DiscardFile(path, 1 << 20))
    spool = desk.rig.identity.spool
    assert [(one.spool, one.sequence, one.reason, one.datagram) for one in read_discard_file(path)] == [
        (spool, 3, TOO_LARGE, encode(b"a", b"v" * 60)),
        (spool, 90, Reason.UNKNOWN_TOPIC, encode(b"a", b"v" * 60)),
    ]
    assert (account.delivered, account.dead_lettered) == (2, 1)
    assert desk.lost() == odd
    assert {(d.topic, d.reason) for d in account.discarded} == {
        (b"a", TOO_LARGE),
        (b"b", DEAD_LETTERED + Reason.UNKNOWN_TOPIC),
        (b"b", Reason.UNCONFIRMED),
        (b"a", Reason.UNKNOWN_TOPIC),
    }
    marks = Marks(desk.layout.delivery, Catalogue(desk.layout))
    assert sorted(sample.sequence for sample in marks.samples()) == sorted(odd)
    marks.close()


def test_another_attempt_files_nothing_again(desk: Desk, path: Path) -> None:
    """Two tasks, or two owners, tell of the same discards: one record each."""
    for _ in range(3):
        desk.write([1], dict.fromkeys(range(40, 60), TOO_LARGE))
        account = desk.adopt(file=DiscardFile(path, 1 << 20))
    assert account.by_reason() == {TOO_LARGE: 20}
    assert [one.sequence for one in read_file(path)] == list(range(40, 60))


@pytest.mark.crash
@pytest.mark.parametrize(
    "point", ["adopt.filed", "mark.written", "mark.committed", "adopt.marked", "adopt.removed"]
)
def test_killed_on_the_way(
    desk: Desk, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """SIGKILL at each step, again and again: none is missing, and each counts once.

    Twice in the file are only those of the one write that was not marked yet.
    """
    monkeypatch.setattr(job_discards, "AT_ONCE", 16)
    discarded = dict.fromkeys(range(0, 100, 2), TOO_LARGE)
    desk.write(range(1, 100, 2), discarded)
    points = tmp_path / "points"
    kills = 3
    for _ in range(kills):
        points.write_text(f"{point}\n")
        pid = os.fork()
        if pid == 0:
            crash_point.ARMED = str(points)
            desk.adopt(file=DiscardFile(path, 1 << 20))
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            break
        assert points.read_text() == ""
    account = desk.adopt(file=DiscardFile(path, 1 << 20))
    assert (account.by_reason(), account.delivered, account.backlog) == (
        {TOO_LARGE: 50},
        50,
        desk.count - 100,
    )
    assert [one.sequence for one in read_discard_file(path)] == sorted(discarded)
    raw = len(list(read_file(path)))
    assert raw <= 50 + kills * 16
    if point == "adopt.filed":
        assert raw == 50 + kills * 16
    assert list_outcomes(desk.outcomes) == []


def test_on_a_full_disk_they_wait(desk: Desk, path: Path) -> None:
    """While the job delivers: what was delivered counts, discards stay open, and one sentence says why."""
    clock, file = Clock(), Full(path, 1 << 20)
    desk.write(range(10), {20: TOO_LARGE, 21: DEAD_LETTERED + TOO_LARGE})
    adoption = Adoption(desk.layout, desk.rig.identity.spool, file=file, clock=clock)
    for _ in range(3):
        assert adoption.step("job")
        clock.now += 1
    assert adoption.take_counts() == (10, 1)
    assert adoption.trouble.startswith(f"the discard file {path} cannot be written (No space left on device)")
    assert len(list_outcomes(desk.outcomes)) == 1
    # Others go on meanwhile.
    desk.write(range(10, 15))
    assert adoption.step("job")
    assert (adoption.take_counts(), bool(adoption.trouble)) == ((5, 0), True)
    file.full = False
    clock.now += STOP_S
    assert adoption.step("job")
    adoption.close()
    assert (adoption.trouble, list_outcomes(desk.outcomes)) == ("", [])
    account = take_account(desk.layout, list)
    assert (account.delivered, account.dead_lettered, account.by_reason()) == (15, 1, {TOO_LARGE: 2})
    assert [one.sequence for one in read_discard_file(path)] == [20]


def test_what_no_file_takes_is_open_again(desk: Desk, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once the job is over nothing stops who delivers next: he sends it, and is refused as the job was."""
    desk.write(range(10), {20: TOO_LARGE})
    adoption = Adoption(desk.layout, desk.rig.identity.spool, file=Full(path, 1 << 20))
    assert adoption.step("job")
    assert adoption.step("")
    adoption.close()
    assert not desk.outcomes.exists()
    account = take_account(desk.layout, list)
    assert (account.delivered, account.by_reason(), account.backlog) == (10, {}, desk.count - 10)
    assert "the job is over, and 1 of them are open again" in caplog.text
