"""Which segments of which spools to read, and how far: decided once, beside the spools, on the driver.

A segment with a footer is read whole. One without is read up to the committed watermark in the index; without
an index, as in a copy made by hand, up to the last good frame.

Nothing is read of a segment whose header is damaged, or cannot be read from the disk: the plan takes its
number and counts from its name, its footer and its neighbours. Its frames could be read, each by itself. But
marks refer to the digest in the header, so that neither the driver nor a task could tell which of the
messages are delivered, or record that they are. A daemon that starts writes such a header again if it can.
"""

from __future__ import annotations

import glob
import os
import socket
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.errors import JobFailed
from pipeline.source.remote import find_remote, is_address, local_path, mirror, shown
from pipeline.source.segments import DamagedFile, Part, SegmentReading, open_segment, topic_name
from spool.errors import BadSpool, NoSpool, ReadFailed, UnknownVersion
from spool.format.frame import POSITION, SEQUENCE, STORED, Tail
from spool.format.packed import header_of, is_packed
from spool.format.segment import bound_spares
from spool.format.segment_format import COLUMNS_BYTES, UNLISTED, Footer, Record
from spool.format.sums_book import MOST_MESSAGES
from spool.index.committed import read_committed
from spool.index.headers import find_footer
from spool.index.identity import read_host, read_identity
from spool.index.index import read_entries
from spool.index.log_end import (
    LiveSegment,
    empty_tail,
    end_of,
    has_unlisted,
    read_footer,
    tail_of_footer,
)
from spool.layout import SEGMENT, SENT, SPARE, Layout
from spool.log.recovery import boot_id

Mark = tuple[int, int]
"""A frame to begin at: its offset, and the sequence number of its first message."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The facts of one segment that need none of its frames."""

    header: Record
    end: Tail | None
    """After the last frame to read; None if neither footer nor index tells."""
    footer: Footer | None
    packed: bool
    marks: list[Mark]
    """In order; one every 64 KiB or so."""


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment without a good header, and its place among the others."""

    file: DamagedFile
    footer: Footer | None
    outside: bool
    """No readable segment is before it, or none after it."""

    @property
    def messages(self) -> int:
        """How many it holds, if its footer tells; 0 between others, whose headers count them."""
        return int(self.footer.fields["count"]) if self.footer and self.outside else 0


@dataclass(frozen=True, slots=True)
class SpoolPlan:
    """The parts to read of one spool."""

    layout: Layout
    spool: str
    """uuid, 32 hexadecimal digits; empty when it has no segment yet."""
    parts: list[Part]
    next_sequence: int
    """Messages below this sequence number are read."""
    stored: int
    """How many they are, by the segments' headers and footers."""
    runs: list[tuple[int, int]]
    """Their sequence numbers, as [first, end) of each segment: numbers may jump from one to the next."""
    footed: frozenset[bytes]
    """The topics that footers list."""
    segments: list[Segment]
    """Of each part."""
    tail: Tail
    """After the last message."""
    address: str = ""
    """Of a spool elsewhere, of which `layout` is a mirror, while plan_spools has not gone on."""
    begin: int = 0
    """The first sequence number of the oldest segment, which its name has even if it cannot be read."""
    damaged: list[DamagedSegment] = field(default_factory=list)
    """Segments that will not be read. If all segments are damaged, there is neither `spool` nor part."""

    @property
    def directory(self) -> str:
        """The path or the address of the spool."""
        return self.address or str(self.layout.directory)

    @property
    def unreadable(self) -> list[str]:
        """The files whose headers are damaged, to be shown."""
        return [one.file.location for one in self.damaged if not one.file.error]

    def left(self) -> SpoolPlan:
        """The plan without the segments that were removed since: delivered ones go when room is needed."""
        if self.address:
            return self
        begin = min((first for first, _ in self.layout.list_segments()), default=self.begin)
        if begin <= self.begin:
            return self
        kept = self.narrow({part.first_sequence for part in self.parts if part.first_sequence >= begin})
        gone = sum(end - first for first, end in self.runs) - sum(end - first for first, end in kept.runs)
        damaged = [one for one in self.damaged if one.file.first_sequence >= begin]
        return replace(kept, stored=self.stored - gone, begin=begin, damaged=damaged)

    def narrow(self, firsts: AbstractSet[int]) -> SpoolPlan:
        """The plan of those segments alone that begin with these sequence numbers."""
        kept = [at for at, part in enumerate(self.parts) if part.first_sequence in firsts]
        return replace(
            self,
            parts=[self.parts[at] for at in kept],
            runs=[self.runs[at] for at in kept],
            segments=[self.segments[at] for at in kept],
            damaged=[],
        )

    def topics(self) -> set[str]:
        """Every topic in the spool. Segments whose footers do not list all are read, as far as possible."""
        found = set(self.footed)
        for part, segment in zip(self.parts, self.segments, strict=True):
            told = segment.footer is not None and not has_unlisted(segment.footer)
            for piece in () if told else SegmentReading(part, skip_read_errors=True).pieces():
                found.update(piece.batch.topics.names.of(np.unique(piece.batch.topic)))
        return set(map(topic_name, found))


def find_spools(paths: Iterable[str]) -> list[Layout]:
    """The spools at these paths, which may be globs. Raises NoSpool when one names none."""
    found: dict[str, Layout] = {}
    for path in paths:
        # The name of a spool that is there is no pattern, whatever is in it.
        here = Layout(Path(path)).segments.is_dir()
        matches = [path] if here else sorted(glob.glob(path)) or [path]
        layouts = [Layout(Path(match)) for match in matches]
        spools = {str(layout.directory.resolve()): layout for layout in layouts if layout.segments.is_dir()}
        if not spools:
            raise NoSpool(f"{path} holds no spool")
        found |= spools
    return list(found.values())


def plan_spools(
    paths: Iterable[str],
    host: str | None = None,
    since: Mapping[str, int] | None = None,
    *,
    skip_read_errors: bool = False,
) -> Iterator[SpoolPlan]:
    """A plan of each spool; a spool at an address counts as a copy.

    `since`, `skip_read_errors`: as in plan_spool. Raises NoSpool, BadOption, UnknownVersion, OSError.
    """
    paths = list(map(local_path, paths))
    for layout in find_spools(path for path in paths if not is_address(path)):
        yield plan_spool(layout, host, since, skip_read_errors=skip_read_errors)
    found = {spool.address: spool for path in paths if is_address(path) for spool in find_remote(path)}
    for spool in found.values():
        with tempfile.TemporaryDirectory(prefix="bruce-") as directory:
            mirror(spool, Path(directory))
            plan = plan_spool(Layout(Path(directory)), host, since)
            yield _moved(plan, spool.address)


def refuse_copies(plans: Iterable[SpoolPlan]) -> None:
    """Raise JobFailed when two of these are of one spool: each of its messages would be there twice."""
    found: dict[str, SpoolPlan] = {}
    for plan in plans:
        if plan.spool in found:
            both = " and ".join(shown(one.directory) for one in (found[plan.spool], plan))
            raise JobFailed(f"{both} are copies of one spool; name one of them")
        if plan.spool:
            found[plan.spool] = plan


def list_unreadable(paths: Iterable[str]) -> list[str]:
    """The segments of these spools whose headers are damaged: no job reads them. Raises as plan_spools."""
    return [place for plan in plan_spools(paths, skip_read_errors=True) for place in plan.unreadable]


def _moved(plan: SpoolPlan, address: str) -> SpoolPlan:
    """The plan of a mirror, whose parts are read from the address."""
    damaged = [replace(one, file=replace(one.file, directory=address)) for one in plan.damaged]
    parts = [replace(part, directory=address) for part in plan.parts]
    return replace(plan, parts=parts, damaged=damaged, address=address)


def plan_spool(
    layout: Layout,
    host: str | None = None,
    since: Mapping[str, int] | None = None,
    *,
    skip_read_errors: bool = False,
) -> SpoolPlan:
    """A plan of all that a spool holds now. Raises UnknownVersion, OSError.

    `since`: by spool, a sequence number before which no segment is needed. `skip_read_errors`: do without
    headers and footers that the disk cannot read; else raises ReadFailed.
    """
    # Before the directory: a segment in the index is then listed, or sent and gone.
    found = list(_segments(layout, _Index(layout), since or {}, skip_read_errors=skip_read_errors))
    found = list(_possible(layout, found))
    segments = _believed([one for one in found if isinstance(one, Segment)])
    host = host or read_host(layout)
    if segments and host is None and bytes(segments[-1].header["boot"]) == boot_id():
        host = socket.gethostname()
    parts = [_part(layout, segment, host) for segment in segments]
    numbers = [one if isinstance(one, _DamagedHeader) else int(one.header["number"]) for one in found]
    damaged = _place_damaged(layout, numbers, host)
    if not segments:
        return SpoolPlan(layout, "", [], 0, 0, [], frozenset(), [], empty_tail(), damaged=damaged)
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
        frozenset().union(*([name for name, *_ in s.footer.topics] for s in segments if s.footer))
        - {UNLISTED},
        segments,
        tail,
        begin=min([runs[0][0], *(first for first, _ in layout.list_segments())]),
        damaged=damaged,
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
    """The index entries of segments without a footer."""

    def __init__(self, layout: Layout) -> None:
        self._entries = read_entries(layout.index) or []
        spool = None
        with suppress(NoSpool):
            spool = read_identity(layout)
        self.committed = read_committed(layout.index, spool)
        """Segment number and tail; None without an index of this spool."""

    def covers(self, number: int) -> bool:
        """Whether anything of this segment is committed; True without an index."""
        return self.committed is None or number <= self.committed[0]

    def end(self, header: Record, size: int) -> Tail | None:
        """The committed end of a segment with so many bytes; None when the index does not tell it.

        Nor where the end counts more messages than there may be: the file may be a copy from elsewhere.
        """
        if self.committed is None:
            return None
        number, end = self.committed
        messages = int(end[STORED]) - int(header["stored"])
        most = min(int(end[SEQUENCE]) - int(header["first_sequence"]), size // COLUMNS_BYTES)
        return end if number == header["number"] and 0 <= messages <= most else None

    def marks(self, number: int) -> list[Mark]:
        """Frames of a segment to begin at."""
        return [(offset, first) for first, segment, offset, *_ in self._entries if segment == number]


def _segments(
    layout: Layout, index: _Index, since: Mapping[str, int], *, skip_read_errors: bool
) -> Iterator[Segment | _DamagedHeader]:
    """Each segment that holds something committed, in order, and each whose header is damaged."""
    named = layout.list_segments()
    for first, suffix in named[_needed(layout, [first for first, _ in named], since) :]:
        fd = open_segment(layout, first)
        if fd is None:
            continue
        try:
            found = _look(fd, layout, first, suffix, index, skip_read_errors=skip_read_errors)
        finally:
            os.close(fd)
        if found:
            yield found
    if index.committed is None:
        for _, header in bound_spares(layout):
            yield Segment(header, None, None, packed=False, marks=[])


@dataclass(frozen=True, slots=True)
class _DamagedHeader:
    """The facts of a segment without a good header, from its file and its footer."""

    first_sequence: int
    suffix: str
    bytes: int
    footer: Footer | None
    error: str = ""
    """Why the disk cannot read the header."""


def _look(
    fd: int, layout: Layout, first: int, suffix: str, index: _Index, *, skip_read_errors: bool
) -> Segment | _DamagedHeader | None:
    """One segment; None when nothing of it is committed."""
    try:
        return _examine(fd, layout.segment(first), index, skip_read_errors=skip_read_errors)
    except UnknownVersion:
        raise
    except BadSpool as error:
        if isinstance(error, ReadFailed) and not skip_read_errors:
            raise
        why = str(error.strerror) if isinstance(error, ReadFailed) else ""
        footer = None
        with suppress(OSError):
            footer = find_footer(layout.segment(first, suffix))
        return _DamagedHeader(first, suffix, os.fstat(fd).st_size, footer, why)


def _possible(
    layout: Layout, found: Sequence[Segment | _DamagedHeader]
) -> Iterator[Segment | _DamagedHeader]:
    """The same; headers that count more messages than there may be before them are damaged.

    A header counts all messages before it: those of the segments since the one before, which have as many
    sequences, and room for so many.
    """
    before: Segment | None = None
    gone = 0
    for one in found:
        if not isinstance(one, Segment):
            gone += 1
        elif before is not None and not _follows(before.header, one.header, 1 + gone):
            gone += 1
            yield _doubted(layout, one)
            continue
        else:
            before, gone = one, 0
        yield one


def _follows(before: Record, header: Record, segments: int) -> bool:
    messages = int(header["stored"]) - int(before["stored"])
    sequences = int(header["first_sequence"]) - int(before["first_sequence"])
    return 0 <= messages <= min(sequences, segments * MOST_MESSAGES)


def _doubted(layout: Layout, segment: Segment) -> _DamagedHeader:
    first = int(segment.header["first_sequence"])
    suffix = SENT if layout.segment(first, SENT).exists() else SEGMENT
    with suppress(OSError):
        return _DamagedHeader(first, suffix, layout.segment(first, suffix).stat().st_size, segment.footer)
    return _DamagedHeader(first, suffix, 0, segment.footer)


def _believed(segments: list[Segment]) -> list[Segment]:
    """Without the footers after which the next segment would have to begin elsewhere (leads_on).

    And without those that count more messages than a segment may have.
    """
    for at, one in enumerate(segments):
        if one.footer and one.footer.fields["count"] > MOST_MESSAGES:
            segments[at] = Segment(one.header, None, None, packed=one.packed, marks=[])
    for at, (one, behind) in enumerate(pairwise(segments)):
        follows = int(behind.header["number"]) == int(one.header["number"]) + 1
        if one.footer and follows and one.footer.fields["next_sequence"] != behind.header["first_sequence"]:
            segments[at] = Segment(one.header, None, None, packed=one.packed, marks=[])
    return segments


def _needed(layout: Layout, names: list[int], since: Mapping[str, int]) -> int:
    """How many segments come before the wanted messages; one that can be read is left."""
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


def _footer(fd: int, *, skip_read_errors: bool) -> Footer | None:
    with suppress(*[ReadFailed] * skip_read_errors):
        return read_footer(fd)
    return None


def _examine(fd: int, path: Path, index: _Index, *, skip_read_errors: bool) -> Segment | None:
    """The facts of a segment from its own file; None when nothing of it is committed. Raises BadSpool."""
    header = header_of(fd, path)
    if footer := _footer(fd, skip_read_errors=skip_read_errors):
        end = tail_of_footer(header, footer.fields)
        marks = [(int(offset), int(first)) for offset, first, _ in footer.marks.tolist()]
        return Segment(header, end, footer, is_packed(fd, path), marks)
    number = int(header["number"])
    if not index.covers(number):
        return None
    committed = index.end(header, os.fstat(fd).st_size)
    return Segment(header, committed, None, packed=False, marks=index.marks(number))


def _walk(layout: Layout, segment: Segment) -> Tail:
    """The tail after the last good frame of a segment whose end is in neither footer nor index."""
    header = segment.header
    first, number = int(header["first_sequence"]), int(header["number"])
    names = (layout.segment(number, SPARE), layout.segment(first, SEGMENT), layout.segment(first, SENT))
    path = next((path for path in names if path.exists()), names[-1])
    return end_of(LiveSegment(path, header)).tail


def _place_damaged(
    layout: Layout, found: Sequence[int | _DamagedHeader], host: str | None
) -> list[DamagedSegment]:
    """Those with damaged headers among the segments of a spool.

    `found`: of each segment, in order, its number or the facts known without its header.
    """
    numbers = {at: one for at, one in enumerate(found) if not isinstance(one, _DamagedHeader)}
    if len(numbers) == len(found):
        return []
    spool = _spool_of(layout)
    return [
        DamagedSegment(
            DamagedFile(
                str(layout.directory),
                spool,
                host,
                _number(at, numbers),
                one.first_sequence,
                one.suffix,
                one.bytes,
                one.error,
            ),
            one.footer,
            not numbers or not min(numbers) < at < max(numbers),
        )
        for at, one in enumerate(found)
        if isinstance(one, _DamagedHeader)
    ]


def _number(at: int, numbers: dict[int, int]) -> int | None:
    """The number of the segment at this place, if all others agree: numbers have no gaps."""
    told = {number + at - place for place, number in numbers.items()}
    return told.pop() if len(told) == 1 else None


def _spool_of(layout: Layout) -> str | None:
    try:
        return read_identity(layout).hex()
    except NoSpool:
        return None
