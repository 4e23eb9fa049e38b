"""Where one message lies: its segment file, its frame, and its place in it. Read by pread, over damage."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spool.decode import decode
from spool.disk import opened, read_at
from spool.errors import BadSpool
from spool.examination import WRITTEN, malformed, skip_damage
from spool.files import Span, Unreadable, of_segment
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, Record, decode_header
from spool.frame import POSITION, SEQUENCE, Tail, tail_at_start
from spool.kernel import address_of
from spool.layout import Layout
from spool.live import Footer, read_footer
from spool.packed import header_of, is_packed, open_plain
from spool.record import Batch, Topics
from spool.scan import NOWHERE, Chunk, Scan, digest_address, enter_at
from spool.vouched import vouched_entries, vouched_up_to


@dataclass(frozen=True, slots=True)
class Located:
    """A message and where it lies. Its frame has been verified."""

    path: Path
    header: Record
    """Of the segment."""
    packed: bool
    """The file is compressed: offsets are those of the segment as it was before."""
    sealed: bool
    """It has a footer, and so will not change."""
    offset: int
    """Of the frame, in bytes."""
    head: Record
    """Of the frame."""
    batch: Batch
    """The messages of the frame."""
    row: int
    """Which of them it is."""


def locate(paths: Iterable[Path], sequence: int, *, fleeting: bool = False) -> Located | Unreadable | None:
    """Find a message in segment files; Unreadable where it must have been, None where nothing speaks of it.

    `fleeting`: a daemon may rename or remove files meanwhile; what is gone is passed over. Files that are no
    segments are passed over, too. Raises OSError.
    """

    def look(path: Path) -> Iterator[Located | Unreadable | None]:
        with suppress(BadSpool):
            yield _look_into(path, sequence)

    lost = None
    for path in paths:
        for found in of_segment(look, path) if fleeting else look(path):
            if isinstance(found, Located):
                return found
            lost = lost or found
    return lost


def _look_into(path: Path, sequence: int) -> Located | Unreadable | None:
    with opened(path) as file:
        header, footer = header_of(file.fileno(), path), read_footer(file.fileno())
        packed = is_packed(file.fileno(), path)
    first = int(header["first_sequence"])
    if first < 0 or sequence < first or not Span(sequence, sequence + 1).may_lie_in(header, footer):
        return None
    fd = open_plain(path)
    try:
        header = decode_header(read_at(fd, HEADER_BYTES, 0), path)
        found = _find(fd, path, header, footer, sequence)
        if not isinstance(found, tuple):
            return found
        chunk, at = found
        offset = int(chunk.frames[at, 0])
        frame = chunk.frames[at : at + 1]
        if malformed(address_of(chunk.data) - chunk.offset, frame) >= 0:
            return Unreadable(path, offset, int(frame[0, 2]))
        batch = decode(chunk.data, chunk.offset, frame, Topics(), digest_address())
        head = np.frombuffer(read_at(fd, HEAD_BYTES, offset), HEAD)[0]
        row = sequence - int(frame[0, 1])
        return Located(path, header, packed, footer is not None, offset, head, batch, row)
    finally:
        os.close(fd)


def _find(
    fd: int, path: Path, header: Record, footer: Footer | None, sequence: int
) -> tuple[Chunk, int] | Unreadable | None:
    """As `_scan`: from a frame nearby, and where it is not found so, from the first one."""
    end = int(footer[0]["end"]) if footer else None
    vouched = NOWHERE if footer else vouched_up_to(path, header)
    found: tuple[Chunk, int] | Unreadable | None = None
    for tail in (_near(fd, path, header, footer, sequence), tail_at_start(header)):
        scan = Scan(fd, tail, end)
        scan.vouched = vouched
        found = _scan(path, scan, sequence)
        if isinstance(found, tuple):
            break
    return found


def _near(fd: int, path: Path, header: Record, footer: Footer | None, sequence: int) -> Tail:
    """Before a frame that lies before a message, as near as anybody knows; who finds nothing there walks."""
    tail = tail_at_start(header)
    if footer:
        marks = footer[1][["first_sequence", "offset"]].tolist()
    else:
        entries = vouched_entries(Layout(path.resolve().parent.parent))
        marks = [(first, offset) for first, number, offset, *_ in entries if number == int(header["number"])]
    at = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0]) - 1
    if at >= 0:
        first, offset = marks[at]
        enter_at(fd, tail, offset, first)
    return tail


def _scan(path: Path, scan: Scan, sequence: int) -> tuple[Chunk, int] | Unreadable | None:
    """(a chunk, which of its frames holds the message)."""
    while int(scan.tail[SEQUENCE]) <= sequence:
        position, expected = int(scan.tail[POSITION]), int(scan.tail[SEQUENCE])
        chunk = scan.next()
        if chunk is not None:
            firsts, ends = chunk.frames[:, 1], chunk.frames[:, 1] + chunk.frames[:, 2]
            holds = np.flatnonzero((firsts <= sequence) & (sequence < ends))
            if len(holds):
                return chunk, int(holds[0])
            continue
        missing = skip_damage(scan)
        if missing is None:
            return None
        if missing != WRITTEN and expected <= sequence < expected + missing:
            return Unreadable(path, position, missing)
    return None
