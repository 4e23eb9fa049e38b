"""Who sent how much: messages stored and refused, by uid, counted from the frames that are committed.

The *table*, SPOOL/senders, is a file of two banks with the rows of a ledger (spool.banks, spool.ledger), in
which a uid of four bytes stands in the place of the topic, and reason 0 counts what was stored. It names the
last burst that it counts, and is synced every second in which something came, and before a segment goes. So
whoever wants to know reads it, and the frames behind it: a frame counts once, whatever is killed in between.

A bank has 223 rows; who finds none is counted among the others, by reason. Not in here: what was discarded
while the spool had no room (the ledger knows topics, not senders), and what came before the table was begun.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.banks import BANK_BYTES, HEAD_BYTES, SyncedBanks, read_bank
from spool.disk import opened
from spool.errors import BadSpool, ReadFailed, SpoolFull
from spool.files import list_files
from spool.format import HEAD_BYTES as FRAME_HEAD_BYTES
from spool.format import SENDERS, UIDS, Record
from spool.frame import BURST, END, ROW, tail_at_start
from spool.kernel import address_of, interprets, kernel, load_i64, load_u16, load_u32, store_u32
from spool.layout import Layout
from spool.ledger import add, list_rows
from spool.live import Footer, read_footer
from spool.packed import header_of, open_plain
from spool.scan import Chunk, Scan, digest_address, read_header
from spool.skim import MOST_FRAMES, entrance_of, runs, uids_of
from spool.vouched import Place, behind, vouched_for
from spool.wire import REASONS

log = logging.getLogger("bruce.keeper")

UNKNOWN = 0xFFFFFFFF
"""In the place of a uid: by TCP there is none."""
_UID_BYTES = 4
_TRIES = 5
"""To look at a log whose segments get other names meanwhile."""


@dataclass(slots=True)
class Sender:
    """What one uid sent."""

    uid: int | None
    """None: all who found no row of their own."""
    stored: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """By reason."""

    @property
    def received(self) -> int:
        """Messages and what was refused."""
        return self.stored + self.refused.total()


@kernel
def count_senders(
    bank: int, base: int, frames: npt.NDArray[np.int64], after: int, scratch: int, digest: int
) -> int:
    """Count good frames behind burst `after` in the bank at address `bank`; the last burst counted.

    `base` is where offset 0 of the segment would lie, `scratch` the address of four bytes to work in.
    """
    for i in range(frames.shape[0]):
        at = base + frames[i, 0]
        burst, count, flags = load_i64(at + 40), load_u32(at + 16), load_u16(at + 14)
        if burst <= after:
            continue
        after = burst
        first, begin = at + FRAME_HEAD_BYTES + 4 * count, 0
        while begin < count:
            uid, end = load_u32(first + 4 * begin) if flags & UIDS else UNKNOWN, begin + 1
            while end < count and (not flags & UIDS or load_u32(first + 4 * end) == uid):
                end += 1
            store_u32(scratch, uid)
            add(bank, scratch, 4, 0, frames[i, 3], digest, end - begin)
            begin = end
        end = at + FRAME_HEAD_BYTES + load_u32(at + 24)
        row = end - load_u32(at + 28)
        named = 4 if flags & SENDERS else 0
        while row + 8 + named <= end:
            store_u32(scratch, load_u32(row + 8) if named else UNKNOWN)
            if load_u16(row) < REASONS:
                add(bank, scratch, 4, load_u16(row), frames[i, 3], digest, load_u32(row + 4))
            row += 8 + load_u16(row + 2)
    return after


class Count:
    """A table in memory, to be added to."""

    def __init__(self, burst: int, bank: bytes) -> None:
        self.burst = burst
        """The last one that is counted."""
        self.bank = np.frombuffer(bank or bytes(BANK_BYTES), np.uint8).copy()
        self._scratch = np.zeros(_UID_BYTES, np.uint8)

    def add(self, chunk: Chunk) -> None:
        """Count a run of good frames; those that are counted already are passed over."""
        base = address_of(chunk.data) - chunk.offset
        bank, scratch = address_of(self.bank), address_of(self._scratch)
        self.burst = int(count_senders(bank, base, chunk.frames, self.burst, scratch, digest_address()))

    def take(self, uids: Counter[int], burst: int) -> None:
        """Count messages by uid, which are all up to this burst."""
        bank, scratch = address_of(self.bank), address_of(self._scratch)
        for uid, number in uids.items():
            self._scratch.view(np.uint32)[0] = uid
            add(bank, scratch, _UID_BYTES, 0, 0, digest_address(), number)
        self.burst = burst

    def read(self, path: Path, known: Place | None = None) -> None:
        """Count what a segment holds behind the last burst. Raises BadSpool, OSError.

        `known`: what a keeper that lives vouches for, and is counted.
        """
        fd = open_plain(path)
        try:
            header, footer = header_of(fd, path), read_footer(fd)
            number = int(header["number"])
            tail = known[1].copy() if known and known[0] == number else tail_at_start(header)
            scan = Scan(fd, tail, int(footer[0]["end"]) if footer else None)
            if known:
                scan.vouched = behind(known, number)
            while True:
                while chunk := scan.next():
                    self.add(chunk)
                if scan.stopped == END or not (scan.is_being_stored() or scan.skip() is not None):
                    return
        finally:
            os.close(fd)


class SenderTable:
    """The keeper's side: it counts what is committed as it reads it."""

    def __init__(self, layout: Layout) -> None:
        """Read the table, and what sealed segments hold behind it; a new one begins with the unsealed."""
        self._path = layout.senders
        self._banks: SyncedBanks | None = None
        self._saved, bank = read_bank(layout.senders)
        self._count = Count(self._saved, bank)
        self._fails = False
        if self._saved:
            _read_behind(layout, self._count, sealed=True)

    def add(self, chunk: Chunk) -> None:
        """These frames were read, to be committed."""
        self._count.add(chunk)

    def begin(self, burst: int) -> None:
        """All that there is was counted, and the log ends with `burst`."""
        if self._count.burst > burst:
            # What it counts did not survive: those numbers will be given again.
            log.warning("%s counts messages that are gone", self._path)
            self._path.unlink(missing_ok=True)
            self._count.burst, self._saved = burst, 0

    def save(self, committed: int) -> None:
        """Sync the table, when all that it counts is committed, up to burst `committed`."""
        if self._count.burst == self._saved or self._count.burst > committed:
            return
        try:
            self._banks = self._banks or SyncedBanks(self._path)
            self._banks.put(self._count.bank[HEAD_BYTES:].tobytes(), self._count.burst)
            self._saved, self._fails = self._count.burst, False
        except (OSError, SpoolFull) as error:
            if not self._fails:
                log.warning("who sent how much cannot be written down: %s", error)
            self._fails = True

    def close(self) -> None:
        """Let go of the file."""
        if self._banks:
            self._banks.close()
            self._banks = None


def _read_behind(layout: Layout, count: Count, *, sealed: bool, known: Place | None = None) -> bool:
    """Count what segments hold behind the last burst, all or the sealed ones, and behind what is `known`.

    False when one was not there by the name that it was listed under: it has another now, or is counted.
    """
    found, whole = _list_behind(layout, count.burst, known, sealed=sealed)
    for path in found:
        try:
            count.read(path, known)
        except FileNotFoundError:
            whole = False
        except BadSpool as error:
            log.debug("%s is not counted by sender: %s", path, error)
    return whole


def _list_behind(layout: Layout, burst: int, known: Place | None, *, sealed: bool) -> tuple[list[Path], bool]:
    """The segments with frames behind a burst, in order, and whether each of them was there to be asked."""
    found, whole = list[Path](), True
    for path in reversed(list_files(layout)):
        try:
            with opened(path) as file:
                footer = read_footer(file.fileno())
                if _is_counted(burst, path, file.fileno(), footer, known):
                    break
        except FileNotFoundError:
            whole = False
            continue
        except ReadFailed as error:
            log.warning("%s; what it holds is not counted by sender", error)
            continue
        if footer or not sealed:
            found.append(path)
    return found[::-1], whole


def _is_counted(burst: int, path: Path, fd: int, footer: Footer | None, known: Place | None) -> bool:
    """Whether all that a segment holds is counted."""
    if footer:
        return int(footer[0]["burst"]) <= burst
    if known is None:
        return False
    try:
        return int(header_of(fd, path)["number"]) < known[0]
    except ReadFailed:
        raise
    except BadSpool:
        return False  # who reads it says what is wrong with it


def _skim_behind(layout: Layout, count: Count, known: Place) -> bool:
    """Count what is committed behind the last burst by going from head to head; False when not all of it was.

    `known`: where that ends, and a keeper that lives vouches for it.
    """
    last = int(known[1][BURST])
    if last - count.burst > MOST_FRAMES:
        return False
    uids, begun = Counter[int](), count.burst
    try:
        for path, header, end in _segments_behind(layout, begun, known):
            with opened(path) as file:
                for run in runs(file.fileno(), entrance_of(header), end):
                    uids.update(uids_of(run, begun))
    except (BadSpool, FileNotFoundError):
        return False
    count.take(uids, max(begun, last))
    return True


def _segments_behind(layout: Layout, burst: int, known: Place) -> list[tuple[Path, Record, int]]:
    """(path, header, last burst) of those with anything behind a burst, up to what is known, in order."""
    number, last = known[0], int(known[1][BURST])
    found: list[tuple[Path, Record, int]] = []
    for path in reversed(list_files(layout)):
        if last <= burst:
            break
        header = read_header(path)
        if int(header["number"]) <= number:
            found.insert(0, (path, header, last))
            last = int(header["burst"])
    return found


def read_senders(layout: Layout) -> list[Sender]:
    """Who sent how much, those with most first; nothing without a table. Raises OSError.

    Of a new spool, whose table is not written yet, what its one segment holds.
    """
    for _ in range(_TRIES):
        burst, bank = read_bank(layout.senders)
        if not burst and not _is_new(layout):
            return []
        count = Count(burst, bank)
        known = vouched_for(layout) if interprets() else None
        if known and not _skim_behind(layout, count, known):
            known = None
        if _read_behind(layout, count, sealed=False, known=known):
            break
    return list_senders(count)


def _is_new(layout: Layout) -> bool:
    """Whether a log has but one segment, its first, and never had a table."""
    paths = list_files(layout)
    if len(paths) != 1 or layout.senders.exists():
        return False
    try:
        return int(read_header(paths[0])["burst"]) == 0
    except (BadSpool, FileNotFoundError):
        return False


def list_senders(count: Count) -> list[Sender]:
    """What a table says."""
    found: dict[int | None, Sender] = {}
    for row in list_rows(count.bank):
        uid = int.from_bytes(row.topic, "little") if row.topic else None
        sender = found.setdefault(uid, Sender(uid))
        if row.reason:
            sender.refused[row.reason] += row.count
        else:
            sender.stored += row.count
    return sorted(found.values(), key=lambda one: -one.received)


def compile_kernels() -> None:
    """Compile, or load from the cache, what counting takes."""
    count_senders(0, 0, np.empty((0, ROW), np.int64), 0, 0, digest_address())
