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
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pipeline.headless import Bare, Headless, place_headless
from pipeline.segments import Part, SegmentReading, open_segment, topic_name
from spool.beginning import find_footer
from spool.errors import BadSpool, NoSpool, ReadFailed, UnknownVersion
from spool.format import UNLISTED, Record
from spool.frame import POSITION, SEQUENCE, STORED, Tail
from spool.identity import read_host
from spool.index import read_index
from spool.layout import SEGMENT, SENT, SPARE, Layout
from spool.live import Footer, LiveSegment, empty_tail, end_of, has_unlisted, read_footer, tail_of_footer
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
    damaged: list[Headless] = field(default_factory=list)
    """Segments of which nothing will be read. When all are, there is neither `spool` nor part."""

    @property
    def unreadable(self) -> list[str]:
        """The files whose headers are damaged, to be shown."""
        return [one.file.place for one in self.damaged if not one.file.error]

    def topics(self) -> set[str]:
        """Every topic in the spool. Segments whose footers do not list all are read, as far as possible."""
        found = set(self.footed)
        for part, segment in zip(self.parts, self.segments, strict=True):
            told = segment.footer is not None and not has_unlisted(segment.footer)
            for piece in () if told else SegmentReading(part, passing=True).pieces():
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


def plan_spool(
    layout: Layout,
    host: str | None = None,
    since: Mapping[str, int] | None = None,
    *,
    passing: bool = False,
) -> SpoolPlan:
    """What there is to read of a spool now. Raises UnknownVersion, OSError.

    `since`: by spool, a sequence number before which no segment needs to be looked at. `passing`: headers and
    footers that the disk gives an error for are done without; else that is raised, as ReadFailed.
    """
    # Before the directory: the segment that it speaks of is then listed, or sent and gone.
    found = list(_segments(layout, _Index(layout), since or {}, passing=passing))
    segments = _believed([one for one in found if isinstance(one, Segment)])
    host = host or read_host(layout)
    if segments and host is None and bytes(segments[-1].header["boot"]) == boot_id():
        host = socket.gethostname()
    parts = [_part(layout, segment, host) for segment in segments]
    numbers = [one if isinstance(one, Bare) else int(one.header["number"]) for one in found]
    damaged = place_headless(layout, numbers, host)
    if not segments:
        return SpoolPlan(layout, "", [], 0, 0, [], frozenset(), [], empty_tail(), damaged)
    newest = segments[-1]
    tail = _walk(layout, newest) if newest.end is None else newest.end
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
        frozenset().union(*([name for name, *_ in s.footer[2]] for s in segments if s.footer)) - {UNLISTED},
        segments,
        tail,
        damaged,
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


def _segments(
    layout: Layout, index: _Index, since: Mapping[str, int], *, passing: bool
) -> Iterator[Segment | Bare]:
    """Each segment that holds something committed, in order, and each whose header is damaged."""
    named = layout.list_segments()
    for first, suffix in named[_needed(layout, [first for first, _ in named], since) :]:
        fd = open_segment(layout, first)
        if fd is None:
            continue
        try:
            found = _look(fd, layout, first, suffix, index, passing=passing)
        finally:
            os.close(fd)
        if found:
            yield found
    if index.committed is None:
        for _, header in bound_spares(layout):
            yield Segment(header, None, None, packed=False, marks=[])


def _look(
    fd: int, layout: Layout, first: int, suffix: str, index: _Index, *, passing: bool
) -> Segment | Bare | None:
    """One segment; None when nothing of it is committed."""
    try:
        return _examine(fd, layout.segment(first), index, passing=passing)
    except UnknownVersion:
        raise
    except BadSpool as error:
        if isinstance(error, ReadFailed) and not passing:
            raise
        why = str(error.strerror) if isinstance(error, ReadFailed) else ""
        footer = None
        with suppress(OSError):
            footer = find_footer(layout.segment(first, suffix))
        return Bare(first, suffix, os.fstat(fd).st_size, footer, why)


def _believed(segments: list[Segment]) -> list[Segment]:
    """Without the footers after which the next segment would have to begin elsewhere (Catalogue.leads_on)."""
    for at, (one, behind) in enumerate(pairwise(segments)):
        follows = int(behind.header["number"]) == int(one.header["number"]) + 1
        if one.footer and follows and one.footer[0]["next_sequence"] != behind.header["first_sequence"]:
            segments[at] = Segment(one.header, None, None, packed=one.packed, marks=[])
    return segments


def _needed(layout: Layout, names: list[int], since: Mapping[str, int]) -> int:
    """How many of the segments lie before what is asked for; one that can be read is left."""
    for at in reversed(range(len(names)) if since else ()):
        fd = open_segment(layout, names[at])
        if fd is None:
            continue
        try:
            spool = bytes(header_of(fd, layout.directory)["spool"]).hex()
        except BadSpool:
            continue
        finally:
            os.close(fd)
        return max(0, min(at, bisect_right(names, since.get(spool, 0)) - 1))
    return 0


def _footer(fd: int, *, passing: bool) -> Footer | None:
    with suppress(*[ReadFailed] * passing):
        return read_footer(fd)
    return None


def _examine(fd: int, path: Path, index: _Index, *, passing: bool) -> Segment | None:
    """What a segment says of itself; None when nothing of it is committed. Raises BadSpool."""
    header = header_of(fd, path)
    if footer := _footer(fd, passing=passing):
        end = tail_of_footer(header, footer[0])
        marks = [(int(offset), int(first)) for offset, first, _ in footer[1].tolist()]
        return Segment(header, end, footer, is_packed(fd, path), marks)
    number = int(header["number"])
    if not index.covers(number):
        return None
    return Segment(header, index.end(number), None, packed=False, marks=index.marks(number))


def _walk(layout: Layout, segment: Segment) -> Tail:
    """The tail behind the last good frame of a segment whose end nobody tells."""
    header = segment.header
    first, number = int(header["first_sequence"]), int(header["number"])
    names = (layout.segment(number, SPARE), layout.segment(first, SEGMENT), layout.segment(first, SENT))
    path = next((path for path in names if path.exists()), names[-1])
    return end_of(LiveSegment(path, header)).tail
