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

from spool.beginning import Beginning, find_beginning, remains
from spool.crash_point import reach
from spool.disk import is_regular, open_to_write, read_at, write_at
from spool.errors import BadSpool, NoSpool, ReadFailed, UnknownVersion
from spool.format import HEADER_BYTES, VERSION, Record, encode_header, unsigned
from spool.frame import BURST, DIGEST, DISCARDED, SEQUENCE, STORED, Tail, tail_at_start
from spool.identity import list_secrets, read_identity
from spool.index import read_committed
from spool.layout import Layout
from spool.live import EPOCH, LiveSegment, empty_tail, end_of
from spool.packed import header_at
from spool.quarantine import keep, set_aside
from spool.scan import read_header

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
    rest, own = remains(path), find_beginning(path)
    fields = {
        "version": own.version if own else VERSION,
        "secret": own.secret if own else next(iter(list_secrets(layout)), bytes(rest["secret"])),
        "spool": spool,
        "number": number,
        "first_sequence": pair[0],
        "previous": unsigned(int(before[DIGEST])),
        "stored": int(before[STORED]),
        "burst": int(before[BURST]),
        "discarded": before[DISCARDED:].astype(np.uint64),
    }
    whole = encode_header(**fields, **{name: rest[name] for name in _UNTOLD})
    if whole[-8:] == rest.tobytes()[-8:]:
        return whole
    return encode_header(**fields, boot=NO_BOOT, created_ns=time.time_ns())


def header_by_frames(path: Path) -> bytes | None:
    """The header of a segment file by itself, whose own is damaged; None when no frame is in it.

    Fields that frames do not tell are taken from the damaged one.
    """
    own = find_beginning(path)
    if own is None:
        return None
    rest, told = (
        remains(path),
        {"burst": int(own.head["burst"]) - 1, "previous": own.tail()[DIGEST].view("u8")},
    )
    kept = {name: rest[name] for name in ("spool", "boot", "number", "created_ns", "stored", "discarded")}
    return own.header(**kept | told).tobytes()


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
    own = find_beginning(path)
    if own is not None and at + 1 < len(named):
        header = _header(layout.segment(*named[at + 1]))
        if header is not None:
            behind = tail_at_start(header)
            return bytes(header["spool"]), int(header["number"]) - 1, _counted_back(path, own, first, behind)
    if before:
        return _beginning(before, first)
    return None if own is None else _alone(layout, path, own, first)


def _alone(layout: Layout, path: Path, own: Beginning, first: int) -> Place | None:
    """The place of a segment that has no other around it."""
    if not (spool := _uuid(layout)):
        return None
    if known := read_committed(layout.index, spool):
        return spool, known[0], _counted_back(path, own, first, known[1])
    tail = _before(own, first)
    tail[STORED] = first % EPOCH
    return spool, 1, tail


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


def _before(own: Beginning, first: int) -> Tail:
    """The tail before a segment that begins with sequence `first`, as far as its own first frame tells it."""
    tail = own.tail()
    tail[SEQUENCE], tail[BURST] = first, int(own.head["burst"]) - 1
    return tail


def _counted_back(path: Path, own: Beginning, first: int, behind: Tail) -> Tail:
    """The same with the totals that are known behind this segment, less those of what is found in it."""
    tail = _before(own, first)
    header = own.header(burst=int(tail[BURST]), previous=unsigned(int(tail[DIGEST])))
    found = end_of(LiveSegment(path, header)).tail
    tail[STORED] = max(0, behind[STORED] - found[STORED])
    tail[DISCARDED:] = np.maximum(0, behind[DISCARDED:] - found[DISCARDED:])
    return tail
