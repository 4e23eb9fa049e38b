"""Frames as rows: what their heads say, file by file, over damage. No message is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.disk import read_at
from spool.examination import WRITTEN, skip_damage
from spool.files import Unreadable
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, Record, decode_header
from spool.frame import POSITION, tail_at_start
from spool.live import read_footer
from spool.packed import open_plain
from spool.scan import Chunk, Scan
from spool.segment import UNBOUND
from spool.vouched import vouched_up_to


def heads_of(chunk: Chunk) -> tuple[npt.NDArray[np.int64], Record]:
    """(offsets in the segment int64[n], heads HEAD[n]) of the frames in a chunk."""
    offsets = chunk.frames[:, 0]
    bytes_of = chunk.data[(offsets - chunk.offset)[:, None] + np.arange(HEAD_BYTES)]
    return offsets.copy(), bytes_of.view(HEAD)[:, 0]


def read_frames(path: Path) -> Iterator[tuple[npt.NDArray[np.int64], Record] | Unreadable]:
    """What `heads_of` gives, chunk by chunk; and what cannot be read. Nothing of a spare.

    Raises BadSpool when the file is no segment, UnknownVersion, OSError.
    """
    fd = open_plain(path)
    try:
        header, footer = decode_header(read_at(fd, HEADER_BYTES, 0), path), read_footer(fd)
        if int(header["first_sequence"]) == UNBOUND:
            return
        scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
        if footer is None:
            scan.vouched = vouched_up_to(path, header)
        while True:
            while chunk := scan.next():
                yield heads_of(chunk)
            position = int(scan.tail[POSITION])
            missing = skip_damage(scan)
            if missing is None:
                return
            if missing != WRITTEN:
                yield Unreadable(path, position, missing)
    finally:
        os.close(fd)
