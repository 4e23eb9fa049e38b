"""Damaged headers, rebuilt: one bad sector must not cost a segment of messages.

The fields of a header follow from the segments around it, or from its own frames; boot and creation time do
not. So these two are kept as the damaged bytes have them. If the damaged header's check then fits the whole,
the header is what it was, and the marks, which refer to it, hold. Else the header gets no boot: an unsealed
segment is treated like one of an unclean end, and messages in it that only the marks call delivered are sent
again.

The segment before comes first: a rebuilt header counts on from it. If that one is gone, the segment behind
says how many messages there were before it, less those found here. If both are gone, the index does. Without
it the number of messages before is a guess: as many as there were sequence numbers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spool.errors import BadSpool, NoSpool, ReadFailed, UnknownVersion
from spool.format.frame import (
    BURST,
    DIGEST,
    DISCARDED,
    KEY,
    MARK,
    SEQUENCE,
    STORED,
    TAIL_FIELDS,
    Tail,
    tail_at_start,
)
from spool.format.packed import header_at, open_plain
from spool.format.scan import find_frame, frame_at, read_header
from spool.format.segment_format import (
    HEADER,
    HEADER_BYTES,
    OLD_KEYS,
    SECRET_BYTES,
    VERSION,
    Footer,
    Keys,
    Record,
    decode_header,
    encode_header,
    keys_from,
    unsigned,
)
from spool.index.committed import read_committed
from spool.index.identity import list_secrets, read_identity
from spool.index.log_end import EPOCH, LiveSegment, empty_tail, end_of, read_footer
from spool.layout import SPARE, Layout, parse_name
from spool.storage.disk import is_regular, keep, open_to_write, opened, read_at, set_aside, write_at
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.spool")

NO_BOOT = bytes(16)
_UNTOLD = ("boot", "created_ns")
"""Fields that follow from nothing else."""

SegmentStart = tuple[bytes, int, Tail]
"""Uuid of the spool, segment number, and the tail before the segment's first frame."""


def damaged_headers(layout: Layout) -> list[tuple[int, str]]:
    """The named segments whose header cannot be read, in order. Raises UnknownVersion, OSError."""
    return [pair for pair in layout.list_segments() if _is_damaged(layout.segment(*pair))]


def mend_headers(layout: Layout) -> None:
    """Make every header readable; a segment whose header cannot be rebuilt goes to quarantine.

    A header that the disk gives an error for is left alone: it waits for the disk.
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
            keep(layout, f"{path.name}.header", [read_at(file.fileno(), HEADER_BYTES, at)])
            write_at(file.fileno(), data, at)
            reach("recover.header")
            os.fsync(file.fileno())
        log.error("%s had a damaged header; it was rewritten", path)


def header_for(layout: Layout, pair: tuple[int, str]) -> bytes | None:
    """The header that a segment should have; None when it cannot be rebuilt."""
    path = layout.segment(*pair)
    found = _start(layout, pair)
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
    """A header for a segment file from its own frames, its header being damaged; None without a frame.

    Fields that do not follow from frames are taken from the damaged one.
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
    """Whether a header is damaged: not of a directory, an empty file, or one that the disk cannot read."""
    return is_regular(path) and path.stat().st_size > 0 and _header(path) is None and not is_unread(path)


def is_unread(path: Path) -> bool:
    """Whether the disk gives an error for a header. Raises UnknownVersion, OSError."""
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


def _start(layout: Layout, pair: tuple[int, str]) -> SegmentStart | None:
    """The place of a segment in the log."""
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


def _alone(layout: Layout, path: Path, own: Beginning, first: int) -> SegmentStart | None:
    """The place of a segment that has no other around it."""
    if not (spool := _uuid(layout)):
        return None
    if known := read_committed(layout.index, spool):
        return spool, known[0], _counted_back(path, own, first, known[1])
    tail = _before(own, first)
    tail[STORED] = first % EPOCH
    return spool, 1, tail


def _uuid(layout: Layout) -> bytes | None:
    """The uuid of a spool, if anything in it still has it."""
    try:
        return read_identity(layout)
    except NoSpool:
        return None


def _continues(tail: Tail, first: int) -> bool:
    """Whether a segment that begins with this number can directly follow a tail."""
    goes_on = int(tail[SEQUENCE])
    return first in (goes_on, goes_on + 1) or (first > goes_on and first % EPOCH == 0)


def _behind(path: Path) -> SegmentStart | None:
    """The place behind a segment; None when its header cannot be read either."""
    header = _header(path)
    if header is None:
        return None
    return bytes(header["spool"]), int(header["number"]) + 1, end_of(LiveSegment(path, header)).tail


def _beginning(before: SegmentStart, first: int) -> SegmentStart:
    spool, number, tail = before
    tail[SEQUENCE] = first
    return spool, number, tail


def _before(own: Beginning, first: int) -> Tail:
    """The tail before a segment that begins with sequence `first`, as far as its own first frame has it."""
    tail = own.tail()
    tail[SEQUENCE], tail[BURST] = first, int(own.head["burst"]) - 1
    return tail


def _counted_back(path: Path, own: Beginning, first: int, behind: Tail) -> Tail:
    """The same with the totals that are known behind this segment, less those of the frames found in it."""
    tail = _before(own, first)
    header = own.header(burst=int(tail[BURST]), previous=unsigned(int(tail[DIGEST])))
    found = end_of(LiveSegment(path, header)).tail
    tail[STORED] = max(0, behind[STORED] - found[STORED])
    tail[DISCARDED:] = np.maximum(0, behind[DISCARDED:] - found[DISCARDED:])
    return tail


class Beginning(NamedTuple):
    """The first good frame of a segment, and the parts of its keys."""

    version: int
    secret: bytes
    first_sequence: int
    """Of the segment."""
    offset: int
    """Of the frame."""
    head: Record
    """Of the frame."""

    @property
    def keys(self) -> Keys:
        """Of the segment."""
        return OLD_KEYS if self.version == 1 else keys_from(self.secret, self.first_sequence)

    def tail(self) -> Tail:
        """The tail before the frame; of earlier segments it has only the digest that the frame names."""
        tail = np.zeros(TAIL_FIELDS, np.int64)
        tail[KEY], tail[MARK] = self.keys
        if self.offset == HEADER_BYTES:
            tail[DIGEST] = self.head["previous"].astype(np.int64)
        return tail

    def header(self, **fields: object) -> Record:
        """A header with these fields by which the segment can be read."""
        own = {"version": self.version, "secret": self.secret, "first_sequence": self.first_sequence}
        return decode_header(encode_header(**own | fields), "")


def remains(path: Path) -> Record:
    """The bytes in the place of a segment's header, as a HEADER record. Raises OSError."""
    with opened(path) as file:
        data = read_at(file.fileno(), HEADER_BYTES, header_at(file.fileno()))
    return np.asarray(np.frombuffer(data.ljust(HEADER_BYTES, b"\0"), HEADER)[0])


def find_beginning(path: Path) -> Beginning | None:
    """The beginning of the segment in a file, its header being damaged; None if no frame in it verifies.

    Raises ReadFailed, OSError.
    """
    for version, secret, first in _candidates(path):
        keys = OLD_KEYS if version == 1 else keys_from(secret, first)
        fd = open_plain(path, keys)
        try:
            tail = np.zeros(TAIL_FIELDS, np.int64)
            tail[KEY], tail[MARK] = keys
            end = os.fstat(fd).st_size
            # A sender can make a frame of version 1, but not put it behind the header.
            offset = HEADER_BYTES if version == 1 else find_frame(fd, HEADER_BYTES, end, tail)
            if offset >= 0 and (head := frame_at(fd, offset, tail)) is not None:
                return Beginning(version, secret, first, offset, head)
        finally:
            os.close(fd)
    return None


def find_footer(path: Path) -> Footer | None:
    """The footer of the segment in a file, its header being damaged; None without one. Raises OSError."""
    with opened(path) as file:
        for version, secret, first in _candidates(path):
            fields = {"version": version, "secret": secret, "first_sequence": first}
            header = decode_header(encode_header(**fields), "")
            if found := read_footer(file.fileno(), header):
                return found
    return None


def _candidates(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """(version, secret, first sequence) that the segment may have had."""
    rest, parsed = remains(path), parse_name(path.name)
    named = [parsed[0]] if parsed and parsed[1] != SPARE else []
    directory = path.resolve().parent
    told = list_secrets(Layout(directory.parent)) if directory.name == "segments" else []
    for secret in dict.fromkeys([bytes(rest["secret"]), *told]):
        for first in dict.fromkeys([*named, int(rest["first_sequence"])]):
            for version in range(VERSION, 1, -1):
                yield version, secret, first
    yield 1, bytes(SECRET_BYTES), named[0] if named else int(rest["first_sequence"])
