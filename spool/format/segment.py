"""One segment file: allocated as a spare, taken into use, sealed with its footer.

The appender may never wait for the disk, but the file must be named, allocated and durable before its first
message. So the keeper makes spares ahead of need, named by segment number, since their first sequence number
is not known yet. The appender takes one into use by writing its header through the mapping: stores only, no
system call. At the first sync the keeper gives the file the name it keeps. Until then a spare with a bound
header is a segment like any other.

Rejected: naming at take-over (a rename waits for the journal of a stalled disk), and a second copy of the
first frames in the staging memory (a second log to recover).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.format.contents import Contents
from spool.format.frame import BURST, DIGEST, DISCARDED, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.format.scan import Scan, read_header
from spool.format.segment_format import (
    HEADER_BYTES,
    MARK_BYTES,
    Record,
    decode_header,
    encode_header,
    unsigned,
)
from spool.layout import SPARE, Layout
from spool.storage.disk import Mapping, allocate, open_to_write, reserve, write_at
from spool.storage.failpoint import reach

UNBOUND = -1
"""`first_sequence` of a spare."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity in segments: the spool's uuid, the host's boot id, the spool's secret; 16 bytes each."""

    spool: bytes
    boot: bytes
    secret: bytes


def create_spare(layout: Layout, identity: Identity, number: int, size: int) -> None:
    """Allocate segment `number`, durable and ready to be taken into use. Raises SpoolFull, OSError."""
    head = encode_header(spool=identity.spool, boot=identity.boot, number=number, first_sequence=UNBOUND)
    allocate(layout.segment(number, SPARE), head, size)


def header_behind(before: Tail, identity: Identity, number: int) -> bytes:
    """The header of the segment `number` that follows `before`."""
    return encode_header(
        spool=identity.spool,
        boot=identity.boot,
        secret=identity.secret,
        number=number,
        first_sequence=int(before[SEQUENCE]),
        previous=unsigned(int(before[DIGEST])),
        created_ns=time.time_ns(),
        stored=int(before[STORED]),
        burst=int(before[BURST]),
        discarded=before[DISCARDED:].astype(np.uint64),
    )


def take_into_use(mapping: Mapping, identity: Identity, number: int, before: Tail) -> tuple[Record, Tail]:
    """Bind a mapped spare to the log position behind `before`: its header and its own tail. Stores only."""
    data = header_behind(before, identity, number)
    mapping.bytes[:HEADER_BYTES] = np.frombuffer(data, np.uint8)
    header = decode_header(data, "")
    return header, tail_at_start(header)


def following(header: Record, tail: Tail) -> int:
    """The sequence number at which the segment behind this one begins.

    Behind a segment without messages (all discards) one number is skipped: its name would be taken.
    """
    return int(tail[SEQUENCE]) + (tail[SEQUENCE] == header["first_sequence"])


def bound_spares(layout: Layout) -> Iterator[tuple[Path, Record]]:
    """(path, header) of the spares that were taken into use, by number.

    A header torn by SIGKILL while it was bound does not verify: nothing was written behind it yet, so the
    spare is still one. Raises UnknownVersion, ReadFailed.
    """
    for number in layout.list_spares():
        path = layout.segment(number, SPARE)
        try:
            header = read_header(path)
        except (UnknownVersion, ReadFailed):
            raise
        except (BadSpool, FileNotFoundError):
            continue
        if header["first_sequence"] != UNBOUND:
            yield path, header


def seal(path: Path, *, next_sequence: int | None = None, mark_bytes: int = MARK_BYTES) -> Tail:
    """Write the footer behind the last good frame, cut the file there, sync it; returns the tail there.

    Only for segments that are not appended to any more. `next_sequence`: the first of the next segment, if
    it does not follow directly. `mark_bytes`: from one mark to the next. Good frames behind damage are kept,
    and so is the damage.
    Raises SpoolFull when there is no room for the footer; the segment is then unchanged.
    """
    fd = open_to_write(path)
    try:
        header = read_header(path)
        tail = tail_at_start(header)
        contents = Contents(os.fstat(fd).st_size, mark_bytes)
        for chunk in Scan(fd, tail).all():
            contents.add(chunk)
        goes_on = following(header, tail) if next_sequence is None else next_sequence
        data = contents.footer(header, tail, goes_on)
        end = int(tail[POSITION])
        reserve(fd, end, len(data))
        reach("seal.reserved")
        # First, so that a footer is at the end of its file, or is not there: a reader looks nowhere else.
        os.ftruncate(fd, end + len(data))
        reach("seal.cut")
        write_at(fd, data, end)
        reach("seal.written")
        try:
            os.fsync(fd)
        except OSError:
            # A reader would find the footer in the page cache, and believe it.
            os.ftruncate(fd, end)
            raise
        return tail
    finally:
        os.close(fd)


def list_files(layout: Layout) -> list[Path]:
    """The segment files of a spool in order, those without a final name at the end."""
    return [layout.segment(*p) for p in layout.list_segments()] + [path for path, _ in bound_spares(layout)]
