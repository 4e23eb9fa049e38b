"""The segments of a spool as a reader sees them: named files, each header read once."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from spool.errors import BadSpool, NoSpool, ReadFailed
from spool.format.frame import POSITION, SEQUENCE, Tail, tail_at_start
from spool.format.packed import open_plain
from spool.format.scan import Scan, read_header
from spool.format.segment_format import HEADER_BYTES, Footer, Record, decode_header
from spool.index.identity import read_identity
from spool.index.log_end import EPOCH, read_footer
from spool.layout import SEGMENT, SENT, Layout, SegmentNames
from spool.native.digest import UNTOLD, digest
from spool.storage.disk import open_to_read, read_at

RETRY_S = 10.0
"""Until a header that the disk gave an error for is read again: each time may take seconds."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as its name and its header describe it."""

    first_sequence: int
    number: int
    stored: int
    """Messages in all segments before it."""
    identity: int
    """Tells this segment from every other, also from one that took its numbers in a copied or restored
    spool: xxh3 of its header. UNTOLD: the disk cannot read its header at present, and the rest follows from
    the segments around it."""


class SegmentList:
    """The named segments, in order. `refresh` follows what the keeper did."""

    def __init__(self, layout: Layout, *, retry_s: float = RETRY_S) -> None:
        """`retry_s`: until what the disk gave an error for is read again."""
        self.layout, self.retry_s = layout, retry_s
        self.segments: list[SegmentInfo] = []
        self.damaged: set[int] = set()
        """First sequences, by name, of segments whose header is damaged."""
        self.untold: dict[int, float] = {}
        """First sequence -> when to try again, of segments for whose header the disk gives an error."""
        self.sent: set[int] = set()
        """First sequences of the segments that are called sent."""
        self.spool = 0
        """Tells this spool from others: xxh3 of its uuid, as its segments have it, or else its own file; 0
        without any."""
        self.entries: dict[int, list[tuple[int, int]]] = {}
        """By segment number, for segments without a footer: (first sequence, offset) of frames to enter at,
        in order, as readers met them."""
        self._names, self._named = SegmentNames(layout), [(-1, "")]
        """The named segments, and what they were at the last refresh."""
        self.refresh()

    def refresh(self) -> None:
        """Look at the directory again."""
        named = self._names.look()
        if named is self._named and not (self.untold or self.damaged):
            return
        self._named, known = named, {info.first_sequence: info for info in self.segments}
        self.sent = {first for first, suffix in named if suffix == SENT}
        self.untold = {first: due for first, suffix in named if (due := self.untold.get(first))}
        found = [self._look(first, suffix, known) for first, suffix in named]
        if self.untold:
            found = _fill_in([first for first, _ in named], found, self.untold)
        self.segments = [info for info in found if info]
        if not self.spool:
            with suppress(NoSpool, OSError):
                self.spool = digest(read_identity(self.layout))
        kept = {info.number for info in self.segments}
        self.entries = {number: at for number, at in self.entries.items() if number in kept}

    def _look(self, first: int, suffix: str, known: dict[int, SegmentInfo]) -> SegmentInfo | None:
        """The description of a segment; None without one yet."""
        if first not in self.untold:
            return known.get(first) or self._read(first, suffix)
        return self._read(first, suffix) if time.monotonic() >= self.untold[first] else None

    def _read(self, first: int, suffix: str) -> SegmentInfo | None:
        try:
            header = self._header(first, suffix)
        except FileNotFoundError:
            return None  # removed while we looked
        except ReadFailed:
            self.untold[first] = time.monotonic() + self.retry_s
            return None
        except BadSpool:
            self.damaged.add(first)
            return None
        self.untold.pop(first, None)
        self.spool = digest(bytes(header["spool"]))
        return SegmentInfo(first, int(header["number"]), int(header["stored"]), digest(header.tobytes()))

    def _header(self, first: int, suffix: str) -> Record:
        try:
            return read_header(self.layout.segment(first, suffix))
        except FileNotFoundError:
            # Called sent while we looked. Passing it over would look like a hole in the log.
            return read_header(self.layout.segment(first, SENT))

    def at(self, sequence: int) -> int:
        """The index of the segment that holds `sequence`, or would; 0 when it is before all of them."""
        return max(0, bisect.bisect_right(self.segments, sequence, key=lambda s: s.first_sequence) - 1)

    def by_number(self, number: int) -> SegmentInfo | None:
        """The segment with this number; None when it is not there."""
        at = bisect.bisect_left(self.segments, number, key=lambda s: s.number)
        found = self.segments[at] if at < len(self.segments) else None
        return found if found and found.number == number else None

    def leads_on(self, info: SegmentInfo, footer: Footer) -> bool:
        """Whether the segment behind this one, if it is there, begins where a footer says."""
        behind = self.by_number(info.number + 1)
        return behind is None or behind.first_sequence == int(footer.fields["next_sequence"])

    def open(self, info: SegmentInfo) -> int:
        """A descriptor to read a segment's frames, under whichever name it has. Raises FileNotFoundError."""
        try:
            return open_plain(self.layout.segment(info.first_sequence, SEGMENT))
        except FileNotFoundError:
            return open_plain(self.layout.segment(info.first_sequence, SENT))

    def open_file(self, info: SegmentInfo) -> int:
        """A descriptor of the file itself, for its header and its footer. Raises FileNotFoundError."""
        try:
            return open_to_read(self.layout.segment(info.first_sequence, SEGMENT))
        except FileNotFoundError:
            return open_to_read(self.layout.segment(info.first_sequence, SENT))

    def sent_below(self) -> int:
        """Every message below this sequence is in a segment called sent, or was removed with its segment."""
        for info in self.segments:
            if info.first_sequence not in self.sent:
                return info.first_sequence
        return self.segments[-1].first_sequence if self.segments else 0

    def stored_below(self, sequence: int) -> int:
        """Messages with a lower sequence number than `sequence`, since the spool began."""
        if not self.segments:
            return sequence
        at = self.at(sequence)
        info = self.segments[at]
        offset = max(0, sequence - info.first_sequence)
        if at + 1 < len(self.segments):
            offset = min(offset, self.segments[at + 1].stored - info.stored)
        elif offset and (count := self._count(info)) is not None:
            # Numbers behind the last message were not given out: those up to the next epoch, where a boot
            # ended badly, or the one that an empty segment has for its name.
            offset = min(offset, count)
        elif sequence // EPOCH > info.first_sequence // EPOCH:
            offset = 0  # it is gone, and with it how many they were
        return info.stored + offset

    def end_of(self, info: SegmentInfo) -> int:
        """The sequence behind the last message that a segment has by now; walks all of it.

        If the disk cannot read it, the highest that this can be.
        """
        try:
            tail = self._walk(info)
        except ReadFailed:
            return info.first_sequence + self.most(info)
        return info.first_sequence if tail is None else int(tail[SEQUENCE])

    def position_behind(self, info: SegmentInfo) -> int:
        """The offset behind the last frame that a segment has by now; walks all of it. Raises ReadFailed."""
        tail = self._walk(info)
        return 0 if tail is None else int(tail[POSITION])

    def _walk(self, info: SegmentInfo) -> Tail | None:
        """The tail behind all frames of a segment; None when it is gone."""
        try:
            fd = self.open(info)
        except FileNotFoundError:
            return None
        try:
            scan = Scan(fd, tail_at_start(decode_header(read_at(fd, HEADER_BYTES, 0), info.first_sequence)))
            for _ in scan.all():
                continue
            return scan.tail
        finally:
            os.close(fd)

    def most(self, info: SegmentInfo) -> int:
        """Messages in a segment; for the last one, which may grow, more than any segment has.

        If the disk cannot read a header: as many as there can be, EPOCH if that is not known.
        """
        at = bisect.bisect_right(self.segments, info.number, key=lambda s: s.number)
        if at == len(self.segments):
            return EPOCH
        behind = self.segments[at]
        if UNTOLD in (info.identity, behind.identity):
            span = behind.first_sequence - info.first_sequence
            return span if _are_of_one_epoch(info.first_sequence, behind.first_sequence) else EPOCH
        return behind.stored - info.stored

    def _count(self, info: SegmentInfo) -> int | None:
        """Messages in a sealed segment; None when it is gone, cannot be read, or has no footer."""
        try:
            fd = self.open_file(info)
        except (FileNotFoundError, ReadFailed):
            return None
        try:
            footer = read_footer(fd)
        except ReadFailed:
            return None
        finally:
            os.close(fd)
        return int(footer.fields["count"]) if footer else None


def _fill_in(
    named: list[int], found: list[SegmentInfo | None], untold: Iterable[int]
) -> list[SegmentInfo | None]:
    """The same, with segments whose header cannot be read described by their neighbours.

    A segment is assumed to have as many messages as sequence numbers, the most it can have. Across the
    beginning of an epoch that says nothing; then the neighbour on the other side does, or none.
    """
    filled = list(found)
    for across, step in ((False, 1), (False, -1), (True, 1), (True, -1)):
        for at in range(len(named))[::step]:
            near = filled[at - step] if 0 <= at - step < len(named) else None
            if filled[at] or near is None or named[at] not in untold:
                continue
            known = _are_of_one_epoch(near.first_sequence, named[at])
            if known or across:
                stored = near.stored + (named[at] - near.first_sequence if known else 0)
                filled[at] = SegmentInfo(named[at], near.number + step, max(0, stored), UNTOLD)
    return filled


def _are_of_one_epoch(one: int, other: int) -> bool:
    return one // EPOCH == other // EPOCH


class LastingSegmentList(SegmentList):
    """The same, with segments that were removed since: for a process that still reports their outcomes."""

    def refresh(self) -> None:
        """Look at the directory again."""
        before = self.segments
        super().refresh()
        kept = {info.number for info in self.segments}
        gone = [info for info in before if info.number not in kept]
        self.segments = sorted([*gone, *self.segments], key=lambda info: info.number)
