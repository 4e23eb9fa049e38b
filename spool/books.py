"""What speaks of segments without being one: index, marks, outcome files, ledger; read, then compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from spool.banks import BANKS_BYTES
from spool.catalogue import Catalogue
from spool.changes import CHUNK_MESSAGES
from spool.disk import read_at, read_bytes
from spool.environment import UNREADABLE
from spool.examination import Examination
from spool.finding import Finding, Kind, Severity, damage
from spool.format import HEAD, HEAD_BYTES
from spool.frame import DIGEST, POSITION, SEQUENCE, Tail
from spool.index import Entry, read_index
from spool.layout import SENT, Layout
from spool.ledger import read_books
from spool.marks import Marks
from spool.packed import open_plain
from spool.unadopted import read_unadopted

_AGAIN = "what only they call delivered will be sent again"
_NOT_YET = "the marks get it from the daemon, `brucectl drain` or the next job"
_TRIES = 3
"""Looks at what a daemon may be writing at this moment."""


class Books:
    """Index, marks, outcome files and ledger of a spool, as they were before its segments were looked at."""

    def __init__(self, layout: Layout, spool: bytes) -> None:
        """`spool`: its uuid."""
        self._layout, self._spool = layout, spool
        self._committed: tuple[int, Tail] | None = None
        self._entries: list[Entry] = []
        self._floor = 0
        self._vanished: tuple[int, int] | None = None
        """(first sequence, messages) of what is gone before the oldest segment."""
        self._highest: dict[int, int] = {}
        """Segment number -> the highest sequence marked as resolved in it."""
        self._findings = [
            *self._read_index(),
            *self._read_outcomes(),
            *self._read_marks(),
            *self._read_ledger(),
        ]

    def unreadable(self) -> Iterator[Finding]:
        """What could not be read."""
        yield from self._findings

    def against(self, examined: Sequence[Examination]) -> Iterator[Finding]:
        """What does not match the segments."""
        by_number = {int(one.header["number"]): one for one in examined if one.header is not None}
        if not any(one.unread for one in examined):
            yield from self._check_committed(by_number)
        yield from self._check_entries(by_number)
        yield from self._check_marks(by_number)
        yield from self._check_beginning(by_number)

    def _read_index(self) -> Iterator[Finding]:
        path = self._layout.index / "data.mdb"
        if not path.exists():
            return
        for _ in range(_TRIES):
            found = read_index(self._layout.index)
            if found is not None:
                self._committed, self._entries = found
                return
        yield damage(path, 0, Kind.INDEX, "the index cannot be read; the next start builds it anew")

    def _read_outcomes(self) -> Iterator[Finding]:
        try:
            found = read_unadopted(self._layout, self._spool)
        except OSError:
            return  # a segment that does not give its header; it gets a finding of its own
        for path, error in found.refused.items():
            yield damage(path, 0, Kind.OUTCOMES, f"it {str(error).removeprefix(f'{path} ')}")
        for path, file in found.files.items():
            sentence = f"what became of {len(file.sequences)} messages, told by a job; {_NOT_YET}"
            yield Finding(path, 0, Severity.NOTE, Kind.OUTCOMES, sentence)

    def _read_marks(self) -> Iterator[Finding]:
        path = self._layout.delivery / "data.mdb"
        if not path.exists():
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
        """Take what the marks say; the tables of rows that match nothing, None when they cannot be read."""
        try:
            marks = Marks(path.parent, Catalogue(self._layout), readonly=True)
        except UNREADABLE:
            return None
        except OSError:
            # A segment that does not give its header; it gets a finding of its own.
            return []
        try:
            wrong = [table for table, _ in marks.mismatches()]
            self._floor, _ = marks.floor()
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
        if path.stat().st_size != BANKS_BYTES:
            yield damage(
                path, 0, Kind.LEDGER, f"the ledger has {path.stat().st_size} bytes, not {BANKS_BYTES}"
            )
            return
        for _ in range(_TRIES):
            if read_books(path)[0] or not any(read_bytes(path, BANKS_BYTES)):
                return
        yield damage(path, 0, Kind.LEDGER, "the ledger cannot be read: what it counted is gone")

    def _check_committed(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """The committed end of the log: what was synced must be there."""
        if self._committed is None or not by_number:
            return
        number, tail = self._committed
        one, position = by_number.get(number), int(tail[POSITION])
        if one is None and number > max(by_number):
            newest = by_number[max(by_number)]
            lost = int(tail[SEQUENCE]) - int(newest.tail[SEQUENCE])
            sentence = f"segment {number}, which the index knows, is gone, and {lost} messages with it"
            yield damage(newest.path, newest.end, Kind.MISSING, sentence)
        elif one is not None and position > one.end:
            if one.whole:
                lost = int(tail[SEQUENCE]) - int(one.tail[SEQUENCE])
                sentence = f"{lost} messages are gone from its end, which the index calls committed"
                yield damage(one.path, one.end, Kind.MISSING, sentence)
        elif one is not None and one.whole and not _passes(one, position, int(tail[DIGEST])):
            yield self._mismatch(
                f"the committed place, byte {position} of {one.path.name}, is none in the log"
            )

    def _check_entries(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """Each entry leads to the frame that it names."""
        wrong = 0
        for sequence, number, offset, digest, _ in self._entries:
            one = by_number.get(number)
            if one is not None and one.whole:
                wrong += not _is_there(one.path, offset, {"first_sequence": sequence, "previous": digest})
        if wrong:
            yield self._mismatch(f"{wrong} of {len(self._entries)} entries lead to no frame of theirs")

    def _check_marks(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """What was delivered must be there."""
        if not by_number:
            return
        newest = by_number[max(by_number)]
        goes_on = int(newest.tail[SEQUENCE])
        beyond = [self._floor - 1, *(last for number, last in self._highest.items() if number in by_number)]
        if newest.whole and max(beyond) >= goes_on:
            sentence = f"messages up to {max(beyond)} are marked as delivered; the log ends before {goes_on}"
            yield damage(newest.path, newest.end, Kind.MISSING, sentence)

    def _check_beginning(self, by_number: dict[int, Examination]) -> Iterator[Finding]:
        """What lies before the oldest segment was delivered, or is gone."""
        if by_number and self._vanished:
            first, count = self._vanished
            sentence = (
                f"segments before it are gone: up to {count} messages from {first} on were not delivered"
            )
            yield damage(by_number[min(by_number)].path, 48, Kind.MISSING, sentence)

    def _mismatch(self, sentence: str) -> Finding:
        path = self._layout.index / "data.mdb"
        return damage(path, 0, Kind.INDEX, f"{sentence}; the next start builds the index anew")


def _is_there(path: Path, offset: int, fields: dict[str, int]) -> bool:
    """Whether a frame with these fields begins at an offset of a segment; of one that is gone, anything."""
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
