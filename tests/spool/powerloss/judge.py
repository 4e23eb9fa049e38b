"""Opening the disk that a power loss left, and comparing it with the reports before the loss."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from spool.format.frame import SEQUENCE, STORED
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.read.overview import take_totals
from spool.shared.ledger import read_totals
from tests.spool.powerloss.record import Recorder
from tests.spool.powerloss.recording import MAX_BYTES, SEGMENT_BYTES, Facts, QuietSpool, Recording
from tests.spool.powerloss.states import ALL, NOTHING, Disk, Loss, disk_after


class Violation(AssertionError):
    """A state from which the spool did not recover correctly."""


class LateSpool(QuietSpool):
    """A spool that is opened in a later boot."""

    def __init__(self, directory: Path, runtime: Path, boot: int) -> None:
        self._first_boot = boot
        super().__init__(directory, runtime, segment_bytes=SEGMENT_BYTES, max_bytes=MAX_BYTES)

    def open(self) -> None:
        self.boot = max(self.boot, self._first_boot)
        super().open()


class Judge:
    """Tries states of one recording in `directory`."""

    def __init__(self, recording: Recording, directory: Path) -> None:
        self.recording, self.directory = recording, directory
        self.events = recording.recorder.events
        self.first = next(fact.events for fact in recording.facts if fact.sent) - 1
        """Events before this one made an empty spool."""

    def try_prefix(self, count: int) -> None:
        """Everything before an instant has reached the disk; then, only synced data has."""
        for loss in (ALL, NOTHING):
            disk = disk_after(self.events, count, loss, random.Random(0))
            self._try(disk, self.recording.at(count), f"prefix {count}, {loss}", random.Random(count))

    def try_one(self, seed: int) -> None:
        """Any instant, and any part of the unsynced data; sometimes with marks from another instant."""
        chance = random.Random(seed)
        count, loss = chance.randrange(self.first, len(self.events) + 1), Loss.of(chance)
        facts = self.recording.at(count)
        disk = disk_after(self.events, count, loss, chance)
        if chance.random() < 0.25:
            facts = self._with_other_marks(disk, facts, chance)
        self._try(disk, facts, f"state {seed}: {count} events, {loss}", chance)

    def _with_other_marks(self, disk: Disk, facts: Facts, chance: random.Random) -> Facts:
        """Put `delivery/` of an earlier or later instant beside the segments of this one."""
        count = chance.randrange(self.first, len(self.events) + 1)
        other, theirs = disk_after(self.events, count, ALL, chance), self.recording.at(count)
        spool = disk.names.get(self.recording.recorder.top, {}).get("spool", -1)
        delivery = disk.names.get(spool, {}).get("delivery", -1)
        if delivery not in disk.names or delivery not in other.names:
            return facts
        disk.names[delivery] = other.names[delivery]
        disk.files |= {inode: other.files[inode] for inode in other.names[delivery].values()}
        # No more marks are known than those of the later instant, and none is certain by either.
        low_watermark, delivered = (
            max(facts.low_watermark, theirs.low_watermark),
            facts.delivered | theirs.delivered,
        )
        return replace(
            facts, low_watermark=low_watermark, resolved=frozenset(), delivered=delivered, copied=-1
        )

    def _try(self, disk: Disk, facts: Facts, what: str, chance: random.Random) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        recorder = self.recording.recorder
        disk.write(recorder.top, self.directory / "disk", recorder.directories)
        layout = Layout(self.directory / "disk" / "spool")
        try:
            if layout.directory.is_dir() and chance.random() < 0.5:
                layout.index.mkdir()
                (layout.index / "data.mdb").write_bytes(chance.randbytes(20_000))
            if chance.random() < 0.1:
                self._lose_power_again(chance)
            self._open_and_check(facts)
        except Exception as error:
            raise Violation(f"{what}: {error!r}") from error

    def _lose_power_again(self, chance: random.Random) -> None:
        """Power goes while the spool is being opened."""
        disk_path = self.directory / "disk"
        recorder = Recorder(disk_path)
        given = len(recorder.events)
        recorder.sync(recorder.top)
        for event in recorder.events:
            event.durable = 0
        with recorder.at_work():
            spool = LateSpool(disk_path, self.directory, 2)
        spool.close()
        count = chance.randrange(given, len(recorder.events) + 1)
        disk = disk_after(recorder.events, count, Loss.of(chance), chance)
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        disk.write(recorder.top, disk_path, recorder.directories)

    def _open_and_check(self, facts: Facts) -> None:
        spool = LateSpool(self.directory / "disk", self.directory, 3)
        try:
            found = spool.records()
            self._check_messages(found, facts)
            self._check_ledger(spool.layout, facts)
            self._check_stored(spool, facts)
            first = int(spool.append([encode(b"t", b"after"), encode(b"t", b"wards")]))
            spool.step()
            self._check_numbers(spool, first, facts)
            self._check_marks(spool, found, first, facts)
            account = take_totals(spool.layout, list)
            settled = account.delivered + sum(account.by_reason().values()) + account.backlog
            assert account.received == settled, "the totals do not balance"
            assert account.backlog >= 2, f"new messages count as delivered: {account}"
        finally:
            spool.close()

    def _check_messages(self, found: list[tuple[int, bytes]], facts: Facts) -> None:
        sent, known = self.recording.sent, list(self.recording.sent)[: facts.sent]
        for sequence, datagram in found:
            assert sent.get(sequence) == datagram, f"{sequence} is not what was sent"
        numbers = [sequence for sequence, _ in found]
        assert numbers == sorted(set(numbers)), "out of order, or twice"
        assert set(numbers) <= set(known), "from the future"
        missing = [s for s in known if facts.low_watermark <= s < facts.synced and s not in set(numbers)]
        assert not missing, f"synced up to {facts.synced}, and lost: {missing}"

    def _check_ledger(self, layout: Layout, facts: Facts) -> None:
        counted = sum(row.count for row in read_totals(layout.ledger)[1])
        assert facts.copied <= counted <= facts.discarded, f"the ledger counts {counted}: {facts}"

    def _check_stored(self, spool: QuietSpool, facts: Facts) -> None:
        stored, known = int(spool.writer.tail[STORED]), list(self.recording.sent)[: facts.sent]
        synced = sum(sequence < facts.synced for sequence in known)
        assert synced <= stored <= len(known), f"{stored} stored; {synced} synced of {len(known)}"

    def _check_numbers(self, spool: QuietSpool, first: int, facts: Facts) -> None:
        known = list(self.recording.sent)[: facts.sent]
        reused = bool(known) and first <= known[-1] and self._is_same(spool)
        assert not reused, f"number {first} is given out again"
        assert spool.synced == int(spool.writer.tail[SEQUENCE]), "new messages are not synced"

    def _is_same(self, spool: QuietSpool) -> bool:
        """Whether it is the same spool: otherwise its numbers differ, too."""
        return spool.identity.spool == self.recording.spool

    def _check_marks(
        self, spool: QuietSpool, found: list[tuple[int, bytes]], first: int, facts: Facts
    ) -> None:
        marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
        try:
            low_watermark, _ = marks.low_watermark()
            bits = {
                info.first_sequence + int(bit)
                for info, _, bitmap in marks.chunks()
                for bit in np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
            }
        finally:
            marks.close()
        assert low_watermark <= first, f"the floor {low_watermark} is behind what follows, {first}"
        assert not bits & {first, first + 1}, "new messages are marked"
        for sequence, _ in found:
            marked = sequence < low_watermark or sequence in bits
            assert not marked or sequence in facts.delivered, f"{sequence} is marked, and was not delivered"
            was_marked = facts.copied >= 0 and (sequence < facts.low_watermark or sequence in facts.resolved)
            assert marked or not was_marked, f"{sequence} was marked, and is not"
