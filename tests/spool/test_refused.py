"""What was refused at intake is known by topic, reason and time after its segment is gone; no row twice."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from spool import crash_point, refused
from spool.banks import BANK_BYTES
from spool.layout import SENT
from spool.packer import Packer
from spool.page import Field
from spool.refused import MOST_SAMPLES, carry_over, read_refused
from spool.wire import Reason, encode
from tests.spool.rig import SEGMENT_BYTES, Rig
from tests.spool.test_crash_points import Countdown

NOW = 10**18
TOPICS = [b"a", b"b", b"l" * 249]
Totals = Counter[tuple[bytes, int]]


class Books:
    """A spool whose frames refuse, and what they refused."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.rig = Rig(directory, segment_bytes=segment_bytes, max_bytes=128 * segment_bytes)
        self.refused: Totals = Counter()
        self.frames = 0

    def fill(self, frames: int, *, only: int | None = None) -> None:
        """Frames that each refuse some of one topic for its quota, and some that are too short."""
        for _ in range(frames):
            number = self.frames
            topic = TOPICS[number % len(TOPICS)]
            sample = encode(topic, b"", partition_key=7 if number % 2 else None)
            rows = {Reason.SHORT: (2, b"xy"), Reason.OVER_QUOTA: (1 + number % 5, sample)}
            rows = {reason: row for reason, row in rows.items() if only in (None, reason)}
            self.rig.append([encode(b"t", b"v" * 300)] * 3, refused=rows, received_ns=NOW + number)
            for reason, (count, _) in rows.items():
                self.refused[topic[:216] if reason == Reason.OVER_QUOTA else b"", reason] += count
            self.frames += 1
        self.rig.step()

    def deliver(self) -> list[int]:
        """Everything is delivered; the segments that may go."""
        self.rig.page.words[Field.FLOOR] = self.rig.synced
        self.rig.step()
        return [first for first, suffix in self.rig.layout.list_segments() if suffix == SENT]

    def totals(self) -> Totals:
        """By topic and reason, as whoever looks finds it."""
        return Counter({(row.topic, row.reason): row.count for row in read_refused(self.rig.layout).discards})

    def die_at(self, point: str, run: Callable[[], object]) -> None:
        """Run this in a process that is killed when it comes to a crash point."""
        armed = self.rig.directory / "armed"
        armed.write_text(f"{point}\n")
        pid = os.fork()
        if not pid:
            crash_point.ARMED = str(armed)
            try:
                run()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def books(memory: Path) -> Iterator[Books]:
    """With several segments of refusals, all delivered."""
    made = Books(memory)
    made.fill(60)
    made.deliver()
    yield made
    made.rig.crash()


def test_a_segment_goes_and_its_counts_stay(books: Books) -> None:
    """By topic, as far as a row has of its name, reason, and first and last time; samples go with it."""
    before = read_refused(books.rig.layout)
    assert books.totals() == books.refused
    (first,) = [row for row in before.discards if row.topic == b"a"]
    assert (first.first_ns, first.last_ns) == (NOW, NOW + 57)
    while sent := books.deliver():
        books.rig.keeper._stock.remove(sent)
    after = read_refused(books.rig.layout)
    assert len(books.rig.layout.list_segments()) == 1
    assert sorted(after.discards, key=str) == sorted(before.discards, key=str)
    assert {reason: len(some) for reason, some in before.samples.items()} == {
        1: MOST_SAMPLES,
        17: MOST_SAMPLES,
    }
    assert len(after.samples[1]) < MOST_SAMPLES


def test_a_segment_without_refusals_costs_nothing(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its footer says so: it is not read, and the book is not written."""
    rig = Rig(memory)
    rig.fill(200)
    rig.step()
    rig.page.words[Field.FLOOR] = rig.synced
    for _ in range(30):
        rig.step()
    before = rig.layout.refused.read_bytes()
    monkeypatch.setattr(refused, "open_plain", None)
    monkeypatch.setattr(refused, "SyncedBanks", None)
    sent = [first for first, suffix in rig.layout.list_segments() if suffix == SENT]
    assert len(sent) > refused.READS
    assert carry_over(rig.layout, sent) == sent
    assert rig.layout.refused.read_bytes() == before
    rig.crash()


@pytest.mark.crash
@pytest.mark.parametrize("point", ["retire.counted", "retire.removed"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "without footers"])
def test_killed_between_the_book_and_the_unlinking(
    books: Books, point: str, *, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGKILL, again and again until all that may go has gone: no row is lost, and none counts twice."""
    if not sealed:
        monkeypatch.setattr(refused, "read_footer", lambda _fd: None)
    while sent := books.deliver():
        books.die_at(point, partial(books.rig.keeper._stock.remove, sent))
        assert books.totals() == books.refused
        books.rig.reopen()
        assert books.totals() == books.refused
        if point == "retire.counted":
            assert books.deliver() == sent
            books.rig.keeper._stock.remove(sent)
            assert books.totals() == books.refused
    books.fill(10)
    assert books.totals() == books.refused


@pytest.mark.crash
def test_a_crash_at_any_call(memory: Path) -> None:
    """Before each call that the removal makes of the system: then, and after the next start, all is exact."""
    for at in range(200):
        books, countdown = Books(memory / str(at)), Countdown(at)
        books.fill(30)
        sent = books.deliver()
        with countdown.armed():
            books.rig.keeper._stock.remove(sent)
        gc.collect()
        assert books.totals() == books.refused, countdown.names[-1]
        books.rig.reopen()
        while sent := books.deliver():
            books.rig.keeper._stock.remove(sent)
        assert books.totals() == books.refused, countdown.names[-1]
        books.rig.crash()
        if len(countdown.names) <= at:
            assert at > 10
            return


def test_power_goes_before_the_book_is_synced(books: Books) -> None:
    """Any of the newer bank's sectors is lost, and the segments are there, since they go later: exact."""
    sent = books.deliver()
    books.die_at("retire.counted", lambda: books.rig.keeper._stock.remove(sent[:2]))
    before = books.rig.layout.refused.read_bytes()
    books.die_at("retire.counted", lambda: books.rig.keeper._stock.remove(sent[:3]))
    after = books.rig.layout.refused.read_bytes()
    changed = [
        n for n in (0, 1) if before[n * BANK_BYTES :][:BANK_BYTES] != after[n * BANK_BYTES :][:BANK_BYTES]
    ]
    assert len(changed) == 1, "the bank that was right is written, too"
    for seed in range(20):
        chance, torn = random.Random(seed), bytearray(after)
        for sector in range(0, len(torn), 512):
            if chance.random() < 0.5:
                torn[sector : sector + 512] = before[sector : sector + 512]
        books.rig.layout.refused.write_bytes(torn)
        assert books.totals() == books.refused


@pytest.mark.parametrize("good", [0, 1])
def test_a_failed_sync_of_the_book_keeps_the_segments(
    books: Books, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is in memory, and perhaps only there: nothing goes before a sync of it has succeeded."""
    sent, real, calls = books.deliver(), os.fdatasync, 0
    # The table of senders has syncs of its own.
    books.rig.keeper._stock.leaving = lambda: None

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
                books.rig.keeper._stock.remove(sent)
    assert calls == 3 + good
    assert books.deliver() == sent
    books.rig.keeper._stock.remove(sent)
    assert books.totals() == books.refused


def test_a_few_at_a_time(books: Books) -> None:
    """Segments with refusals are read: not so many at once that the keeper syncs nothing meanwhile."""
    sent = books.deliver()
    assert len(sent) > refused.READS
    books.rig.keeper._stock.remove(sent)
    assert books.deliver() == sent[refused.READS :]
    assert books.totals() == books.refused


def test_out_of_order(books: Books) -> None:
    """After a power loss a later segment may be called sent and an earlier one not: each counts once."""
    sent = books.deliver()
    layout = books.rig.layout
    os.rename(layout.segment(sent[0], SENT), layout.segment(sent[0]))
    books.rig.keeper._stock.remove(sent[1:2])
    assert books.totals() == books.refused
    assert [first for first, _ in layout.list_segments()][:2] == [sent[0], sent[2]]
    while sent := books.deliver():
        books.rig.keeper._stock.remove(sent)
    assert books.totals() == books.refused


def test_a_packed_segment_tells_the_same(memory: Path) -> None:
    """While it is there, and when it goes."""
    books = Books(memory, segment_bytes=65536)
    books.fill(200)
    packer = Packer(books.rig.layout)
    first = books.rig.layout.list_segments()[0][0]
    packed = packer._pack(books.rig.layout.segment(first))
    assert packed
    os.rename(packed, books.rig.layout.segment(first))
    assert books.totals() == books.refused
    books.rig.keeper._stock.remove(books.deliver())
    assert first not in [first for first, _ in books.rig.layout.list_segments()]
    assert books.totals() == books.refused
    packer.close()
    books.rig.crash()


def test_no_room_for_the_book(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment goes all the same: the disk is full, and its room is worth more than names."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sent = books.deliver()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        books.rig.keeper._stock.remove(sent[:1])
    assert books.deliver() == sent[1:]
    assert books.totals() < books.refused
    books.rig.keeper._stock.remove(sent[1:2])
    assert books.deliver() == sent[2:]


def test_a_new_log_has_a_new_book(books: Books) -> None:
    """All segments are gone, by hand: what the book counts was in a log that is no more."""
    books.rig.keeper._stock.remove(books.deliver())
    books.rig.crash()
    for path in books.rig.layout.segments.iterdir():
        path.unlink()
    books.rig.open()
    books.refused.clear()
    assert books.totals() == Counter()
    books.fill(5)
    assert books.totals() == books.refused
