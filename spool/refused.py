"""What was refused at intake, by topic where that is known, and reason: frames have it, and then the book.

The frames of a segment have a row for each reason and sender, of what is over its quota one for each topic.
When the keeper lets a segment go, these rows are carried into the *book*, SPOOL/refused: a file of two banks,
with the rows of a ledger (spool.banks, spool.ledger). The book is synced, then the segment is unlinked. A
bank names the last burst that it counts, and what frames have up to that burst counts no more: whatever is
killed in between, a row counts once, in the one place or in the other.

Headers carry totals by reason. What these have and the rows do not, since a frame is damaged or the book is
gone, is known by reason alone.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.banks import BANK_BYTES, HEAD_BYTES, SyncedBanks, read_bank
from spool.crash_point import reach
from spool.disk import FULL, open_to_read
from spool.errors import BadSpool, ReadFailed, SpoolFull
from spool.examination import skip_damage
from spool.files import list_files
from spool.format import HEAD_BYTES as FRAME_HEAD_BYTES
from spool.format import SENDERS
from spool.frame import BURST, LEAST_DATAGRAM_BYTES, ROW, tail_at_start
from spool.kernel import address_of, kernel, load_i64, load_u8, load_u16, load_u32
from spool.layout import SENT, SPARE, Layout
from spool.ledger import TOPIC_BYTES, Discards, add, list_rows
from spool.live import read_footer
from spool.packed import header_of, open_plain
from spool.scan import Chunk, Scan, digest_address
from spool.wire import REASONS, Reason, load_be16

log = logging.getLogger("bruce.keeper")

MOST_SAMPLES = 16
"""Of one reason: the newest."""
HOUR_NS = 3_600_000_000_000
READS = 4
"""Segments with anything refused in them that are carried over at a time: each is read, and unpacked."""
_NOTHING = np.empty((0, 7), np.int64)
_TRIES = 5
_OVER_QUOTA = int(Reason.OVER_QUOTA)

Rows = npt.NDArray[np.int64]
"""int64[n, 7]: reason, messages, burst, received (ns), offset in the segment and length of the sample, uid of
the sender."""
UID_UNKNOWN = 0xFFFFFFFF


@kernel
def list_refused(base: int, frames: npt.NDArray[np.int64], after: int, out: Rows) -> int:
    """Write the discard rows of good frames behind burst `after` to `out`; how many there are.

    `base` is where offset 0 of the segment would lie. What has no room in `out` is only counted.
    """
    count = 0
    for frame in range(frames.shape[0]):
        at = base + frames[frame, 0]
        burst = load_i64(at + 40)
        if load_u32(at + 20) == 0 or burst <= after:
            continue
        end = at + FRAME_HEAD_BYTES + load_u32(at + 24)
        row = end - load_u32(at + 28)
        named = 4 if load_u16(at + 14) & SENDERS else 0
        while row + 8 + named <= end:
            if count < out.shape[0]:
                out[count, 0], out[count, 1], out[count, 2] = load_u16(row), load_u32(row + 4), burst
                out[count, 3] = frames[frame, 3]
                sample = row + 8 + named
                length = min(load_u16(row + 2) - named, end - sample)
                out[count, 4], out[count, 5] = sample - base, max(0, length)
                out[count, 6] = load_u32(row + 8) if named else UID_UNKNOWN
            count += 1
            row += 8 + load_u16(row + 2)
    return count


@kernel
def add_refused(bank: int, base: int, rows: Rows, digest: int) -> None:
    """Count rows of `list_refused` in the bank at address `bank`."""
    for i in range(rows.shape[0]):
        reason, length, sample = rows[i, 0], rows[i, 5], base + rows[i, 4]
        if reason >= REASONS:
            continue
        topic = topic_bytes = 0
        # Well-formed; but a sample may end in the topic.
        if reason == _OVER_QUOTA and length >= LEAST_DATAGRAM_BYTES:
            topic = sample + 12 + 4 * (load_u8(sample + 5) & 1)
            topic_bytes = max(0, min(load_be16(topic - 2), length - (topic - sample), TOPIC_BYTES))
        add(bank, topic, topic_bytes, reason, rows[i, 3], digest, rows[i, 1])


class Refusals:
    """What frames have behind what a bank counts, added to it as segments are read."""

    def __init__(self, burst: int, bank: bytes) -> None:
        self._counted = burst
        self.burst = burst
        """The last one that is counted."""
        self.bank = np.frombuffer(bank or bytes(BANK_BYTES), np.uint8).copy()
        self.samples: dict[int, list[tuple[int, bytes]]] = {}
        """(received, first bytes) of the newest, by reason."""
        self.hours: Counter[tuple[int, int]] = Counter()
        """What was added, by reason and hour since the epoch."""

    def read(self, path: Path) -> bool:
        """Add what a segment has; whether it has, or had, anything. Raises BadSpool, OSError."""
        fd = open_to_read(path)
        try:
            header, footer = header_of(fd, path), read_footer(fd)
        finally:
            os.close(fd)
        unused = path.suffix == SPARE and header["first_sequence"] < 0
        if unused or (footer and not footer[0]["discarded"].any()):
            return False
        if footer and int(footer[0]["burst"]) <= self._counted:
            return True
        fd = open_plain(path)
        try:
            scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
            try:
                for chunk in _chunks(scan):
                    self._add(chunk)
            finally:
                self.burst = max(self.burst, int(scan.tail[BURST]))
        finally:
            os.close(fd)
        return True

    def _add(self, chunk: Chunk) -> None:
        base = address_of(chunk.data) - chunk.offset
        count = list_refused(base, chunk.frames, self._counted, _NOTHING)
        rows = np.empty((count, _NOTHING.shape[1]), np.int64)
        list_refused(base, chunk.frames, self._counted, rows)
        add_refused(address_of(self.bank), base, rows, digest_address())
        pairs, at = np.unique(rows[:, [0, 3]] // [1, HOUR_NS], axis=0, return_inverse=True)
        counts = np.bincount(at.ravel(), rows[:, 1], len(pairs)).astype(np.int64)
        self.hours.update(dict(zip(map(tuple, pairs.tolist()), counts.tolist(), strict=True)))
        for reason in np.unique(rows[:, 0]).tolist():
            newest = rows[rows[:, 0] == reason][-MOST_SAMPLES:, 3:6]
            found = [
                (received, chunk.data[at - chunk.offset :][:length].tobytes())
                for received, at, length in newest.tolist()
            ]
            self.samples[reason] = [*self.samples.get(reason, []), *found][-MOST_SAMPLES:]


def _chunks(scan: Scan) -> Iterator[Chunk]:
    """The good chunks, over damage, also while the segment is being written."""
    while True:
        while chunk := scan.next():
            yield chunk
        if skip_damage(scan) is None:
            return


@dataclass(frozen=True, slots=True)
class Refused:
    """Everything that was refused at intake and stood in frames."""

    discards: list[Discards]
    samples: dict[int, list[tuple[int, bytes]]]
    """(received, first bytes) of the newest in segments that are kept, by reason."""
    hours: Mapping[tuple[int, int], int]
    """By reason and hour since the epoch, of frames that the book does not count yet."""


def read_refused(layout: Layout) -> Refused:
    """Read the book, and the frames behind it, where the disk gives them. A daemon may be at work.

    Raises BadSpool, OSError.
    """
    for _ in range(_TRIES):
        book = read_bank(layout.refused)
        found = Refusals(*book)
        for path in list_files(layout):
            for name in (path, path.with_suffix(SENT)):
                try:
                    found.read(name)
                except FileNotFoundError:
                    continue
                except ReadFailed as error:
                    log.warning("what was refused there is known by reason alone: %s", error)
                break
        # A segment that went meanwhile stands in the book, which was read before.
        if read_bank(layout.refused)[0] == book[0]:
            break
    return Refused(list_rows(found.bank), found.samples, found.hours)


def carry_over(layout: Layout, leaving: Sequence[int]) -> list[int]:
    """Have the book count what segments hold, by their first sequences, in order: those that may go now.

    They are called sent. What is not delivered before them is counted with them: a bank speaks of all bursts
    up to one. Room for messages is worth more than a name beside a number: without any for the book, all may
    go. Raises OSError.
    """
    found, gone, read = Refusals(*read_bank(layout.refused)), list[int](), 0
    for first, suffix in layout.list_segments():
        if len(gone) == len(leaving) or (gone and read >= READS):
            break
        try:
            read += found.read(layout.segment(first, suffix))
        except (BadSpool, OSError) as error:
            log.warning("what a segment that goes has refused is known by reason alone: %s", error)
        if first in leaving:
            gone.append(first)
    if read:
        _write(layout, found)
    return gone


def _write(layout: Layout, found: Refusals) -> None:
    try:
        # Also without anything new: what was read there may be in memory only.
        with SyncedBanks(layout.refused) as book:
            if found.burst > book.burst:
                book.put(found.bank[HEAD_BYTES:].tobytes(), found.burst)
    except (SpoolFull, OSError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        log.warning("what segments that go have refused is known by reason alone: %s", error)
    reach("retire.counted")


def compile_kernels() -> None:
    """Compile, or load from the cache, what carrying over takes."""
    list_refused(0, np.empty((0, ROW), np.int64), 0, _NOTHING)
    add_refused(0, 0, _NOTHING, 0)
