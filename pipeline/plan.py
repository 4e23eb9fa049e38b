"""Which segments to read, and how far: decided once, beside the spool, on the driver.

A segment with a footer is read whole. One without is read up to the committed watermark in the index;
where there is no index, as in a copy made by hand, as far as there are good frames.
"""

from __future__ import annotations

import glob
import os
import socket
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pipeline.segments import Part, SegmentReading, open_segment, topic_name
from spool.errors import BadSpool, NoSpool, UnknownVersion
from spool.examination import Footer
from spool.format import Record
from spool.frame import POSITION, SEQUENCE, STORED, Tail
from spool.index import read_index
from spool.layout import Layout
from spool.live import LiveSegment, empty_tail, end_of, live_segment, read_footer, tail_of_footer
from spool.packed import header_of, is_packed
from spool.recovery import boot_id
from spool.segment import bound_spares

Mark = tuple[int, int]
"""A frame to begin at: its offset, and the sequence number of its first message."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What is known of one segment without reading its frames."""

    header: Record
    end: Tail | None
    """Behind the last frame to read; None where nobody knows."""
    footer: Footer | None
    packed: bool
    marks: list[Mark]
    """In order; some 64 KiB lie between two."""


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
    segments: list[Segment]
    """Of each part."""
    tail: Tail
    """Behind the last message."""

    def topics(self) -> set[str]:
        """Every topic in the spool: of segments without a footer the messages are read."""
        found = set(self.footed)
        for part, segment in zip(self.parts, self.segments, strict=True):
            for piece in () if segment.footer else SegmentReading(part).pieces():
                found.update(piece.batch.topics.names)
        return set(map(topic_name, found))


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


def plan_spool(layout: Layout, host: str | None = None, since: Mapping[str, int] | None = None) -> SpoolPlan:
    """What there is to read of a spool now. Raises UnknownVersion, OSError.

    `since`: by spool, a sequence number before which no segment needs to be looked at.
    """
    # Before the directory: the segment that it speaks of is then listed, or sent and gone.
    segments = list(_segments(layout, _Index(layout), since or {}))
    if not segments:
        return SpoolPlan(layout, "", [], 0, 0, [], frozenset(), [], empty_tail())
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
        frozenset().union(*([name for name, *_ in s.footer[2]] for s in segments if s.footer)),
        segments,
        tail,
    )


def _part(layout: Layout, segment: Segment, host: str | None) -> Part:
    header, end = segment.header, segment.end
    return Part(
        directory=str(layout.directory),
        spool=bytes(header["spool"]).hex(),
        host=host,
        number=int(header["number"]),
        first_sequence=int(header["first_sequence"]),
        end=None if end is None else int(end[POSITION]),
    )


class _Index:
    """What the index says of segments without a footer."""

    def __init__(self, layout: Layout) -> None:
        committed, entries = read_index(layout.index) or (None, [])
        self.committed = committed
        """Segment number and tail; None without an index."""
        self._entries = entries

    def covers(self, number: int) -> bool:
        """Whether anything of this segment is committed; so when nobody knows."""
        return self.committed is None or number <= self.committed[0]

    def end(self, number: int) -> Tail | None:
        """Where what is committed of a segment ends; None when nobody knows."""
        return self.committed[1] if self.committed and number == self.committed[0] else None

    def marks(self, number: int) -> list[Mark]:
        """Frames of a segment to begin at."""
        return [(offset, first) for first, segment, offset, *_ in self._entries if segment == number]


def _segments(layout: Layout, index: _Index, since: Mapping[str, int]) -> Iterator[Segment]:
    """Each segment that holds something committed, in order."""
    names = [first for first, _ in layout.list_segments()]
    for first in names[_needed(layout, names, since) :]:
        fd = open_segment(layout, first)
        if fd is None:
            continue
        try:
            found = _examine(fd, layout.segment(first), index)
        finally:
            os.close(fd)
        if found:
            yield found
    if index.committed is None:
        for _, header in bound_spares(layout):
            yield Segment(header, None, None, packed=False, marks=[])


def _needed(layout: Layout, names: list[int], since: Mapping[str, int]) -> int:
    """How many of the segments lie before what is asked for."""
    fd = open_segment(layout, names[-1]) if names and since else None
    if fd is None:
        return 0
    try:
        spool = bytes(header_of(fd, layout.directory)["spool"]).hex()
    except BadSpool:
        return 0
    finally:
        os.close(fd)
    return max(0, bisect_right(names, since.get(spool, 0)) - 1)


def _examine(fd: int, path: Path, index: _Index) -> Segment | None:
    """What a segment says of itself; None when it holds nothing that can be read."""
    try:
        header = header_of(fd, path)
    except UnknownVersion:
        raise
    except BadSpool:
        return None  # its messages are missed in the count, as those of a damaged frame are
    if footer := read_footer(fd):
        end = tail_of_footer(header, footer[0])
        marks = [(int(offset), int(first)) for offset, first, _ in footer[1].tolist()]
        return Segment(header, end, footer, is_packed(fd, path), marks)
    number = int(header["number"])
    if not index.covers(number):
        return None
    return Segment(header, index.end(number), None, packed=False, marks=index.marks(number))


def _walk(layout: Layout) -> Tail:
    """The tail behind the last good frame of a spool whose index does not tell."""
    live: LiveSegment | None = live_segment(layout)
    assert live is not None
    return end_of(live).tail
