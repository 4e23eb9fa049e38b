"""One segment file, examined byte by byte. Read by pread; nothing is written.

Everything that a reader relies on is examined: header, frames, the chain of their digests, the datagrams in
them, and the footer against the frames. Reading goes on behind damage.

The result of an examination is a `State` with its `Hole`s: the damage map by which a rewrite is planned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.format.contents import Contents
from spool.format.damage import (
    AT,
    BEHIND,
    FIRST,
    HOLE_MARK_BYTES,
    KNOWN,
    MISSING,
    MOST_PLACES,
    Holes,
    Ranges,
    ranges,
    read_hole,
)
from spool.format.frame import (
    DIGEST,
    FRAME_AT,
    FRAME_COUNT,
    KEY,
    POSITION,
    SEQUENCE,
    STORED,
    TAIL_FIELDS,
    Tail,
    skip_to,
    tail_at_start,
)
from spool.format.packed import has_damaged_head, open_plain
from spool.format.scan import CHUNK_BYTES, WRITTEN, Scan, enter_at, read_header, skip_damage
from spool.format.segment import following
from spool.format.segment_format import (
    FOOTER,
    FOOTER_END,
    FOOTER_MAGIC,
    HEADER_BYTES,
    UNLISTED,
    Footer,
    Record,
    decode_footer,
    decode_header,
)
from spool.fsck.finding import Finding, Kind, Severity, damage
from spool.index.headers import Beginning, find_beginning
from spool.index.log_end import EPOCH, committed_up_to, last_footer, read_footer, tail_of_footer
from spool.layout import Layout
from spool.storage.disk import opened, read_at
from spool.storage.lock import is_held
from spool.words import counted

_PATIENCE_S = 0.02
"""A frame that looks torn may be written at this moment: look again after this time."""


@dataclass(slots=True)
class Totals:
    """How much was examined."""

    segments: int = 0
    frames: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, other: Totals) -> None:
        """Add the totals of another examination."""
        self.segments += other.segments
        self.frames += other.frames
        self.messages += other.messages
        self.bytes += other.bytes


def _lost(messages: int, first: int) -> str:
    return (
        f"{counted(messages, 'message')} from {first} on cannot be read" if messages else "no message is lost"
    )


def _all_gone(parts: Iterable[Holes]) -> Ranges:
    return np.concatenate([_chosen(rows, rows[:, MISSING] > 0)[:, FIRST : MISSING + 1] for rows in parts])


def _chosen(rows: Holes, which: npt.NDArray[np.bool_]) -> Holes:
    """Rows; themselves, if that is all: copying them would take the time of the search again."""
    return rows if which.all() else rows[which]


class Examination:
    """One segment file. `findings` examines it; the other attributes are valid afterwards."""

    def __init__(self, path: Path, *, last: bool) -> None:
        """`last`: no segment follows, so that a torn end is normal after a crash."""
        self.path, self._last = path, last
        self.totals = Totals()
        """Of this segment."""
        self.header: Record | None = None
        """None when it cannot be read."""
        self.tail: Tail = np.zeros(TAIL_FIELDS, np.int64)
        """The end of this segment, behind which the next one begins."""
        self.unread = False
        """The disk gives an error for a part of it, whose content is not known."""
        self.whole = True
        """Every frame is good, up to the end."""
        self.end = HEADER_BYTES
        """The offset behind the last good frame."""
        self._sealed_with: int | None = None
        """The digest in its footer; None without one."""
        self._holes: list[Holes] = []
        self._reached = self.tail

    def findings(self) -> Iterator[Finding]:
        """Examine the whole file. Raises FileNotFoundError."""
        try:
            beginning = None if self._has_header() else find_beginning(self.path)
            fd = open_plain(self.path, beginning.keys if beginning else None)
        except FileNotFoundError:
            raise
        except UnknownVersion as error:
            yield damage(self.path, 0, Kind.VERSION, f"{error}")
            return
        except OSError as error:
            self.unread = True
            yield damage(self.path, 0, Kind.UNREADABLE, f"it cannot be read: {error.strerror}")
            return
        try:
            yield from self._head()
            yield from self._examine(fd, beginning)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.whole, self.unread = False, True
            yield damage(self.path, self.end, Kind.UNREADABLE, f"it cannot be read: {error.strerror}")
        finally:
            os.close(fd)

    def _head(self) -> Iterator[Finding]:
        """Check the first bytes of a packed file, which its plain form does not have."""
        with opened(self.path) as file:
            if has_damaged_head(file.fileno()):
                sentence = "its first bytes are damaged; it is read all the same, as a packed segment"
                yield damage(self.path, 0, Kind.HEADER, sentence)

    def _has_header(self) -> bool:
        try:
            read_header(self.path)
        except (UnknownVersion, ReadFailed):
            raise
        except BadSpool:
            return False
        return True

    def _examine(self, fd: int, beginning: Beginning | None) -> Iterator[Finding]:
        try:
            self.header = decode_header(read_at(fd, HEADER_BYTES, 0), self.path.name)
        except UnknownVersion as error:
            yield damage(self.path, 0, Kind.VERSION, f"{error}")
            return
        except ReadFailed:
            raise
        except BadSpool as error:
            self.whole = False
            yield damage(self.path, 0, Kind.HEADER, f"{error}".partition(";")[0])
        # With a damaged header, use the one that follows from the frames: frames and footer are still
        # examined.
        header = beginning.header() if beginning else self.header
        footer, contents = read_footer(fd, header), Contents(os.fstat(fd).st_size)
        self._sealed_with = int(footer.fields["digest"]) if footer else None
        self.totals.segments += 1
        tail = self._start(beginning)
        if tail is not None:
            limit = int(footer.fields["end"]) if footer else os.fstat(fd).st_size
            scan = Scan(fd, tail, limit)
            if footer is None and self.header is not None:
                scan.committed = committed_up_to(self.path, self.header)
            yield from self._frames(scan, contents)
            yield from self._others()
            self.tail, self._reached, self.end = tail, tail, int(tail[POSITION])
            yield from self._end(scan, footer or read_footer(fd, header), contents)
        self.totals.bytes += os.fstat(fd).st_size

    def _start(self, beginning: Beginning | None) -> Tail | None:
        """Before the first frame; without a header, before the first good one. None: there is none."""
        if self.header is not None:
            return tail_at_start(self.header)
        if beginning is None:
            return None
        tail = beginning.tail()
        skip_to(tail, beginning.offset, beginning.head)
        tail[STORED] = 0
        return tail

    def _frames(self, scan: Scan, contents: Contents) -> Iterator[Finding]:
        """Examine every frame up to the scan's limit, over damage."""
        tail = scan.tail
        while True:
            while chunk := scan.over():
                yield from self._passed(chunk.holes)
                self.totals.frames += len(chunk.frames)
                self.totals.messages += int(chunk.frames[:, FRAME_COUNT].sum())
                row = contents.add(chunk)
                if row >= 0:
                    self.whole = False
                    at = int(chunk.frames[row, FRAME_AT])
                    yield damage(
                        self.path, at, Kind.DATAGRAM, "a good frame holds what is no list of datagrams"
                    )
            position, sequence = int(tail[POSITION]), int(tail[SEQUENCE])
            if position >= scan.limit or scan.ended:
                return
            stray = enter_at(scan.fd, tail.copy(), position)
            missing = skip_damage(scan)
            if missing == WRITTEN:
                continue
            if missing is None and not stray:
                return
            if missing is None:
                self.whole = False
                yield self._damage(
                    position, int(tail[POSITION]), "nothing behind it does either", stray=stray
                )
                return
            hole = hole_at(scan, position, int(tail[POSITION]), sequence, missing)
            yield from self._passed(np.array([[*hole[:4], stray, hole.known]], np.int64))

    def state(self, behind: Record | None) -> State:
        """The damage map of a segment with a good header; `behind`: the header of the next segment."""
        assert self.header is not None
        says = self._sealed_with
        holes = tuple(hole for rows in self._holes for hole in holes_of(rows))
        found = State(self.header, holes, self._reached, says is not None, self.totals.messages)
        return conclude(found, behind, says)

    def _known(self, position: int, sequence: int, messages: int) -> Finding:
        sentence = f"a repair left a gap for {counted(messages, 'message')} from {sequence} on"
        return Finding(self.path, position, Severity.NOTE, Kind.GAP, sentence, ranges((sequence, messages)))

    def _passed(self, holes: Holes) -> Iterator[Finding]:
        """Findings for a run of holes; the first MOST_PLACES of the segment one by one."""
        if not len(holes):
            return
        self.whole = False
        apart = max(0, MOST_PLACES - sum(map(len, self._holes)))
        self._holes.append(holes.copy())
        for at, behind, first, missing, stray, known in holes[:apart].tolist():
            if known:
                yield self._known(at, first, missing)
            else:
                yield self._damage(at, behind, _lost(missing, first), ranges((first, missing)), stray=stray)

    def _others(self) -> Iterator[Finding]:
        """One finding for the sum of the holes behind these."""
        ends = np.cumsum([len(rows) for rows in self._holes])
        parts = [
            rows[max(0, len(rows) + MOST_PLACES - end) :]
            for rows, end in zip(self._holes, ends.tolist(), strict=True)
        ]
        damaged = [rows for part in parts if len(rows := _chosen(part, part[:, KNOWN] == 0))]
        known = [rows for part in parts if len(rows := _chosen(part, part[:, KNOWN] != 0))]
        if damaged:
            places, at = sum(map(len, damaged)), int(damaged[0][0, AT])
            size = sum(int((rows[:, BEHIND] - rows[:, AT]).sum()) for rows in damaged)
            lost = _lost(sum(int(rows[:, MISSING].sum()) for rows in damaged), int(damaged[0][0, FIRST]))
            sentence = f"{size} bytes in {counted(places, 'further place')} hold no good frame; {lost}"
            yield damage(self.path, at, Kind.FRAME, sentence, _all_gone(damaged))
        if known:
            messages = sum(int(rows[:, MISSING].sum()) for rows in known)
            gaps = counted(sum(map(len, known)), "further gap")
            sentence = f"a repair left {gaps} for {counted(messages, 'message')}"
            at = int(known[0][0, AT])
            yield Finding(self.path, at, Severity.NOTE, Kind.GAP, sentence, _all_gone(known))

    def _damage(
        self, position: int, behind: int, lost: str, gone: Ranges | None = None, *, stray: bool
    ) -> Finding:
        if stray:
            sentence = f"a frame does not follow the one before it; {lost}"
            return damage(self.path, position, Kind.CHAIN, sentence, gone)
        sentence = f"{behind - position} bytes hold no good frame; {lost}"
        return damage(self.path, position, Kind.FRAME, sentence, gone)

    def _end(self, scan: Scan, footer: Footer | None, contents: Contents) -> Iterator[Finding]:
        """Examine the bytes behind the last good frame."""
        if footer:
            if self.header is not None:
                self.tail = tail_of_footer(self.header, footer.fields)
            if self.end < int(footer.fields["end"]):
                self.whole = False
                lost = int(self.tail[STORED]) - int(scan.tail[STORED])
                end, first = int(footer.fields["end"]), int(scan.tail[SEQUENCE])
                hole = hole_at(scan, self.end, end, first, lost)
                self._holes.append(np.array([[*hole[:4], False, hole.known]], np.int64))
                if hole.known:
                    yield self._known(self.end, first, lost)
                    return
                yield damage(
                    self.path,
                    self.end,
                    Kind.FRAME,
                    f"{end - self.end} bytes before the footer hold no good frame; {_lost(lost, first)}",
                    ranges((first, lost)),
                )
            elif self.whole:
                yield from self._compare(footer, scan.tail, contents)
        elif wrong := self._wrong_footer(scan.fd):
            self.whole = False
            yield damage(self.path, self.end, Kind.FOOTER, wrong)
        elif self._last and self._residue(scan.fd) and not self._moves_on(scan):
            sentence = (
                "it ends in a frame that was never finished; whoever opens the spool puts that in order"
            )
            yield Finding(self.path, self.end, Severity.NOTE, Kind.TORN, sentence)

    def _wrong_footer(self, fd: int) -> str:
        """The error in the footer, or the part of one, behind the last good frame; "": none."""
        if other := last_footer(fd):
            at, fields = other[0], other[1][0]
            if at == fields["end"]:
                return f"the footer is another segment's, behind which {fields['next_sequence']} follows"
            return f"the footer is at byte {at}, and says that the frames end at byte {fields['end']}"
        size = os.fstat(fd).st_size
        ends = read_at(fd, len(FOOTER_END), max(0, size - len(FOOTER_END))) == FOOTER_END
        had = ends or read_at(fd, len(FOOTER_MAGIC), self.end) == FOOTER_MAGIC
        return "the footer is damaged" if had else ""

    def _residue(self, fd: int) -> bool:
        """Whether there are other bytes than zeros behind the last good frame."""
        at = self.end
        while part := os.pread(fd, CHUNK_BYTES, at):
            if np.frombuffer(part, np.uint8).any():
                return True
            at += len(part)
        return False

    def _moves_on(self, scan: Scan) -> bool:
        """Whether a process is writing here: it holds the lock of the spool while it lives."""
        if is_held(Layout(self.path.resolve().parent.parent).lock) is False:
            return False
        time.sleep(_PATIENCE_S)
        return scan.next() is not None

    def _compare(self, footer: Footer, tail: Tail, contents: Contents) -> Iterator[Finding]:
        """Compare the footer with the one that the frames should have; `tail` is behind the last of them."""
        assert self.header is not None
        stored, least = footer.fields, following(self.header, tail)
        goes_on = int(stored["next_sequence"])
        jumps = goes_on % EPOCH == 0 and goes_on > least
        wanted = decode_footer(contents.footer(self.header, tail, goes_on if jumps else least), self.header)
        assert wanted is not None
        wrong = [name for name in FOOTER.names or () if not np.array_equal(stored[name], wanted.fields[name])]
        if not np.array_equal(footer.marks, wanted.marks):
            wrong.append("its table of frames")
        # Version 1 listed more topics than later ones do.
        listed = UNLISTED not in (name for name, *_ in wanted.topics) or self.header["version"] > 1
        if listed and sorted(footer.topics) != sorted(wanted.topics):
            wrong.append("its table of topics")
        if not np.array_equal(footer.sums, wanted.sums):
            wrong.append("its sums of blocks")
        if wrong:
            sentence = f"the footer does not describe the frames: {', '.join(wrong)}"
            yield damage(self.path, self.end, Kind.FOOTER, sentence)


_U64 = (1 << 64) - 1


class Hole(NamedTuple):
    """Bytes [offset, end) of a segment without a good frame: `messages` from `first` on are lost."""

    offset: int
    end: int
    first: int
    messages: int
    known: bool
    """A repair has marked these bytes as a hole already."""


class State(NamedTuple):
    """The content of a segment."""

    header: Record
    holes: tuple[Hole, ...]
    tail: Tail
    """Behind the last good frame."""
    sealed: bool
    """It has a whole footer."""
    messages: int
    """Readable ones."""


def hole_at(scan: Scan, offset: int, end: int, first: int, messages: int) -> Hole:
    """A hole of the plain segment that `scan` reads."""
    gap = read_hole(scan.fd, offset, int(scan.tail[KEY]))
    return Hole(offset, end, first, messages, known=gap == (end - offset, messages))


def holes_of(rows: Holes) -> Iterator[Hole]:
    """The holes of a chunk."""
    return (
        Hole(at, end, first, missing, known=bool(known))
        for at, end, first, missing, _, known in rows.tolist()
    )


def conclude(found: State, behind: Record | None, says: int | None) -> State:
    """Complete the state of a segment that was read up to its footer, or its end.

    `behind`: the header of the next segment, if it exists: it shows when frames are missing. `says`: the
    digest in the footer; None without one.
    """
    if says is not None and not found.holes and says != int(found.tail[DIGEST]) & _U64:
        # The footer may be another segment's: do not trust its end.
        says = None
    holes, lost = found.holes, 0 if behind is None else int(behind["stored"]) - int(found.tail[STORED])
    if says is None and lost > 0:
        # The segment ends too early: put the hole at its end.
        position = int(found.tail[POSITION])
        holes += (Hole(position, position + HOLE_MARK_BYTES, int(found.tail[SEQUENCE]), lost, known=False),)
    return found._replace(holes=holes, sealed=says is not None)
