"""Damaged headers, written anew: one bad sector must not cost a segment of messages.

What stood in a header follows from the segments around it, or from its own frames; boot and time of making
do not. So these are left as they stand, and when the check that stands there then fits the whole, the header
is what it was: the marks, which go by it, hold. Else it is of no boot, so that what was not sealed goes the
way of an unclean end, and what only the marks call delivered in it is sent again.

The segment before comes first: a mended header counts on from it. Where that one is gone, the segment behind
says how many messages there were before it, less those found here. Where both are gone, the index does, and
without it how many messages there were before is guessed: as many as there were sequence numbers.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np

from spool.crash_point import reach
from spool.disk import is_regular, open_to_write, opened, read_at, write_at
from spool.errors import BadSpool, NoSpool, ReadFailed, UnknownVersion
from spool.format import HEAD, HEAD_BYTES, HEADER, HEADER_BYTES, Record, decode_header, encode_header
from spool.frame import BURST, DIGEST, DISCARDED, SEQUENCE, STORED, Tail, tail_at_start
from spool.identity import read_identity
from spool.index import read_committed
from spool.layout import Layout
from spool.live import EPOCH, LiveSegment, empty_tail, end_of
from spool.packed import header_at, open_plain
from spool.quarantine import keep, set_aside
from spool.scan import find_frame, read_header

log = logging.getLogger("bruce.spool")

NO_BOOT = bytes(16)
_UNTOLD = ("boot", "created_ns")
"""Fields that nothing else says."""

Place = tuple[bytes, int, Tail]
"""Uuid of the spool, segment number, and the tail before the segment's first frame."""


def damaged_headers(layout: Layout) -> list[tuple[int, str]]:
    """The named segments whose header cannot be read, in order. Raises UnknownVersion, OSError."""
    return [pair for pair in layout.list_segments() if _is_damaged(layout.segment(*pair))]


def mend_headers(layout: Layout) -> None:
    """Make every header readable; a segment of which nothing tells what stood there goes to quarantine.

    What the disk gives an error for is left alone: it waits for the disk.
    """
    for path in (layout.segment(*pair) for pair in layout.list_segments()):
        if is_regular(path) and is_unread(path):
            log.error("%s: the disk gives an error for its header; it is left as it is", path)
    for pair in damaged_headers(layout):
        path = layout.segment(*pair)
        try:
            data = header_for(layout, pair)
        except ReadFailed as error:
            log.error("%s has a damaged header, which is left as it is: %s", path, error)
            continue
        if data is None:
            set_aside(layout, path, "its header is damaged, and nothing is left that says what stood in it")
            continue
        with os.fdopen(open_to_write(path), "r+b", buffering=0) as file:
            at = header_at(file.fileno())
            keep(layout, f"{path.name}.header", read_at(file.fileno(), HEADER_BYTES, at))
            write_at(file.fileno(), data, at)
            reach("recover.header")
            os.fsync(file.fileno())
        log.error("%s had a damaged header; it was written anew", path)


def header_for(layout: Layout, pair: tuple[int, str]) -> bytes | None:
    """The header that a segment should have; None when nothing tells."""
    path = layout.segment(*pair)
    found = _place(layout, pair)
    if found is None:
        return None
    spool, number, before = found
    fields = {
        "spool": spool,
        "number": number,
        "first_sequence": pair[0],
        "previous": _unsigned(before[DIGEST]),
        "stored": int(before[STORED]),
        "burst": int(before[BURST]),
        "discarded": before[DISCARDED:].astype(np.uint64),
    }
    with opened(path) as file:
        stands = read_at(file.fileno(), HEADER_BYTES, header_at(file.fileno())).ljust(HEADER_BYTES, b"\0")
    record = np.frombuffer(stands, HEADER)[0]
    whole = encode_header(**fields, **{name: record[name] for name in _UNTOLD})
    if whole[-8:] == stands[-8:]:
        return whole
    return encode_header(**fields, boot=NO_BOOT, created_ns=time.time_ns())


def header_by_frames(path: Path) -> bytes | None:
    """The header of a segment file by itself, whose own is damaged; None when no frame is in it.

    Of the fields that frames do not say what stands there is taken.
    """
    own = _own_beginning(path, None)
    if own is None:
        return None
    with opened(path) as file:
        stands = read_at(file.fileno(), HEADER_BYTES, header_at(file.fileno())).ljust(HEADER_BYTES, b"\0")
    record = np.frombuffer(stands, HEADER)[0]
    told = {
        "first_sequence": int(own[SEQUENCE]),
        "burst": int(own[BURST]),
        "previous": _unsigned(own[DIGEST]),
    }
    kept = {name: record[name] for name in ("spool", "boot", "number", "created_ns", "stored", "discarded")}
    return encode_header(**kept | told)


def _unsigned(digest: np.int64) -> int:
    return int(digest) & 0xFFFFFFFFFFFFFFFF


def _is_damaged(path: Path) -> bool:
    """A directory is no segment, nor is what a crash left empty. What the disk does not give may be good."""
    return is_regular(path) and path.stat().st_size > 0 and _header(path) is None and not is_unread(path)


def is_unread(path: Path) -> bool:
    """Whether the disk does not give a header. Raises UnknownVersion, OSError."""
    try:
        read_header(path)
    except ReadFailed:
        return True
    except BadSpool:
        return False
    return False


def _header(path: Path) -> Record | None:
    try:
        return read_header(path)
    except UnknownVersion:
        raise
    except BadSpool:
        return None


def _place(layout: Layout, pair: tuple[int, str]) -> Place | None:
    """Where a segment stands in the log."""
    named, path = layout.list_segments(), layout.segment(*pair)
    at, first = named.index(pair), pair[0]
    before = _behind(layout.segment(*named[at - 1])) if at else None
    if before and _continues(before[2], first):
        return _beginning(before, first)
    if at == 0 and first == 0 and (spool := _uuid(layout)):
        return spool, 1, empty_tail()
    own = _own_beginning(path, first)
    if own is not None and at + 1 < len(named):
        header = _header(layout.segment(*named[at + 1]))
        if header is not None:
            behind = tail_at_start(header)
            return bytes(header["spool"]), int(header["number"]) - 1, _counted_back(path, own, behind)
    if before:
        return _beginning(before, first)
    return None if own is None else _alone(layout, path, own)


def _alone(layout: Layout, path: Path, own: Tail) -> Place | None:
    """Where a segment stands that has no other around it."""
    if not (spool := _uuid(layout)):
        return None
    if known := read_committed(layout.index, spool):
        return spool, known[0], _counted_back(path, own, known[1])
    own[STORED] = own[SEQUENCE] % EPOCH
    return spool, 1, own


def _uuid(layout: Layout) -> bytes | None:
    """The uuid of a spool, if anything in it still says so."""
    try:
        return read_identity(layout)
    except NoSpool:
        return None


def _continues(tail: Tail, first: int) -> bool:
    """Whether a segment that begins with this number can stand right behind a tail."""
    goes_on = int(tail[SEQUENCE])
    return first in (goes_on, goes_on + 1) or (first > goes_on and first % EPOCH == 0)


def _behind(path: Path) -> Place | None:
    """The place behind a segment; None when its header cannot be read either."""
    header = _header(path)
    if header is None:
        return None
    return bytes(header["spool"]), int(header["number"]) + 1, end_of(LiveSegment(path, header)).tail


def _beginning(before: Place, first: int) -> Place:
    spool, number, tail = before
    tail[SEQUENCE] = first
    return spool, number, tail


def _own_beginning(path: Path, first: int | None) -> Tail | None:
    """What the first frame of a segment says of what is before it; None without a frame.

    `first`: sequence number of the segment's first message; None: the frame's.
    """
    fd = open_plain(path)
    try:
        offset = find_frame(fd, HEADER_BYTES, os.fstat(fd).st_size)
        if offset < 0:
            return None
        head = np.frombuffer(read_at(fd, HEAD_BYTES, offset), HEAD)[0]
    finally:
        os.close(fd)
    tail = empty_tail()
    tail[SEQUENCE] = int(head["first_sequence"]) if first is None else first
    tail[BURST] = int(head["burst"]) - 1
    if offset == HEADER_BYTES:
        tail[DIGEST] = head["previous"].astype(np.int64)
    return tail


def _counted_back(path: Path, own: Tail, behind: Tail) -> Tail:
    """The same with the totals that are known behind this segment, less what is found in it."""
    record = encode_header(
        first_sequence=int(own[SEQUENCE]), burst=int(own[BURST]), previous=_unsigned(own[DIGEST])
    )
    found = end_of(LiveSegment(path, decode_header(record, ""))).tail
    own[STORED] = max(0, behind[STORED] - found[STORED])
    own[DISCARDED:] = np.maximum(0, behind[DISCARDED:] - found[DISCARDED:])
    return own
