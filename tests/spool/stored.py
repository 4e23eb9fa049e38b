"""What a spool holds, by the product's own reader of files; and packing one of them."""

from __future__ import annotations

import os
from pathlib import Path

from spool.files import Span, list_files, read_file
from spool.format import FOOTER_MAGIC
from spool.layout import Layout
from spool.marks import Marks
from spool.packed import pack
from spool.record import Batch, Topics
from spool.segment import seal


def messages(layout: Layout) -> list[bytes]:
    """Every datagram that can be read, in order."""
    found = []
    for path in list_files(layout):
        for batch in read_file(path, Topics(), Span()):
            if isinstance(batch, Batch):
                places = zip(batch.datagram_at.tolist(), batch.datagram_bytes.tolist(), strict=True)
                found += [batch.data[at : at + length].tobytes() for at, length in places]
    return found


def pack_file(path: Path) -> None:
    """In place."""
    source = os.open(path, os.O_RDONLY)
    target = os.open(path.with_suffix(".new"), os.O_RDWR | os.O_CREAT)
    pack(source, target)
    os.close(source)
    os.close(target)
    os.replace(path.with_suffix(".new"), path)


def shorten(path: Path, end: int) -> None:
    """Give a sealed segment the footer that it would have if it had ended at an offset."""
    data, sooner = path.read_bytes(), path.with_suffix(".sooner")
    sooner.write_bytes(data[:end])
    seal(sooner)
    path.write_bytes(data[: data.rindex(FOOTER_MAGIC)] + sooner.read_bytes()[end:])
    sooner.unlink()


def lost_of(marks: Marks) -> dict[int, int]:
    """Sequence -> reason of each discarded message whose segment is kept."""
    sequences, reasons = marks.lost()
    return dict(zip(sequences.tolist(), reasons.tolist(), strict=True))
