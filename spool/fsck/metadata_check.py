"""The metadata check: index, marks, outcome files and ledger; read, then compared with the segments."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from spool.format.damage import ranges
from spool.format.frame import DIGEST, POSITION, SEQUENCE, Tail
from spool.format.packed import open_plain
from spool.format.segment_format import HEAD, HEAD_BYTES
from spool.fsck.examination import Examination
from spool.fsck.finding import Finding, Kind, Severity, damage
from spool.index.committed import NAME, is_blank, read_committed
from spool.index.environment import UNREADABLE
from spool.index.index import Entry, read_entries
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import SENT, Layout
from spool.marks.marks import Marks
from spool.marks.outcomes import read_pending_outcomes
from spool.native.digest import CHUNK_MESSAGES
from spool.shared.ledger import read_totals
from spool.storage.ab_slots import SLOTS_BYTES
from spool.storage.disk import read_at, read_bytes
from spool.words import counted

_AGAIN = "messages that only they call delivered will be sent again"
_NOT_YET = "the marks get it from the daemon, `brucectl drain` or the next job"
_TRIES = 3
"""How often to read a file that a daemon may be writing at this moment."""


class MetadataCheck:
    """Index, marks, outcome files and ledger of a spool, as they were before its segments were examined."""

    def __init__(self, layout: Layout, spool: bytes) -> None:
        """`spool`: its uuid."""
        self._layout, self._spool = layout, spool
        self._committed: tuple[int, Tail] | None = None
        self._entries: list[Entry] = []
        self._low_watermark = 0
        self._vanished: tuple[int, int] | None = None
        """(first sequence, messages) that are gone before the oldest segment."""
        self._highest: dict[int, int] = {}
        """Segment number -> the highest sequence marked as resolved in it."""
        self._findings = [
            *self._read_index(),
            *self._read_outcomes(),
            *self._read_marks(),
            *self._read_ledger(),
        ]

    def unreadable(self) -> Iterator[Finding]:
        """Files that could not be read."""
        yield from self._findings

    def against(self, examined: Sequence[Examination]) -> Iterator[Finding]:
        """Metadata that does not match the segments."""
        by_number = {int(one.header["number"]): one for one in examined if one.header is not None}
        if not any(one.unread for one in examined):
            yield from self._check_committed(by_number)
        yield from self._check_entries(by_number)
        yield from self._check_marks(by_number)
        yield from self._check_beginning(by_number)

    def _read_index(self) -> Iterator[Finding]:
        path = self._layout.index / "data.mdb"
        self._committed = read_committed(self._layout.index)
        if not has_begun(path.parent):
            return
        for _ in range(_TRIES):
            entries = read_entries(self._layout.index)
            if entries is not None:
                self._entries = entries
                break
        else:
            yield damage(path, 0, Kind.INDEX, "the index cannot be read; the next start rebuilds it")
        # An index that has just been made has neither.
        if self._committed is None and (self._entries or not is_blank(path.parent)):
            yield damage(
                path.with_name(NAME),
                0,
                Kind.INDEX,
                "the committed end cannot be read; the next start writes it",
            )

    def _read_outcomes(self) -> Iterator[Finding]:
        try:
            found = read_pending_outcomes(self._layout, self._spool)
        except OSError:
            return  # a segment's header cannot be read: that is a finding of its own
        for path, error in found.refused.items():
            yield damage(path, 0, Kind.OUTCOMES, f"it {str(error).removeprefix(f'{path} ')}")
        for path, file in found.files.items():
            sentence = (
                f"a job has written down what became of {counted(len(file.sequences), 'message')}; {_NOT_YET}"
            )
            yield Finding(path, 0, Severity.NOTE, Kind.OUTCOMES, sentence)

    def _read_marks(self) -> Iterator[Finding]:
        path = self._layout.delivery / "data.mdb"
        if not has_begun(path.parent):
            return
        for _ in range(_TRIES):
            wrong = self._open_marks(path)
            if wrong == []:
                return
        if wrong is None:
            yield damage(path, 0, Kind.MARKS, f"the marks cannot be read; {_AGAIN}")
        else:
            rows = ", ".join(f"{count} of '{table}'" for table, count in Counter(wrong).items())
            yield damage(path, 0, Kind.MARKS, f"rows do not match their segments: {rows}; {_AGAIN}")

    def _open_marks(self, path: Path) -> list[str] | None:
        """Load the marks; the tables of rows that match no segment, or None when they cannot be read."""
        try:
            marks = Marks(path.parent, SegmentList(self._layout), readonly=True)
        except UNREADABLE:
            return None
        except OSError:
            # A segment's header cannot be read: that is a finding of its own.
            return []
        try:
            wrong = [table for table, _ in marks.mismatches()]
            self._low_watermark, _ = marks.low_watermark()
            self._vanished = marks.vanished()
            for info, chunk, bitmap in marks.chunks():
                bits = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
                last = info.first_sequence + chunk * CHUNK_MESSAGES + int(bits[-1]) if len(bits) else -1
                self._highest[info.number] = max(last, self._highest.get(info.number, -1))
        except UNREADABLE:
            return None
        else:
            return wrong
        finally:
            marks.close()

    def _read_ledger(self) -> Iterator[Finding]:
        path = self._layout.ledger
        if not path.exists():
            return
        if path.stat().st_size != SLOTS_BYTES:
            yield damage(
                path, 0, Kind.LEDGER, f"the ledger has {path.stat().st_size} bytes, not {SLOTS_BYTES}"
            )
            return
        for _ in range(_TRIES):
            if read_totals(path)[0] or not any(read_bytes(path, SLOTS_BYTES)):
                return
        yield damage(path, 0, Kind.LEDGER, "the ledger cannot be read: what it counted is gone")

    def _check_committed(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """Check the committed end of the log: all synced frames must exist."""
        if self._committed is None or not by_number:
            return
        number, tail = self._committed
        one, position = by_number.get(number), int(tail[POSITION])
        if one is None and number > max(by_number):
            newest = by_number[max(by_number)]
            lost = int(tail[SEQUENCE]) - int(newest.tail[SEQUENCE])
            sentence = f"segment {number}, which the index knows, is gone, with {counted(lost, 'message')}"
            missing = ranges((int(newest.tail[SEQUENCE]), lost))
            yield damage(newest.path, newest.end, Kind.MISSING, sentence, missing)
        elif one is not None and position > one.end:
            if one.whole:
                lost = int(tail[SEQUENCE]) - int(one.tail[SEQUENCE])
                sentence = f"gone from its end, though committed: {counted(lost, 'message')}"
                missing = ranges((int(one.tail[SEQUENCE]), lost))
                yield damage(one.path, one.end, Kind.MISSING, sentence, missing)
        elif one is not None and one.whole and not _passes(one, position, int(tail[DIGEST])):
            yield self._mismatch(
                f"the committed place, byte {position} of {one.path.name}, is none in the log", NAME
            )

    def _check_entries(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """Check that each entry leads to the frame that it names."""
        wrong = 0
        for sequence, number, offset, digest, _ in self._entries:
            one = by_number.get(number)
            if one is not None and one.whole:
                wrong += not _is_there(one.path, offset, {"first_sequence": sequence, "previous": digest})
        if wrong:
            yield self._mismatch(f"{wrong} of {len(self._entries)} entries lead to no frame of theirs")

    def _check_marks(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """Check that all messages marked as resolved are within the log."""
        if not by_number:
            return
        newest = by_number[max(by_number)]
        goes_on = int(newest.tail[SEQUENCE])
        beyond = [
            self._low_watermark - 1,
            *(last for number, last in self._highest.items() if number in by_number),
        ]
        if newest.whole and max(beyond) >= goes_on:
            sentence = f"messages up to {max(beyond)} are marked as delivered; the log ends before {goes_on}"
            yield damage(newest.path, newest.end, Kind.MISSING, sentence)

    def _check_beginning(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """Check that all messages before the oldest segment were resolved."""
        if by_number and self._vanished:
            first, count = self._vanished
            some, were = counted(count, "message"), "was" if count == 1 else "were"
            sentence = f"segments before it are gone: up to {some} from {first} on {were} not delivered"
            yield damage(by_number[min(by_number)].path, 48, Kind.MISSING, sentence)

    def _mismatch(self, sentence: str, name: str = "data.mdb") -> Finding:
        path = self._layout.index / name
        return damage(path, 0, Kind.INDEX, f"{sentence}; the next start rebuilds the index")


def _is_there(path: Path, offset: int, fields: dict[str, int]) -> bool:
    """Whether a frame with these fields begins at an offset of a segment; True for a removed segment."""
    for name in (path, path.with_suffix(SENT)):
        try:
            fd = open_plain(name)
        except FileNotFoundError:
            continue
        try:
            data = read_at(fd, HEAD_BYTES, offset)
        finally:
            os.close(fd)
        head = np.frombuffer(data.ljust(HEAD_BYTES, b"\0"), HEAD)[0]
        return all(int(head[field]) == value for field, value in fields.items())
    return True


def _passes(one: Examination, position: int, digest: int) -> bool:
    """Whether a frame with this digest ends at a position of a segment."""
    digest &= 0xFFFFFFFFFFFFFFFF
    if position == one.end:
        return int(one.tail[DIGEST]) & 0xFFFFFFFFFFFFFFFF == digest
    return _is_there(one.path, position, {"previous": digest})
