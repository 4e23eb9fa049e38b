"""Frames in a raw disk image, or in what is left of a deleted segment: found by their magic, each verified.

A frame names neither its spool nor its segment. What follows it in the same file does so in the image too,
as long as the filesystem laid it out in one piece: a run of frames, each with the digest of the one before.
Blocks of packed segments are not found: they are zstd's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spool.carved import Earlier
from spool.disk import open_to_read, read_at
from spool.examination import malformed
from spool.format import HEAD, HEAD_BYTES
from spool.frame import POSITION, TAIL_FIELDS, skip_to
from spool.frames import heads_of
from spool.kernel import address_of
from spool.scan import Chunk, Scan, find_frame


@dataclass(slots=True)
class Run:
    """Frames that follow one another."""

    offset: int
    """Of the first, in the image."""
    first_sequence: int
    next_sequence: int = 0
    frames: int = 0
    messages: int = 0
    again: int = 0
    """Frames that were found before, elsewhere in the image, and are passed over here."""
    first_received_ns: int = 0
    last_received_ns: int = 0


def carve(path: Path) -> Iterator[tuple[Run, Chunk]]:
    """(the run so far, its next good frames), each valid until the next. Raises OSError."""
    fd = open_to_read(path, links=True)
    try:
        earlier = Earlier(fd)
        size, position = os.fstat(fd).st_size, 0
        while (position := find_frame(fd, position, size)) >= 0:
            head = np.frombuffer(read_at(fd, HEAD_BYTES, position), HEAD)[0]
            run = Run(position, int(head["first_sequence"]), first_received_ns=int(head["received_ns"]))
            tail = np.zeros(TAIL_FIELDS, np.int64)
            skip_to(tail, position, head)
            earlier.begin_run()
            scan = Scan(fd, tail, size)
            while chunk := scan.next():
                yield run, _count(run, chunk, earlier)
            position = max(position + 8, int(tail[POSITION]))
    finally:
        os.close(fd)


def _count(run: Run, chunk: Chunk, earlier: Earlier) -> Chunk:
    """What of a chunk is new and well-formed."""
    offsets, heads = heads_of(chunk)
    new = ~earlier.note(offsets, heads)
    frames = np.ascontiguousarray(chunk.frames[new])
    base = address_of(chunk.data) - chunk.offset
    good = np.array([malformed(base, frames[row : row + 1]) < 0 for row in range(len(frames))], np.bool_)
    kept = np.ascontiguousarray(frames[good])
    last = heads[-1]
    run.frames += len(kept)
    run.messages += int(kept[:, 2].sum())
    run.again += int((~new).sum())
    run.next_sequence = int(last["first_sequence"]) + int(last["count"])
    run.last_received_ns = int(last["received_ns"])
    return Chunk(chunk.data, chunk.offset, kept)
