"""One segment file, examined byte by byte. Read by pread; nothing is written.

Everything that a reader relies on is looked at: header, frames, the chain of their digests, the datagrams
in them, and the footer against what the frames hold. Reading goes on behind damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.beginning import Beginning, find_beginning
from spool.contents import Contents
from spool.disk import opened, read_at
from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.finding import Finding, Kind, Severity, damage
from spool.format import (
    FOOTER,
    FOOTER_END,
    FOOTER_MAGIC,
    HEADER_BYTES,
    UNLISTED,
    VERSION,
    Record,
    decode_footer,
    decode_header,
)
from spool.frame import POSITION, SEQUENCE, STORED, TAIL_FIELDS, Tail, holds_datagrams, skip_to, tail_at_start
from spool.holes import Hole, State, conclude, hole_at
from spool.kernel import address_of, kernel
from spool.live import EPOCH, Footer, last_footer, read_footer, tail_of_footer
from spool.packed import has_damaged_head, open_plain
from spool.scan import CHUNK_BYTES, Scan, enter_at, read_header
from spool.segment import following
from spool.vouched import vouched_up_to

WRITTEN = -1
_PATIENCE_S = 0.02
"""What looks torn may be a frame that is being written at this moment: look again after so long."""


@dataclass(slots=True)
class Totals:
    """What was looked at."""

    segments: int = 0
    frames: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, other: Totals) -> None:
        """What was looked at besides."""
        self.segments += other.segments
        self.frames += other.frames
        self.messages += other.messages
        self.bytes += other.bytes


@kernel
def malformed(base: int, frames: npt.NDArray[np.int64]) -> int:
    """The first of `frames` (rows of walk) that holds anything but well-formed datagrams; -1: none.

    `base` is the address at which offset 0 of the segment would lie. The frames have been verified.
    """
    for row in range(frames.shape[0]):
        if not holds_datagrams(base + frames[row, 0]):
            return row
    return -1


def skip_damage(scan: Scan) -> int | None:
    """Go over damage to the next good frame: messages that are missing; None when there is no such frame.

    WRITTEN, and nothing passed over, when the frame that was not good has become so meanwhile.
    """
    if scan.ended:
        return None
    if scan.is_being_stored():
        return WRITTEN
    before = scan.tail.copy()
    missing = scan.skip()
    behind = scan.tail.copy()
    # Frames are written in order: whatever was found behind it, by now it is finished, or damaged.
    scan.tail[:] = before
    finished = scan.next() is not None
    scan.tail[:] = before if finished else behind
    return WRITTEN if finished else missing


class Examination:
    """One segment file. `findings` looks at it; what follows from that can be asked for afterwards."""

    def __init__(self, path: Path, *, last: bool) -> None:
        """`last`: no segment follows, so that a torn end is what a crash leaves."""
        self.path, self._last = path, last
        self.totals = Totals()
        """Of this segment."""
        self.header: Record | None = None
        """None when it cannot be read."""
        self.tail: Tail = np.zeros(TAIL_FIELDS, np.int64)
        """Where the next segment goes on, as far as this one tells."""
        self.unread = False
        """The disk gives an error for some of it, and what it holds is not known."""
        self.whole = True
        """Every frame is good, up to the end."""
        self.end = HEADER_BYTES
        """The offset behind the last good frame."""
        self._sealed_with: int | None = None
        """The digest that its footer tells; None without one."""
        self._holes: list[Hole] = []
        self._reached = self.tail

    def findings(self) -> Iterator[Finding]:
        """Look at all of it. Raises FileNotFoundError."""
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
        except OSError as error:
            self.whole, self.unread = False, True
            yield damage(self.path, self.end, Kind.UNREADABLE, f"it cannot be read: {error.strerror}")
        finally:
            os.close(fd)

    def _head(self) -> Iterator[Finding]:
        """The first bytes of a packed file, which its plain form does not have."""
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
        # By what a damaged header must have had, its frames and its footer are told all the same.
        header = beginning.header() if beginning else self.header
        footer, contents = read_footer(fd, header), Contents(os.fstat(fd).st_size)
        self._sealed_with = int(footer[0]["digest"]) if footer else None
        self.totals.segments += 1
        tail = self._start(beginning)
        if tail is not None:
            limit = int(footer[0]["end"]) if footer else os.fstat(fd).st_size
            scan = Scan(fd, tail, limit)
            if footer is None and self.header is not None:
                scan.vouched = vouched_up_to(self.path, self.header)
            yield from self._frames(scan, contents)
            self.tail, self._reached, self.end = tail, tail, int(tail[POSITION])
            yield from self._end(scan, footer or read_footer(fd, header), contents)
        self.totals.bytes += os.fstat(fd).st_size

    def _start(self, beginning: Beginning | None) -> Tail | None:
        """Before the first frame; without a header, before the first that is good. None: there is none."""
        if self.header is not None:
            return tail_at_start(self.header)
        if beginning is None:
            return None
        tail = beginning.tail()
        skip_to(tail, beginning.offset, beginning.head)
        tail[STORED] = 0
        return tail

    def _frames(self, scan: Scan, contents: Contents) -> Iterator[Finding]:
        """Every frame up to the scan's limit, over damage."""
        tail = scan.tail
        while True:
            while chunk := scan.next():
                self.totals.frames += len(chunk.frames)
                self.totals.messages += int(chunk.frames[:, 2].sum())
                row = malformed(address_of(chunk.data) - chunk.offset, chunk.frames)
                if row < 0:
                    contents.add(chunk)
                else:
                    self.whole = False
                    at = int(chunk.frames[row, 0])
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
            self.whole = False
            yield self._damage(scan, position, sequence, missing, stray=stray)
            if missing is None:
                return

    def state(self, behind: Record | None) -> State:
        """What it holds, its header being good; `behind`: the header of the segment that follows it."""
        assert self.header is not None
        says = self._sealed_with
        found = State(self.header, tuple(self._holes), self._reached, says is not None, self.totals.messages)
        return conclude(found, behind, says)

    def _known(self, position: int, sequence: int, messages: int) -> Finding:
        sentence = f"a repair left a gap: {messages} messages from {sequence} on are lost"
        return Finding(self.path, position, Severity.NOTE, Kind.GAP, sentence)

    def _damage(
        self, scan: Scan, position: int, sequence: int, missing: int | None, *, stray: bool
    ) -> Finding:
        behind = int(scan.tail[POSITION])
        if missing is not None:
            self._holes.append(hole_at(scan, position, behind, sequence, missing))
            if self._holes[-1].known:
                return self._known(position, sequence, missing)
        if missing is None:
            lost = "nothing behind it does either"
        else:
            lost = (
                f"{missing} messages from {sequence} on cannot be read" if missing else "no message is lost"
            )
        if stray:
            return damage(
                self.path, position, Kind.CHAIN, f"a frame does not follow the one before it; {lost}"
            )
        return damage(
            self.path, position, Kind.FRAME, f"{behind - position} bytes hold no good frame; {lost}"
        )

    def _end(self, scan: Scan, footer: Footer | None, contents: Contents) -> Iterator[Finding]:
        """What stands behind the last good frame."""
        if footer:
            if self.header is not None:
                self.tail = tail_of_footer(self.header, footer[0])
            if self.end < int(footer[0]["end"]):
                self.whole = False
                lost = int(self.tail[STORED]) - int(scan.tail[STORED])
                end, first = int(footer[0]["end"]), int(scan.tail[SEQUENCE])
                self._holes.append(hole_at(scan, self.end, end, first, lost))
                if self._holes[-1].known:
                    yield self._known(self.end, first, lost)
                    return
                yield damage(
                    self.path,
                    self.end,
                    Kind.FRAME,
                    f"{int(footer[0]['end']) - self.end} bytes before the footer hold no good frame; "
                    f"{lost} messages from {int(scan.tail[SEQUENCE])} on cannot be read",
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
        """What is wrong with the footer, or the part of one, behind the last good frame; "": none."""
        if other := last_footer(fd):
            at, fields = other[0], other[1][0]
            if at == fields["end"]:
                return f"the footer is another segment's, behind which {fields['next_sequence']} follows"
            return f"the footer stands at byte {at}, and says that the frames end at byte {fields['end']}"
        size = os.fstat(fd).st_size
        ends = read_at(fd, len(FOOTER_END), max(0, size - len(FOOTER_END))) == FOOTER_END
        had = ends or read_at(fd, len(FOOTER_MAGIC), self.end) == FOOTER_MAGIC
        return "the footer is damaged" if had else ""

    def _residue(self, fd: int) -> bool:
        """Whether anything but zeros stands behind the last good frame."""
        at = self.end
        while part := os.pread(fd, CHUNK_BYTES, at):
            if np.frombuffer(part, np.uint8).any():
                return True
            at += len(part)
        return False

    def _moves_on(self, scan: Scan) -> bool:
        """Whether somebody is writing here."""
        time.sleep(_PATIENCE_S)
        return scan.next() is not None

    def _compare(self, footer: Footer, tail: Tail, contents: Contents) -> Iterator[Finding]:
        """The footer with the one that the frames should have; `tail` is behind the last of them."""
        assert self.header is not None
        stored, least = footer[0], following(self.header, tail)
        goes_on = int(stored["next_sequence"])
        jumps = goes_on % EPOCH == 0 and goes_on > least
        wanted = decode_footer(contents.footer(self.header, tail, goes_on if jumps else least), self.header)
        assert wanted is not None
        wrong = [name for name in FOOTER.names or () if not np.array_equal(stored[name], wanted[0][name])]
        if not np.array_equal(footer[1], wanted[1]):
            wrong.append("its table of frames")
        # An earlier release listed more topics than this one does.
        listed = UNLISTED not in (name for name, *_ in wanted[2]) or self.header["version"] == VERSION
        if listed and sorted(footer[2]) != sorted(wanted[2]):
            wrong.append("its table of topics")
        if wrong:
            sentence = f"the footer does not describe the frames: {', '.join(wrong)}"
            yield damage(self.path, self.end, Kind.FOOTER, sentence)
