"""Totals of the intake: by sender, and what was refused, after its segment is gone, too.

Each message counts once, whatever is killed in between.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from spool.errors import ReadFailed
from spool.format.frame import BURST
from spool.format.segment import list_files
from spool.format.segment_format import SENDERS
from spool.format.wire import Reason, encode
from spool.layout import SENT
from spool.log import intake_totals, keeper
from spool.log.intake_totals import (
    MOST_SAMPLES,
    UNKNOWN,
    SenderTable,
    carry_over,
    read_refused,
    read_senders,
)
from spool.log.retention import Packer
from spool.shared.state import Field
from spool.storage import failpoint
from spool.storage.ab_slots import SLOT_BYTES, SLOTS_BYTES
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture
from tests.spool.test_crash_points import Countdown

NOW = 10**18
TOPICS = [b"a", b"b", b"l" * 249]
Totals = Counter[tuple[bytes, int]]


class TotalsFixture:
    """A spool whose frames have refused datagrams, and the counts of these."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.spool = SpoolFixture(directory, segment_bytes=segment_bytes, max_bytes=128 * segment_bytes)
        self.refused: Totals = Counter()
        self.frames = 0

    def fill(self, frames: int, *, only: int | None = None) -> None:
        """Frames that each refuse some datagrams of one topic for its quota, and some that are too short."""
        for _ in range(frames):
            number = self.frames
            topic = TOPICS[number % len(TOPICS)]
            sample = encode(topic, b"", partition_key=7 if number % 2 else None)
            rows = {Reason.SHORT: (2, b"xy"), Reason.OVER_QUOTA: (1 + number % 5, sample)}
            rows = {reason: row for reason, row in rows.items() if only in (None, reason)}
            self.spool.append([encode(b"t", b"v" * 300)] * 3, refused=rows, received_ns=NOW + number)
            for reason, (count, _) in rows.items():
                self.refused[topic[:216] if reason == Reason.OVER_QUOTA else b"", reason] += count
            self.frames += 1
        self.spool.step()

    def deliver(self) -> list[int]:
        """Deliver everything; returns the segments that may go."""
        self.spool.shared.words[Field.LOW_WATERMARK] = self.spool.synced
        self.spool.step()
        return [first for first, suffix in self.spool.layout.list_segments() if suffix == SENT]

    def totals(self) -> Totals:
        """The totals by topic and reason that any reader finds."""
        return Counter(
            {(row.topic, row.reason): row.count for row in read_refused(self.spool.layout).discards}
        )

    def die_at(self, point: str, run: Callable[[], object]) -> None:
        """Run this in a process that is killed at a failpoint."""
        armed = self.spool.directory / "armed"
        armed.write_text(f"{point}\n")
        pid = os.fork()
        if not pid:
            failpoint.ARMED = str(armed)
            try:
                run()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def fixture(memory: Path) -> Iterator[TotalsFixture]:
    """Several segments with refusals, all delivered."""
    made = TotalsFixture(memory)
    made.fill(60)
    made.deliver()
    yield made
    made.spool.crash()


def test_a_segment_goes_and_its_counts_stay(fixture: TotalsFixture) -> None:
    """By topic, as far as a row has of its name, reason, and first and last time; samples go with it."""
    before = read_refused(fixture.spool.layout)
    assert fixture.totals() == fixture.refused
    (first,) = [row for row in before.discards if row.topic == b"a"]
    assert (first.first_ns, first.last_ns) == (NOW, NOW + 57)
    while sent := fixture.deliver():
        fixture.spool.keeper._stock.remove(sent)
    after = read_refused(fixture.spool.layout)
    assert len(fixture.spool.layout.list_segments()) == 1
    assert sorted(after.discards, key=str) == sorted(before.discards, key=str)
    assert {reason: len(some) for reason, some in before.samples.items()} == {
        1: MOST_SAMPLES,
        17: MOST_SAMPLES,
    }
    assert len(after.samples[1]) < MOST_SAMPLES


def test_a_segment_without_refusals_costs_nothing(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its footer shows that: it is not read, and the totals are not written."""
    spool = SpoolFixture(memory)
    spool.fill(200)
    spool.step()
    spool.shared.words[Field.LOW_WATERMARK] = spool.synced
    for _ in range(30):
        spool.step()
    before = spool.layout.refused.read_bytes()
    monkeypatch.setattr(intake_totals, "open_plain", None)
    monkeypatch.setattr(intake_totals, "SyncedSlots", None)
    sent = [first for first, suffix in spool.layout.list_segments() if suffix == SENT]
    assert len(sent) > intake_totals.READS
    assert carry_over(spool.layout, sent) == sent
    assert spool.layout.refused.read_bytes() == before
    spool.crash()


@pytest.mark.crash
@pytest.mark.parametrize("point", ["retire.counted", "retire.removed"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "without footers"])
def test_killed_between_the_book_and_the_unlinking(
    fixture: TotalsFixture, point: str, *, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGKILL, until all removable segments are gone: no row is lost, and none counts twice."""
    if not sealed:
        monkeypatch.setattr(intake_totals, "read_footer", lambda _fd: None)
    while sent := fixture.deliver():
        fixture.die_at(point, partial(fixture.spool.keeper._stock.remove, sent))
        assert fixture.totals() == fixture.refused
        fixture.spool.reopen()
        assert fixture.totals() == fixture.refused
        if point == "retire.counted":
            assert fixture.deliver() == sent
            fixture.spool.keeper._stock.remove(sent)
            assert fixture.totals() == fixture.refused
    fixture.fill(10)
    assert fixture.totals() == fixture.refused


@pytest.mark.crash
def test_a_crash_at_any_call(memory: Path) -> None:
    """Before each system call of the removal: then, and after the next start, all is exact."""
    for at in range(200):
        fixture, countdown = TotalsFixture(memory / str(at)), Countdown(at)
        fixture.fill(30)
        sent = fixture.deliver()
        with countdown.armed():
            fixture.spool.keeper._stock.remove(sent)
        gc.collect()
        assert fixture.totals() == fixture.refused, countdown.names[-1]
        fixture.spool.reopen()
        while sent := fixture.deliver():
            fixture.spool.keeper._stock.remove(sent)
        assert fixture.totals() == fixture.refused, countdown.names[-1]
        fixture.spool.crash()
        if len(countdown.names) <= at:
            assert at > 10
            return


def test_power_goes_before_the_totals_are_synced(fixture: TotalsFixture) -> None:
    """Any of the newer slot's sectors is lost, and the segments are there, since they go later: exact."""
    sent = fixture.deliver()
    fixture.die_at("retire.counted", lambda: fixture.spool.keeper._stock.remove(sent[:2]))
    before = fixture.spool.layout.refused.read_bytes()
    fixture.die_at("retire.counted", lambda: fixture.spool.keeper._stock.remove(sent[:3]))
    after = fixture.spool.layout.refused.read_bytes()
    changed = [
        n for n in (0, 1) if before[n * SLOT_BYTES :][:SLOT_BYTES] != after[n * SLOT_BYTES :][:SLOT_BYTES]
    ]
    assert len(changed) == 1, "the slot that was right is written, too"
    for seed in range(20):
        chance, torn = random.Random(seed), bytearray(after)
        for sector in range(0, len(torn), 512):
            if chance.random() < 0.5:
                torn[sector : sector + 512] = before[sector : sector + 512]
        fixture.spool.layout.refused.write_bytes(torn)
        assert fixture.totals() == fixture.refused


@pytest.mark.parametrize("good", [0, 1])
def test_a_failed_sync_of_the_book_keeps_the_segments(
    fixture: TotalsFixture, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The totals are perhaps only in memory: no segment goes before a sync of them has succeeded."""
    sent, real, calls = fixture.deliver(), os.fdatasync, 0
    # The table of senders has syncs of its own.
    fixture.spool.keeper._stock.leaving = lambda: None

    def fail(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls <= good:
            return real(fd)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        for _ in range(3):
            with pytest.raises(OSError, match="Input"):
                fixture.spool.keeper._stock.remove(sent)
    assert calls == 3 + good
    assert fixture.deliver() == sent
    fixture.spool.keeper._stock.remove(sent)
    assert fixture.totals() == fixture.refused


def test_a_few_at_a_time(fixture: TotalsFixture) -> None:
    """Segments with refusals are read: not so many at once that the keeper syncs nothing meanwhile."""
    sent = fixture.deliver()
    assert len(sent) > intake_totals.READS
    fixture.spool.keeper._stock.remove(sent)
    assert fixture.deliver() == sent[intake_totals.READS :]
    assert fixture.totals() == fixture.refused


def test_out_of_order(fixture: TotalsFixture) -> None:
    """After a power loss a later segment may be called sent and an earlier one not: each counts once."""
    sent = fixture.deliver()
    layout = fixture.spool.layout
    os.rename(layout.segment(sent[0], SENT), layout.segment(sent[0]))
    fixture.spool.keeper._stock.remove(sent[1:2])
    assert fixture.totals() == fixture.refused
    assert [first for first, _ in layout.list_segments()][:2] == [sent[0], sent[2]]
    while sent := fixture.deliver():
        fixture.spool.keeper._stock.remove(sent)
    assert fixture.totals() == fixture.refused


def test_a_packed_segment_tells_the_same(memory: Path) -> None:
    """The totals are the same while it is there, and when it goes."""
    fixture = TotalsFixture(memory, segment_bytes=65536)
    fixture.fill(200)
    packer = Packer(fixture.spool.layout)
    first = fixture.spool.layout.list_segments()[0][0]
    packed = packer._pack(fixture.spool.layout.segment(first))
    assert packed
    os.rename(packed, fixture.spool.layout.segment(first))
    assert fixture.totals() == fixture.refused
    fixture.spool.keeper._stock.remove(fixture.deliver())
    assert first not in [first for first, _ in fixture.spool.layout.list_segments()]
    assert fixture.totals() == fixture.refused
    packer.close()
    fixture.spool.crash()


def test_no_room_for_the_totals(fixture: TotalsFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment goes all the same: on a full disk, its room is worth more than names."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sent = fixture.deliver()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        fixture.spool.keeper._stock.remove(sent[:1])
    assert fixture.deliver() == sent[1:]
    assert fixture.totals() < fixture.refused
    fixture.spool.keeper._stock.remove(sent[1:2])
    assert fixture.deliver() == sent[2:]


def test_a_new_log_has_new_totals(fixture: TotalsFixture) -> None:
    """All segments were removed by hand: the former totals belong to a log that no longer exists."""
    fixture.spool.keeper._stock.remove(fixture.deliver())
    fixture.spool.crash()
    for path in fixture.spool.layout.segments.iterdir():
        path.unlink()
    fixture.spool.open()
    fixture.refused.clear()
    assert fixture.totals() == Counter()
    fixture.fill(5)
    assert fixture.totals() == fixture.refused


A, B = 1001, 1002


def told(spool: SpoolFixture) -> dict[int | None, tuple[int, int]]:
    """(stored, refused) by uid."""
    return {one.uid: (one.stored, one.refused.total()) for one in read_senders(spool.layout)}


def append(spool: SpoolFixture, uid: int, count: int, *, short: int = 0) -> None:
    """Write a frame of this sender, with so many refused ones."""
    sample = uid.to_bytes(4, "little") + b"x"
    refused = {int(Reason.SHORT): (short, sample)} if short else None
    spool.append([encode(b"t", b"")] * count, sender=(uid, 1), refused=refused, flags=SENDERS)


@pytest.fixture
def counting(spool: SpoolFixture) -> SpoolFixture:
    """A spool of which a table has been begun."""
    append(spool, A, 1)
    spool.keeper.commit()
    spool.keeper._save_senders()
    return spool


def test_before_a_table_there_is_nothing(spool: SpoolFixture) -> None:
    """A spool of an earlier release is not walked for it."""
    assert read_senders(spool.layout) == []


def test_the_first_second(spool: SpoolFixture) -> None:
    """Of a new spool frames tell before there is a table; of a longer one they might not tell all."""
    append(spool, A, 3, short=2)
    assert not spool.layout.senders.exists()
    assert told(spool) == {A: (3, 2)}
    while len(spool.layout.list_segments()) < 2:
        append(spool, A, 40)
        spool.keeper.commit()
    spool.layout.senders.unlink(missing_ok=True)
    assert read_senders(spool.layout) == []


def test_a_segment_that_gets_another_name_meanwhile(
    counting: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader looks for it again: no sender's count is short for a moment."""
    append(counting, B, 5)
    counting.keeper.commit()
    wanted, listed = told(counting), list_files(counting.layout)
    lists = iter([[path.with_suffix(".spare") for path in listed]])
    monkeypatch.setattr(intake_totals, "list_files", lambda _: next(lists, listed))
    assert told(counting) == wanted


def test_stored_and_refused_by_sender(counting: SpoolFixture) -> None:
    """Rows behind the table are counted from the frames, committed or not."""
    append(counting, A, 3, short=2)
    append(counting, B, 5)
    assert told(counting) == {A: (4, 2), B: (5, 0)}
    counting.keeper.commit()
    assert told(counting) == {A: (4, 2), B: (5, 0)}
    counting.keeper._save_senders()
    assert told(counting) == {A: (4, 2), B: (5, 0)}


def test_rows_without_a_sender(counting: SpoolFixture) -> None:
    """Frames of earlier releases, and messages by TCP, have no known sender."""
    refused = {int(Reason.SHORT): (7, b"x")}
    counting.writer.append([encode(b"t", b"")] * 2, sender=(UNKNOWN, UNKNOWN), refused=refused)
    assert told(counting) == {A: (1, 0), UNKNOWN: (2, 7)}


def test_a_frame_counts_once(counting: SpoolFixture) -> None:
    """Over segments, kills before the table is saved, and a keeper that reads them all again."""
    for n in range(40):
        append(counting, A if n % 2 else B, 30, short=1)
        if n == 20:
            counting.keeper._save_senders()
    counting.keeper.commit()
    wanted = {A: (1 + 20 * 30, 20), B: (20 * 30, 20)}
    assert len(counting.layout.list_segments()) > 1
    assert told(counting) == wanted
    counting.crash()
    counting.reopen()
    assert told(counting) == wanted
    counting.keeper._save_senders()
    assert told(counting) == wanted


def test_the_table_is_never_ahead_of_what_is_committed(counting: SpoolFixture) -> None:
    """While it counts what is not, as of a suspect segment, it is not saved."""
    append(counting, B, 5)
    senders = counting.keeper._senders
    senders.save(0)
    before = counting.layout.senders.read_bytes()
    counting.keeper.commit()
    burst = int(counting.writer.tail[BURST])
    senders.save(burst - 1)
    assert counting.layout.senders.read_bytes() == before
    senders.save(burst)
    assert counting.layout.senders.read_bytes() != before
    assert told(counting) == {A: (1, 0), B: (5, 0)}


def test_another_log_has_another_table(counting: SpoolFixture) -> None:
    """A spool whose segments are gone has a new identity: it does not count what its predecessor got."""
    append(counting, B, 5)
    counting.keeper.commit()
    counting.keeper._save_senders()
    counting.crash()
    shutil.rmtree(counting.layout.segments)
    counting.open()
    append(counting, A, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting) == {A: (2, 0)}


def test_senders_beyond_the_rows_are_others(counting: SpoolFixture) -> None:
    """A table has 223 rows; a sender without one is counted with the others, and none is lost."""
    for uid in range(2000, 2300):
        append(counting, uid, 1)
    counting.keeper.commit()
    found = told(counting)
    assert found[None] == (300 + 1 - 223, 0)
    assert len(found) == 224
    assert sum(stored for stored, _ in found.values()) == 301


def test_a_segment_goes_when_it_is_counted(counting: SpoolFixture) -> None:
    """Removed segments stay counted: the table is saved before."""
    while len(counting.layout.list_segments()) < 3:
        append(counting, B, 40)
        counting.keeper.commit()
    wanted = told(counting)
    counting.shared.words[Field.LOW_WATERMARK] = counting.synced
    counting.keeper._retire()
    first = counting.layout.list_segments()[0][0]
    counting.keeper._stock.remove([first])
    assert counting.layout.list_segments()[0][0] > first
    assert told(counting) == wanted
    counting.crash()
    counting.reopen()
    assert told(counting) == wanted


@pytest.mark.parametrize(
    "content", [b"", bytes(SLOTS_BYTES), b"\xff" * SLOTS_BYTES], ids=["cut", "zeros", "rot"]
)
def test_a_table_that_cannot_be_read_is_begun_anew(counting: SpoolFixture, content: bytes) -> None:
    """It is derived: nothing else depends on it."""
    counting.layout.senders.write_bytes(content)
    assert read_senders(counting.layout) == []
    counting.crash()
    counting.reopen()
    append(counting, B, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting)[B] == (2, 0)


def test_a_table_ahead_of_the_log(counting: SpoolFixture) -> None:
    """After a disk lost what it had called synced, the numbers of bursts are given again, and are counted."""
    table = SenderTable(counting.layout)
    table._count.burst += 1000
    table.save(1 << 40)
    table.close()
    counting.crash()
    counting.reopen()
    append(counting, B, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting)[B] == (2, 0)


def test_tables_that_the_disk_does_not_give(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad sector in a count stops no commit, and keeps no segment: the log says what is not known."""
    spool = SpoolFixture(memory)
    spool.fill(3)
    spool.step()

    def refuse(path: Path, *_: object) -> None:
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(intake_totals, "read_slot", refuse)
    assert intake_totals.carry_over(spool.layout, [0, 5]) == [0, 5]
    monkeypatch.setattr(keeper, "read_ledger", refuse)
    spool.crash()
    spool.open()
    spool.fill(3)
    spool.keeper._note_history()
    spool.step()
    assert spool.synced == 18
    assert "totals by uid begin again" in caplog.text
    assert "known by reason alone" in caplog.text
    spool.crash()
