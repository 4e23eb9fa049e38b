"""What was refused at intake, as the segments that are kept tell it: by reason, when, and samples."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spool.disk import read_at
from spool.examination import skip_damage
from spool.files import list_files
from spool.format import HEAD_BYTES, HEADER_BYTES, decode_header
from spool.frame import tail_at_start
from spool.layout import SENT, SPARE, Layout
from spool.live import read_footer
from spool.scan import Chunk, Scan

MOST_SAMPLES = 16
"""Of one reason: the newest."""


@dataclass(slots=True)
class Refused:
    """Datagrams refused for one reason, in the segments that are kept."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    samples: list[tuple[int, bytes]] = field(default_factory=list)
    """(received, its first bytes)."""

    def add(self, count: int, received_ns: int, sample: bytes) -> None:
        """One more row of a frame."""
        self.count += count
        self.first_ns = min(self.first_ns or received_ns, received_ns)
        self.last_ns = max(self.last_ns, received_ns)
        self.samples = [*self.samples, (received_ns, sample)][-MOST_SAMPLES:]


def read_refused(layout: Layout) -> dict[int, Refused]:
    """By reason. A daemon may be at work; what goes meanwhile is passed over. Raises BadSpool, OSError."""
    found: dict[int, Refused] = {}
    for path in list_files(layout):
        for name in (path, path.with_suffix(SENT)):
            try:
                rows = list(_read(name))
            except FileNotFoundError:
                continue
            for reason, count, received_ns, sample in rows:
                found.setdefault(reason, Refused()).add(count, received_ns, sample)
            break
    return found


_ROW = struct.Struct("<HHI")
Row = tuple[int, int, int, bytes]
"""Reason, count, received, sample."""


def _read(path: Path) -> Iterator[Row]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = decode_header(read_at(fd, HEADER_BYTES, 0), path)
        footer = read_footer(fd)
        unused = path.suffix == SPARE and header["first_sequence"] < 0
        if unused or (footer and not footer[0]["discarded"].any()):
            return
        scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
        while True:
            chunk = scan.next()
            if chunk is not None:
                yield from _rows(chunk)
                continue
            if skip_damage(scan) is None:
                return
    finally:
        os.close(fd)


def _rows(chunk: Chunk) -> Iterator[Row]:
    """The discard rows of frames that were verified."""
    for offset, _, _, received_ns, _ in chunk.frames.tolist():
        at = offset - chunk.offset
        head = chunk.data[at : at + HEAD_BYTES].tobytes()
        body, discards = (int.from_bytes(head[field : field + 4], "little") for field in (24, 28))
        rows = chunk.data[at + HEAD_BYTES + body - discards : at + HEAD_BYTES + body].tobytes()
        while rows:
            reason, length, count = _ROW.unpack_from(rows)
            yield reason, count, received_ns, rows[_ROW.size : _ROW.size + length]
            rows = rows[_ROW.size + length :]
