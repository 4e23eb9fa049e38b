"""Totals of the intake, counted from frames: by sender, and by topic and reason of what was refused.

Each kind has a table, SPOOL/senders and SPOOL/refused: a file of two slots with the rows of a ledger
(spool.storage.ab_slots, spool.shared.ledger), which the keeper syncs. A slot names the last burst that it
counts. A reader takes the table and the frames behind it, so a frame counts once, in the one place or in the
other, whatever process is killed in between. All frames of the log have a row for each reason and sender; for
messages over a quota, one for each topic.

SPOOL/senders: the place of the topic has a uid of four bytes, and reason 0 counts stored messages. The keeper
counts what it commits, and syncs the table every second in which something came, and before it removes a
segment. A slot has 223 rows; a uid that finds none is counted among the others, by reason. Not counted here:
messages discarded while the spool had no room (the ledger knows topics, not senders), and those that came
before the table was begun.

SPOOL/refused: the *intake discard totals*. The keeper adds the rows of a segment when it removes it: first it
syncs the table, then it unlinks the segment. Headers carry totals by reason. Messages in these totals but not
in the rows, because a frame is damaged or the table is gone, are known by reason alone.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, ReadFailed, SpoolFull
from spool.format.frame import (
    BURST,
    END,
    FRAME_AT,
    FRAME_RECEIVED,
    LEAST_DATAGRAM_BYTES,
    ROW,
    Frames,
    tail_at_start,
)
from spool.format.head_scan import MOST_FRAMES, entrance_of, runs, uids_of
from spool.format.packed import header_of, open_plain
from spool.format.scan import Chunk, Scan, digest_address, read_header, skip_damage
from spool.format.segment import list_files
from spool.format.segment_format import (
    BODY_BYTES_AT,
    BURST_AT,
    COUNT_AT,
    DISCARD_BYTES_AT,
    DISCARDED_AT,
    FLAGS_AT,
    ROW_COUNT_AT,
    ROW_HEAD_BYTES,
    ROW_REASON_AT,
    ROW_SIZE_AT,
    ROW_UID_AT,
    SENDERS,
    UID_BYTES,
    UIDS,
    Footer,
    Record,
)
from spool.format.segment_format import HEAD_BYTES as FRAME_HEAD_BYTES
from spool.format.wire import (
    REASONS,
    TOPIC_SIZE_BYTES,
    Reason,
    load_be16,
    topic_at,
)
from spool.index.committed import CommittedEnd
from spool.index.log_end import behind, committed_end, read_footer
from spool.layout import SENT, SPARE, Layout
from spool.native.kernel import interprets, kernel
from spool.native.memory import Address, address_of, load_i64, load_u16, load_u32, store_u32
from spool.shared.ledger import TOPIC_BYTES, Discards, add, list_rows
from spool.storage.ab_slots import HEAD_BYTES, SLOT_BYTES, SyncedSlots, read_slot
from spool.storage.disk import FULL, open_to_read, opened
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.keeper")

UNKNOWN = 0xFFFFFFFF
"""In the place of a uid: TCP gives none."""
MOST_SAMPLES = 16
"""Of one reason: the newest."""
HOUR_NS = 3_600_000_000_000
READS = 4
"""How many segments with refused messages to carry over at a time: each is read, and unpacked."""
_TRIES = 5
"""To look at a log whose segments are renamed or removed meanwhile."""
_OVER_QUOTA = int(Reason.OVER_QUOTA)

Rows = npt.NDArray[np.int64]
"""int64[n, _FIELDS]: discard rows of frames."""
_FIELDS = 7
_REASON, _MESSAGES, _BURST, _RECEIVED, _SAMPLE_AT, _SAMPLE_BYTES, _UID = range(_FIELDS)
"""Time of reception in ns; offset in the segment, and length, of the sample; uid of the sender."""
_NOTHING = np.empty((0, _FIELDS), np.int64)


class FrameTable:
    """A table in memory, to which frames behind its last burst are added."""

    def __init__(self, burst: int, slot: bytes) -> None:
        """`slot`: as in the file, counting up to `burst`; empty for a new table."""
        self.burst = burst
        """The last burst that is counted."""
        self.slot = np.frombuffer(slot or bytes(SLOT_BYTES), np.uint8).copy()

    def add(self, chunk: Chunk) -> None:
        """Count a run of good frames; skip those that are counted already."""
        raise NotImplementedError

    def read_frames(self, path: Path, known: CommittedEnd | None = None, *, zeros: bool = True) -> None:
        """Count the frames of a segment behind the last burst, also past damage. Raises BadSpool, OSError.

        `known`: the end that a live keeper has committed; the frames up to it are counted already. `zeros`:
        look for frames behind zeros, too, which takes the time to read them.
        """
        fd = open_plain(path)
        try:
            header, footer = header_of(fd, path), read_footer(fd)
            number = int(header["number"])
            tail = known[1].copy() if known and known[0] == number else tail_at_start(header)
            scan = Scan(fd, tail, int(footer.fields["end"]) if footer else None)
            if known:
                scan.committed = behind(known, number)
            try:
                while True:
                    while chunk := scan.over(zeros=zeros):
                        self.add(chunk)
                    if (scan.stopped == END and not zeros) or skip_damage(scan) is None:
                        return
            finally:
                self.burst = max(self.burst, int(scan.tail[BURST]))
        finally:
            os.close(fd)


@dataclass(slots=True)
class Sender:
    """The totals of one uid."""

    uid: int | None
    """None: all uids that found no row of their own."""
    stored: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """By reason."""

    @property
    def received(self) -> int:
        """Stored and refused messages."""
        return self.stored + self.refused.total()


@kernel
def count_senders(
    slot: Address, base: Address, frames: Frames, after: int, scratch: Address, digest: int
) -> int:
    """Count good frames behind burst `after` in the slot at address `slot`; the last burst counted.

    `base` is the address that offset 0 of the segment would have, `scratch` that of four bytes to work in.
    `frames` int64[n, ROW].
    """
    for i in range(frames.shape[0]):
        at = base + frames[i, FRAME_AT]
        burst, count, flags = load_i64(at + BURST_AT), load_u32(at + COUNT_AT), load_u16(at + FLAGS_AT)
        if burst <= after:
            continue
        after = burst
        first, begin = at + FRAME_HEAD_BYTES + 4 * count, 0
        while begin < count:
            uid, end = load_u32(first + 4 * begin) if flags & UIDS else UNKNOWN, begin + 1
            while end < count and (not flags & UIDS or load_u32(first + 4 * end) == uid):
                end += 1
            store_u32(scratch, uid)
            add(slot, scratch, UID_BYTES, 0, frames[i, FRAME_RECEIVED], digest, end - begin)
            begin = end
        end = at + FRAME_HEAD_BYTES + load_u32(at + BODY_BYTES_AT)
        row = end - load_u32(at + DISCARD_BYTES_AT)
        named = UID_BYTES if flags & SENDERS else 0
        while row + ROW_HEAD_BYTES + named <= end:
            store_u32(scratch, load_u32(row + ROW_UID_AT) if named else UNKNOWN)
            reason, refused = load_u16(row + ROW_REASON_AT), load_u32(row + ROW_COUNT_AT)
            if reason < REASONS:
                add(slot, scratch, UID_BYTES, reason, frames[i, FRAME_RECEIVED], digest, refused)
            row += ROW_HEAD_BYTES + load_u16(row + ROW_SIZE_AT)
    return after


class SenderCount(FrameTable):
    """Messages by uid."""

    def __init__(self, burst: int, slot: bytes) -> None:
        super().__init__(burst, slot)
        self._scratch = np.zeros(UID_BYTES, np.uint8)
        # To ask for an address costs more than to count a burst.
        self._places = address_of(self.slot), address_of(self._scratch)

    def add(self, chunk: Chunk) -> None:
        """Count the messages, and what was refused, of a run of good frames by sender."""
        slot, scratch = self._places
        self.burst = int(count_senders(slot, chunk.base, chunk.frames, self.burst, scratch, digest_address()))

    def take(self, uids: Counter[int], burst: int) -> None:
        """Count messages by uid; all of them are in bursts up to this one."""
        slot, scratch = self._places
        for uid, number in uids.items():
            self._scratch.view(np.uint32)[0] = uid
            add(slot, scratch, UID_BYTES, 0, 0, digest_address(), number)
        self.burst = burst


class SenderTable:
    """The keeper's side: it counts what is committed as it reads it."""

    def __init__(self, layout: Layout) -> None:
        """Read the table, and the sealed segments behind it; a new table begins with the unsealed ones."""
        self._path = layout.senders
        self._slots: SyncedSlots | None = None
        try:
            self._saved, slot = read_slot(layout.senders)
        except OSError as error:
            log.warning("%s; totals by uid begin again", error)
            self._saved, slot = 0, b""
        self._count = SenderCount(self._saved, slot)
        self._fails = False
        if self._saved:
            _read_behind(layout, self._count, sealed=True)

    def add(self, chunk: Chunk) -> None:
        """Count frames that were read to be committed."""
        self._count.add(chunk)

    def begin(self, burst: int) -> None:
        """Note that all frames were counted, and that the log ends with `burst`."""
        if self._count.burst > burst:
            # Frames that it counts did not survive: their burst numbers will be given out again.
            log.warning("%s counts messages that are gone", self._path)
            self._path.unlink(missing_ok=True)
            self._count.burst, self._saved = burst, 0

    def save(self, committed: int) -> None:
        """Sync the table, if every burst that it counts is committed; `committed`: the last one that is."""
        if self._count.burst == self._saved or self._count.burst > committed:
            return
        try:
            self._slots = self._slots or SyncedSlots(self._path)
            self._slots.put(self._count.slot[HEAD_BYTES:].tobytes(), self._count.burst)
            self._saved, self._fails = self._count.burst, False
        except (OSError, SpoolFull) as error:
            if not self._fails:
                log.warning("cannot save the totals by uid: %s", error)
            self._fails = True

    def close(self) -> None:
        """Close the file."""
        if self._slots:
            self._slots.close()
            self._slots = None


def _read_behind(
    layout: Layout, count: SenderCount, *, sealed: bool, known: CommittedEnd | None = None
) -> bool:
    """Count the frames of segments, all or only the sealed ones, behind the last burst and behind `known`.

    False when a segment was not found by the name that it was listed under: it was renamed, or is counted.
    """
    found, whole = _list_behind(layout, count.burst, known, sealed=sealed)
    for path in found:
        try:
            count.read_frames(path, known, zeros=False)
        except FileNotFoundError:
            whole = False
        except BadSpool as error:
            log.debug("%s is not counted by sender: %s", path, error)
    return whole


def _list_behind(
    layout: Layout, burst: int, known: CommittedEnd | None, *, sealed: bool
) -> tuple[list[Path], bool]:
    """The segments with frames behind a burst, in order, and whether each of them could be opened."""
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


def _is_counted(burst: int, path: Path, fd: int, footer: Footer | None, known: CommittedEnd | None) -> bool:
    """Whether all frames of a segment are counted."""
    if footer:
        return int(footer.fields["burst"]) <= burst
    if known is None:
        return False
    try:
        return int(header_of(fd, path)["number"]) < known[0]
    except ReadFailed:
        raise
    except BadSpool:
        return False  # the read that follows says what is wrong with it


def _scan_heads_behind(layout: Layout, count: SenderCount, known: CommittedEnd) -> bool:
    """Count committed frames behind the last burst by a head scan; False when some were left out.

    `known`: the end that a live keeper has committed.
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


def _segments_behind(layout: Layout, burst: int, known: CommittedEnd) -> list[tuple[Path, Record, int]]:
    """(path, header, last burst) of the segments with frames behind a burst, up to `known`, in order."""
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
    """The totals by uid, those with most messages first; empty without a table. Raises OSError.

    For a new spool, whose table is not written yet, they come from its one segment.
    """
    for _ in range(_TRIES):
        burst, slot = read_slot(layout.senders)
        if not burst and not _is_new(layout):
            return []
        count = SenderCount(burst, slot)
        known = committed_end(layout) if interprets() else None
        if known and not _scan_heads_behind(layout, count, known):
            known = None
        if _read_behind(layout, count, sealed=False, known=known):
            break
    return list_senders(count)


def _is_new(layout: Layout) -> bool:
    """Whether a log has only one segment, its first, and never had a table."""
    paths = list_files(layout)
    if len(paths) != 1 or layout.senders.exists():
        return False
    try:
        return int(read_header(paths[0])["burst"]) == 0
    except (BadSpool, FileNotFoundError):
        return False


def list_senders(count: SenderCount) -> list[Sender]:
    """The totals in a table, those with most messages first."""
    found: dict[int | None, Sender] = {}
    for row in list_rows(count.slot):
        uid = int.from_bytes(row.topic, "little") if row.topic else None
        sender = found.setdefault(uid, Sender(uid))
        if row.reason:
            sender.refused[row.reason] += row.count
        else:
            sender.stored += row.count
    return sorted(found.values(), key=lambda one: -one.received)


@kernel
def list_refused(base: Address, frames: Frames, after: int, out: Rows) -> int:
    """Write the discard rows of good frames behind burst `after` to `out`; how many there are.

    `base` is the address that offset 0 of the segment would have. `frames` int64[n, ROW]; rows that do not
    fit in `out` int64[rows, _FIELDS] are only counted.
    """
    count = 0
    for frame in range(frames.shape[0]):
        at = base + frames[frame, FRAME_AT]
        burst = load_i64(at + BURST_AT)
        if load_u32(at + DISCARDED_AT) == 0 or burst <= after:
            continue
        end = at + FRAME_HEAD_BYTES + load_u32(at + BODY_BYTES_AT)
        row = end - load_u32(at + DISCARD_BYTES_AT)
        named = UID_BYTES if load_u16(at + FLAGS_AT) & SENDERS else 0
        while row + ROW_HEAD_BYTES + named <= end:
            if count < out.shape[0]:
                sample = row + ROW_HEAD_BYTES + named
                out[count, _REASON] = load_u16(row + ROW_REASON_AT)
                out[count, _MESSAGES] = load_u32(row + ROW_COUNT_AT)
                out[count, _BURST], out[count, _RECEIVED] = burst, frames[frame, FRAME_RECEIVED]
                out[count, _SAMPLE_AT] = sample - base
                out[count, _SAMPLE_BYTES] = max(0, min(load_u16(row + ROW_SIZE_AT) - named, end - sample))
                out[count, _UID] = load_u32(row + ROW_UID_AT) if named else UNKNOWN
            count += 1
            row += ROW_HEAD_BYTES + load_u16(row + ROW_SIZE_AT)
    return count


@kernel
def add_refused(slot: Address, base: Address, rows: Rows, digest: int) -> None:
    """Count rows int64[n, _FIELDS] of `list_refused` in the slot at address `slot`."""
    for i in range(rows.shape[0]):
        reason, length = rows[i, _REASON], rows[i, _SAMPLE_BYTES]
        sample = base + rows[i, _SAMPLE_AT]
        if reason >= REASONS:
            continue
        topic = topic_bytes = 0
        # The message is well-formed, but the sample may be cut within the topic.
        if reason == _OVER_QUOTA and length >= LEAST_DATAGRAM_BYTES:
            size_at = topic_at(sample)
            topic = size_at + TOPIC_SIZE_BYTES
            topic_bytes = max(0, min(load_be16(size_at), length - (topic - sample), TOPIC_BYTES))
        add(slot, Address(topic), topic_bytes, reason, rows[i, _RECEIVED], digest, rows[i, _MESSAGES])


class Refusals(FrameTable):
    """Refused messages by topic and reason."""

    def __init__(self, burst: int, slot: bytes) -> None:
        super().__init__(burst, slot)
        self._counted = burst
        self.samples: dict[int, list[tuple[int, bytes]]] = {}
        """(received, first bytes) of the newest, by reason."""
        self.hours: Counter[tuple[int, int]] = Counter()
        """The messages that were added, by reason and hour since the epoch."""

    def read(self, path: Path) -> bool:
        """Add the rows of a segment; whether it has, or had, any. Raises BadSpool, OSError."""
        fd = open_to_read(path)
        try:
            header, footer = header_of(fd, path), read_footer(fd)
        finally:
            os.close(fd)
        unused = path.suffix == SPARE and header["first_sequence"] < 0
        if unused or (footer and not footer.fields["discarded"].any()):
            return False
        if not footer or int(footer.fields["burst"]) > self._counted:
            self.read_frames(path)
        return True

    def add(self, chunk: Chunk) -> None:
        """Count what was refused in a run of good frames; keep the newest samples."""
        count = list_refused(chunk.base, chunk.frames, self._counted, _NOTHING)
        rows = np.empty((count, _FIELDS), np.int64)
        list_refused(chunk.base, chunk.frames, self._counted, rows)
        add_refused(address_of(self.slot), chunk.base, rows, digest_address())
        pairs, at = np.unique(rows[:, [_REASON, _RECEIVED]] // [1, HOUR_NS], axis=0, return_inverse=True)
        counts = np.bincount(at.ravel(), rows[:, _MESSAGES], len(pairs)).astype(np.int64)
        self.hours.update(dict(zip(map(tuple, pairs.tolist()), counts.tolist(), strict=True)))
        for reason in np.unique(rows[:, _REASON]).tolist():
            newest = rows[rows[:, _REASON] == reason][-MOST_SAMPLES:]
            found = [
                (received, chunk.data[at - chunk.offset :][:length].tobytes())
                for received, at, length in newest[:, [_RECEIVED, _SAMPLE_AT, _SAMPLE_BYTES]].tolist()
            ]
            self.samples[reason] = [*self.samples.get(reason, []), *found][-MOST_SAMPLES:]


@dataclass(frozen=True, slots=True)
class Refused:
    """Everything that was refused at intake and recorded in frames."""

    discards: list[Discards]
    samples: dict[int, list[tuple[int, bytes]]]
    """(received, first bytes) of the newest in segments that are kept, by reason."""
    hours: Mapping[tuple[int, int], int]
    """By reason and hour since the epoch, of frames that the book does not count yet."""


def read_refused(layout: Layout) -> Refused:
    """Read the book, and the readable frames behind it. A daemon may be at work.

    Raises BadSpool, OSError.
    """
    for _ in range(_TRIES):
        book = read_slot(layout.refused)
        found = Refusals(*book)
        for path in list_files(layout):
            for name in (path, path.with_suffix(SENT)):
                try:
                    found.read(name)
                except FileNotFoundError:
                    continue
                except ReadFailed as error:
                    log.warning("discards of a segment are known by reason alone: %s", error)
                break
        # A segment that was removed meanwhile is counted in the book, which was read before: read it again.
        if read_slot(layout.refused)[0] == book[0]:
            break
    return Refused(list_rows(found.slot), found.samples, found.hours)


def carry_over(layout: Layout, leaving: Sequence[int]) -> list[int]:
    """Carry the rows of segments over to the book. Returns the segments that may be removed now.

    `leaving`: the first sequences of segments that are called sent, in order. Rows of undelivered segments
    before them are counted with them, since a slot counts all bursts up to one. Room for messages is worth
    more than a name beside a number: when there is no room for the book, or the disk does not give it, all
    may go. Raises OSError.
    """
    try:
        book = read_slot(layout.refused)
    except ReadFailed as error:
        log.warning("%s; the discards of segments that are removed are known by reason alone", error)
        return list(leaving)
    found, gone, read = Refusals(*book), list[int](), 0
    for first, suffix in layout.list_segments():
        if len(gone) == len(leaving) or (gone and read >= READS):
            break
        try:
            read += found.read(layout.segment(first, suffix))
        except (BadSpool, OSError) as error:
            log.warning("the discards of a segment that is removed are known by reason alone: %s", error)
        if first in leaving:
            gone.append(first)
    if read:
        _write(layout, found)
    return gone


def _write(layout: Layout, found: Refusals) -> None:
    try:
        # Also without new rows: the file that was read may be in memory only.
        with SyncedSlots(layout.refused) as book:
            if found.burst > book.burst:
                book.put(found.slot[HEAD_BYTES:].tobytes(), found.burst)
    except (SpoolFull, OSError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        log.warning("the discards of segments that are removed are known by reason alone: %s", error)
    reach("retire.counted")


def compile_kernels() -> None:
    """Compile the kernels that counting takes."""
    nowhere, frames = Address(0), np.empty((0, ROW), np.int64)
    count_senders(nowhere, nowhere, frames, 0, nowhere, digest_address())
    list_refused(nowhere, frames, 0, _NOTHING)
    add_refused(nowhere, nowhere, _NOTHING, 0)
