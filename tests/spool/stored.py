"""The messages of a spool, by the product's own reader of files; and packing one of them."""

from __future__ import annotations

import os
from pathlib import Path

from spool.format.batch import Batch, Topics
from spool.format.packed import BLOCK_BYTES, pack
from spool.format.segment import list_files, seal
from spool.format.segment_format import FOOTER_MAGIC
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.read.files import Span, read_file
from tests.spool.fixture import SpoolFixture


def messages(layout: Layout) -> list[bytes]:
    """Every datagram that can be read, in order."""
    found = []
    for path in list_files(layout):
        for batch in read_file(path, Topics(), Span()):
            if isinstance(batch, Batch):
                places = zip(batch.datagram_at.tolist(), batch.datagram_bytes.tolist(), strict=True)
                found += [batch.data[at : at + length].tobytes() for at, length in places]
    return found


def pack_file(path: Path, block_bytes: int = BLOCK_BYTES) -> None:
    """Pack a sealed segment in place."""
    source = os.open(path, os.O_RDONLY)
    target = os.open(path.with_suffix(".new"), os.O_RDWR | os.O_CREAT)
    pack(source, target, block_bytes)
    os.close(source)
    os.close(target)
    os.replace(path.with_suffix(".new"), path)


def shorten(path: Path, end: int) -> None:
    """Give a sealed segment the footer of one that ended at this offset."""
    data, sooner = path.read_bytes(), path.with_suffix(".sooner")
    sooner.write_bytes(data[:end])
    seal(sooner)
    path.write_bytes(data[: data.rindex(FOOTER_MAGIC)] + sooner.read_bytes()[end:])
    sooner.unlink()


def mark_often(spool: SpoolFixture) -> None:
    """Give the sealed segments of a spool footers with a mark each KiB."""
    for pair in spool.layout.list_segments():
        path = spool.layout.segment(*pair)
        data = path.read_bytes()
        if FOOTER_MAGIC in data:
            path.write_bytes(data[: data.rindex(FOOTER_MAGIC)])
            seal(path, mark_bytes=1024)


def lost_of(marks: Marks) -> dict[int, int]:
    """Sequence -> reason of each discarded message whose segment is kept."""
    sequences, reasons = marks.lost()
    return dict(zip(sequences.tolist(), reasons.tolist(), strict=True))
