"""An executor's reader of one segment: batches of good frames, past damage, from its bytes alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.errors import JobFailed, SegmentGone
from pipeline.source.remote import is_address, open_remote, shown
from spool.errors import BadSpool, ReadFailed
from spool.format.batch import Batch, Topics, decode
from spool.format.damage import malformed
from spool.format.frame import FRAME_AT, POSITION, SEQUENCE, skip_to, tail_at_start
from spool.format.packed import open_plain
from spool.format.scan import Chunk, Scan, digest_address, enter_at
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, Record, decode_header
from spool.index.log_end import read_footer
from spool.layout import SEGMENT, SENT, SPARE, Layout, segment_name
from spool.storage.disk import open_to_read, read_at

CHUNK_BYTES = 4 << 20
"""Bytes per read. Each chunk becomes one Arrow batch: some ten thousand rows, whose columns fit a cache."""


def open_segment(layout: Layout, first_sequence: int, number: int = 0, *, plain: bool = False) -> int | None:
    """A descriptor of a segment under whichever name it has; None when it is gone.

    `number`: of a segment that may have been planned before it got its final name. `plain`: for its frames,
    also when it is packed; else only header and footer can be read.
    """
    # In the order in which a segment is renamed, so that a rename between two attempts hides none.
    for name, suffix in ((number, SPARE), (first_sequence, SEGMENT), (first_sequence, SENT)):
        path = layout.segment(name, suffix)
        try:
            return open_plain(path) if plain else open_to_read(path)
        except FileNotFoundError:
            continue
    return None


@dataclass(frozen=True)
class Part:
    """A segment, or frames of it, up to `end`."""

    directory: str
    """Of the spool: a path as executors see it, or an address (pipeline.source.remote)."""
    spool: str
    """uuid, 32 hexadecimal digits."""
    host: str | None
    number: int
    first_sequence: int
    end: int | None
    """Offset after the last frame to read; None: up to the last good one."""
    start: tuple[int, int] | None = None
    """Offset and first sequence of the frame to begin at; None: the segment's first."""
    delivered: bytes | bool | None = None
    """Of its messages: all, none, or a bit for each, from the segment's `first_sequence` on, the lowest of a
    byte first; after the last one nothing is delivered. None: not known, or not asked for."""

    @property
    def location(self) -> str:
        """The spool's path or address, for display."""
        return shown(self.directory)

    def open(self) -> int:
        """A descriptor of the segment. Raises SegmentGone when it is removed."""
        if is_address(self.directory):
            wanted = (self.start[0] if self.start else HEADER_BYTES, self.end)
            fd = open_remote(self.directory, self.first_sequence, self.number, wanted)
        else:
            fd = open_segment(Layout(Path(self.directory)), self.first_sequence, self.number, plain=True)
        if fd is None:
            raise SegmentGone(
                f"segment {self.number} of {self.location} was removed while the job ran; start it again"
            )
        return fd


@dataclass(frozen=True)
class DamagedFile:
    """A segment whose header is damaged, or cannot be read from the disk: nothing of it is read."""

    directory: str
    """Of the spool: a path, or an address."""
    spool: str | None
    """uuid, 32 hexadecimal digits; None if no other segment tells."""
    host: str | None
    number: int | None
    """Of the segment, if the others tell."""
    first_sequence: int
    suffix: str
    """These two are its name."""
    bytes: int
    error: str = ""
    """The read error of the disk: then the segment need not be damaged."""

    @property
    def location(self) -> str:
        """The file, for display."""
        return f"{shown(self.directory)}/segments/{segment_name(self.first_sequence, self.suffix)}"


def topic_name(name: bytes) -> str:
    """A topic as unique text: bytes that are not UTF-8, and a backslash, are escaped byte by byte."""
    return name.replace(b"\\", b"\\x5c").decode(errors="backslashreplace")


def topic_bytes(name: str) -> bytes:
    """The topic from which `topic_name` made this text."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), name.encode())


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one chunk, and the frames they came in (int64[n, ROW], rows of FRAME_ROW)."""

    batch: Batch
    frames: npt.NDArray[np.int64]


class SegmentReading:
    """The pieces of a part, in order. Damaged frames are skipped, and counted.

    With `skip_read_errors`, ranges that the disk cannot read are skipped, too: up to the next frame that a
    mark of the footer points to, else to the end. Each mark that cannot be read doubles the step, as in
    spool.read.reader.
    """

    def __init__(self, part: Part, chunk_bytes: int = CHUNK_BYTES, *, skip_read_errors: bool = False) -> None:
        """`skip_read_errors`: skip ranges that the disk cannot read; else raise the error."""
        self.part = part
        self.damaged: list[tuple[int, int]] = []
        """Offsets [from, to) that could not be read, so far."""
        self.unread: list[tuple[int, int]] = []
        """Those of them that the disk could not read; they may be undamaged."""
        self.error: ReadFailed | None = None
        """The last one."""
        self._chunk_bytes, self._skip_read_errors = chunk_bytes, skip_read_errors
        self._end, self._failed = 0, 0

    def pieces(self) -> Iterator[Piece]:
        """Read it. Raises SegmentGone when it is not there, JobFailed when it is another, ReadFailed."""
        fd = -1
        try:
            fd = self.part.open()
            scan = self._enter(fd)
        except ReadFailed as error:
            start = self.part.start[0] if self.part.start else 0
            self._note_unread(error, start, self.part.end or start)
        else:
            topics = Topics()
            for chunk in self._chunks(scan):
                for frames in self._well_formed(chunk, int(scan.tail[POSITION])):
                    batch = decode(chunk.data, chunk.offset, frames, topics, digest_address())
                    if len(batch):
                        yield Piece(batch, frames)
        finally:
            if fd >= 0:
                os.close(fd)

    def _enter(self, fd: int) -> Scan:
        self._end = os.fstat(fd).st_size if self.part.end is None else self.part.end
        size = self._chunk_bytes
        scan = Scan(fd, tail_at_start(self._header(fd)), self._end, size, first_bytes=size)
        if self.part.start:
            scan.tail[POSITION], scan.tail[SEQUENCE] = self.part.start
            with suppress(ReadFailed):
                enter_at(fd, scan.tail, *self.part.start)
        return scan

    def _chunks(self, scan: Scan) -> Iterator[Chunk]:
        """Good frames; skips all others."""
        entered = True
        while True:
            try:
                while entered and (chunk := scan.next()):
                    self._failed = 0
                    yield chunk
                entered = self._pass_damage(scan)
            except ReadFailed as error:
                entered = self._pass_by(scan, error)
            if not entered:
                return

    def _well_formed(self, chunk: Chunk, end: int) -> Iterator[npt.NDArray[np.int64]]:
        """Runs of frames that hold datagrams and nothing else; others are noted as damaged.

        bruce writes no others: a forged frame must not make a compiled loop read out of bounds.
        """
        frames = chunk.frames
        while (bad := malformed(chunk.base, frames)) >= 0:
            if bad:
                yield frames[:bad]
            at, frames = int(frames[bad, FRAME_AT]), frames[bad + 1 :]
            self.damaged.append((at, int(frames[0, FRAME_AT]) if len(frames) else end))
        if len(frames):
            yield frames

    def _header(self, fd: int) -> Record:
        try:
            header = decode_header(read_at(fd, HEADER_BYTES, 0), f"segment {self.part.number}")
        except BadSpool as error:
            raise JobFailed(f"{self.part.location}: {error}") from error
        if bytes(header["spool"]).hex() != self.part.spool or int(header["number"]) != self.part.number:
            raise JobFailed(f"{self.part.location}: another spool took its place while the job ran")
        return header

    def _pass_by(self, scan: Scan, error: ReadFailed) -> bool:
        """Continue after a range that the disk cannot read; False when no later frame can be read."""
        position, end = int(scan.tail[POSITION]), self._end
        marks = [mark for mark in _marks(scan.fd) if position < mark[1] < end]
        while 1 << self._failed <= len(marks):
            sequence, offset = marks[(1 << self._failed) - 1]
            self._failed += 1
            with suppress(ReadFailed):
                head = np.frombuffer(read_at(scan.fd, HEAD_BYTES, offset), HEAD)[0]
                if head["first_sequence"] == sequence:
                    skip_to(scan.tail, offset, head)
                    self._note_unread(error, position, offset)
                    return True
        self._note_unread(error, position, end)
        return False

    def _note_unread(self, error: ReadFailed, start: int, end: int) -> None:
        """Note an unreadable range. Raises the error, unless read errors are skipped."""
        if not self._skip_read_errors:
            raise error
        self.error = error
        if self.unread and self.unread[-1][1] == start:
            start, _ = self.unread.pop()
        self.unread.append((start, end))

    def _pass_damage(self, scan: Scan) -> bool:
        """Go to the next good frame; False when there is none."""
        position, end = int(scan.tail[POSITION]), self._end
        if position >= end:
            return False
        found = -1 if scan.skip() is None else int(scan.tail[POSITION])
        # Without a known end, the bytes after the last frame of a segment are free room, and no damage.
        if found > position or (found < 0 and self.part.end is not None):
            self.damaged.append((position, found if found >= 0 else end))
        return found >= 0


def _marks(fd: int) -> list[tuple[int, int]]:
    """(first sequence, offset) of the frames that the footer marks; none if it cannot be read."""
    with suppress(ReadFailed):
        if footer := read_footer(fd):
            found: list[tuple[int, int]] = footer.marks[["first_sequence", "offset"]].tolist()
            return found
    return []
