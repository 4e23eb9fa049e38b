"""One segment as an executor reads it: batches of good frames, over damage, with nothing but its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import InputPartition

from pipeline.errors import JobFailed
from spool.decode import decode
from spool.disk import read_at
from spool.errors import BadSpool
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, Record, decode_header
from spool.frame import BURST, DIGEST, POSITION, SEQUENCE, Tail, tail_at_start
from spool.layout import SEGMENT, SENT, SPARE, Layout
from spool.packed import open_plain
from spool.record import Batch, Topics
from spool.scan import Scan, digest_address, find_frame

CHUNK_BYTES = 4 << 20
"""Read at a time. Each chunk becomes one Arrow batch: some ten thousand rows, whose columns fit a cache."""


def open_segment(layout: Layout, first_sequence: int, number: int = 0, *, plain: bool = False) -> int | None:
    """A descriptor of a segment under whichever name it has; None when it has none any more.

    `number`: of a segment that may have been read before it got the name it keeps. `plain`: of its frames,
    also when it is packed; else only header and footer can be read.
    """
    # In the order in which a segment is renamed, so that none is missed between two looks.
    for name, suffix in ((number, SPARE), (first_sequence, SEGMENT), (first_sequence, SENT)):
        path = layout.segment(name, suffix)
        try:
            return open_plain(path) if plain else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
    return None


@dataclass(frozen=True)
class Part(InputPartition):
    """One input partition: a segment, up to `end`."""

    directory: str
    spool: str
    """uuid, 32 hexadecimal digits."""
    host: str | None
    number: int
    first_sequence: int
    end: int | None
    """Offset behind the last frame to read; None: as far as there are good ones."""

    def open(self) -> int:
        """A descriptor of the segment. Raises JobFailed when it is not there any more."""
        fd = open_segment(Layout(Path(self.directory)), self.first_sequence, self.number, plain=True)
        if fd is None:
            raise JobFailed(
                f"segment {self.number} of {self.directory} was removed while the job ran; start it again"
            )
        return fd


def topic_name(name: bytes) -> str:
    """A topic as text; what is not UTF-8 is escaped byte by byte."""
    return name.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one chunk, and the frames they came in (int64[n, 5], rows of FRAME_ROW)."""

    batch: Batch
    frames: npt.NDArray[np.int64]


class SegmentReading:
    """The pieces of a part, in order. Damaged frames are passed over, and counted."""

    def __init__(self, part: Part, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.part = part
        self.damaged: list[tuple[int, int]] = []
        """Offsets [from, to) that could not be read, so far."""
        self._chunk_bytes = chunk_bytes

    def pieces(self) -> Iterator[Piece]:
        """Read the part. Raises JobFailed when it is not there, or not what was planned."""
        fd = self.part.open()
        try:
            end = os.fstat(fd).st_size if self.part.end is None else self.part.end
            scan = Scan(fd, tail_at_start(self._header(fd)), end, self._chunk_bytes)
            topics = Topics()
            while True:
                while chunk := scan.next():
                    batch = decode(chunk.data, chunk.offset, chunk.frames, topics, digest_address())
                    if len(batch):
                        yield Piece(batch, chunk.frames)
                if not self._pass_damage(scan, end):
                    return
        finally:
            os.close(fd)

    def _header(self, fd: int) -> Record:
        try:
            header = decode_header(read_at(fd, HEADER_BYTES, 0), f"segment {self.part.number}")
        except BadSpool as error:
            raise JobFailed(f"{self.part.directory}: {error}") from error
        if bytes(header["spool"]).hex() != self.part.spool or int(header["number"]) != self.part.number:
            raise JobFailed(f"{self.part.directory}: another spool took its place while the job ran")
        return header

    def _pass_damage(self, scan: Scan, end: int) -> bool:
        """Go to the next good frame before `end`; False when there is none."""
        position = int(scan.tail[POSITION])
        if position >= end:
            return False
        found = find_frame(scan.fd, position, end)
        if found >= 0:
            enter(scan.fd, scan.tail, found)
        # Behind the last frame of a segment whose end nobody told us, what follows is room, and no damage.
        if found >= 0 or self.part.end is not None:
            self.damaged.append((position, found if found >= 0 else end))
        return found >= 0


def enter(fd: int, tail: Tail, offset: int) -> None:
    """Stand before the frame at `offset`, taking its own word for what comes before it."""
    head = np.frombuffer(read_at(fd, HEAD_BYTES, offset), HEAD)[0]
    tail[POSITION], tail[SEQUENCE] = offset, head["first_sequence"]
    tail[BURST], tail[DIGEST] = int(head["burst"]) - 1, head["previous"].astype(np.int64)
