"""Which segments to read, and how far: decided once, beside the spool, on the driver.

A segment with a footer is read whole. One without is read up to the committed watermark in the index;
where there is no index, as in a copy made by hand, as far as there are good frames.
"""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pipeline.segments import Part, SegmentReading, open_segment, topic_name
from spool.errors import BadSpool, NoSpool, UnknownVersion
from spool.format import Record
from spool.frame import POSITION, SEQUENCE, STORED, Tail
from spool.index import read_committed
from spool.layout import Layout
from spool.live import LiveSegment, end_of, live_segment, read_footer, tail_of_footer
from spool.packed import header_of
from spool.recovery import boot_id
from spool.segment import bound_spares

Committed = tuple[int, Tail] | None
"""Segment number and tail that the index calls committed; None without an index."""


@dataclass(frozen=True, slots=True)
class SpoolPlan:
    """What will be read of one spool."""

    layout: Layout
    spool: str
    """uuid, 32 hexadecimal digits; empty when it has no segment yet."""
    parts: list[Part]
    next_sequence: int
    """Messages below this sequence number are read."""
    stored: int
    """How many they are, by what the segments' headers and footers say."""
    runs: list[tuple[int, int]]
    """Their sequence numbers, as [first, end) of each segment: numbers may jump from one to the next."""
    footed: frozenset[bytes]
    """The topics that stand in footers."""
    unfooted: list[Part]
    """The parts without a footer."""

    def topics(self) -> set[str]:
        """Every topic in the spool: of segments without a footer the messages are read."""
        found = set(self.footed)
        for part in self.unfooted:
            for piece in SegmentReading(part).pieces():
                found.update(piece.batch.topics.names)
        return set(map(topic_name, found))


@dataclass(frozen=True, slots=True)
class _Segment:
    header: Record
    end: Tail | None
    """None where nobody knows."""
    topics: frozenset[bytes] | None
    """None without a footer."""


def find_spools(paths: Iterable[str]) -> list[Layout]:
    """The spools at these paths, which may be globs. Raises NoSpool when one names none."""
    found: dict[str, Layout] = {}
    for path in paths:
        layouts = [Layout(Path(match)) for match in (sorted(glob.glob(path)) or [path])]
        spools = {str(layout.directory.resolve()): layout for layout in layouts if layout.segments.is_dir()}
        if not spools:
            raise NoSpool(f"{path} holds no spool")
        found |= spools
    return list(found.values())


def plan_spool(layout: Layout, host: str | None = None) -> SpoolPlan:
    """What there is to read of a spool now. Raises UnknownVersion, OSError."""
    # Before the directory: the segment that it speaks of is then listed, or sent and gone.
    committed = read_committed(layout.index)
    segments = list(_segments(layout, committed))
    if not segments:
        return SpoolPlan(layout, "", [], 0, 0, [], frozenset(), [])
    newest = segments[-1]
    if host is None and bytes(newest.header["boot"]) == boot_id():
        host = socket.gethostname()
    tail = _walk(layout) if newest.end is None else newest.end
    parts = [_part(layout, segment, host) for segment in segments]
    before = [int(segment.header["stored"]) for segment in segments] + [int(tail[STORED])]
    runs = [
        (part.first_sequence, part.first_sequence + after - ahead)
        for part, (ahead, after) in zip(parts, pairwise(before), strict=True)
    ]
    return SpoolPlan(
        layout,
        parts[0].spool,
        parts,
        int(tail[SEQUENCE]),
        before[-1] - before[0],
        runs,
        frozenset().union(*(segment.topics or () for segment in segments)),
        [part for part, segment in zip(parts, segments, strict=True) if segment.topics is None],
    )


def _part(layout: Layout, segment: _Segment, host: str | None) -> Part:
    header, end = segment.header, segment.end
    return Part(
        directory=str(layout.directory),
        spool=bytes(header["spool"]).hex(),
        host=host,
        number=int(header["number"]),
        first_sequence=int(header["first_sequence"]),
        end=None if end is None else int(end[POSITION]),
    )


def _segments(layout: Layout, committed: Committed) -> Iterator[_Segment]:
    """Each segment that holds something committed, in order."""
    for first, _ in layout.list_segments():
        fd = open_segment(layout, first)
        if fd is None:
            continue
        try:
            found = _examine(fd, layout.segment(first), committed)
        finally:
            os.close(fd)
        if found:
            yield found
    if committed is None:
        for _, header in bound_spares(layout):
            yield _Segment(header, None, None)


def _examine(fd: int, path: Path, committed: Committed) -> _Segment | None:
    """What a segment says of itself; None when it holds nothing that can be read."""
    try:
        header = header_of(fd, path)
    except UnknownVersion:
        raise
    except BadSpool:
        return None  # its messages are missed in the count, as those of a damaged frame are
    if footer := read_footer(fd):
        names = frozenset(name for name, *_ in footer[2])
        return _Segment(header, tail_of_footer(header, footer[0]), names)
    number = int(header["number"])
    if committed is None or number < committed[0]:
        return _Segment(header, None, None)
    return _Segment(header, committed[1], None) if number == committed[0] else None


def _walk(layout: Layout) -> Tail:
    """The tail behind the last good frame of a spool whose index does not tell."""
    live: LiveSegment | None = live_segment(layout)
    assert live is not None
    return end_of(live).tail
