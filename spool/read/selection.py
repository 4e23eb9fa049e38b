"""A part of the log, read in order: committed messages of a span, if they are kept.

The part is fixed at the start. Messages that are committed meanwhile are not in it. A segment that is removed
meanwhile ends the reading with an error, since the part would be incomplete.

`Sought` is a set of messages: how many are not resolved, polled while they are delivered. It has a bit a
message, by segment: a hundred million messages take 12 MB, and a look is a few operations on arrays.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spool.errors import SegmentsGone
from spool.format.batch import Batch, Topics
from spool.format.frame import POSITION
from spool.format.packed import header_of
from spool.format.segment_format import Footer, Record
from spool.index.committed import read_committed
from spool.index.environment import LMDB_REFUSES
from spool.index.log_end import read_footer
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from spool.read.files import Span
from spool.read.reader import Reader

Bits = npt.NDArray[np.uint8]
Resolved = tuple[int, Mapping[int, Bits]]
"""The low watermark, and by segment number a bit for each message: 1 if it is resolved."""


class Selection(Reader):
    """A reader that begins and ends where a span does. The span tells which rows of a batch it selects."""

    def __init__(self, segment_list: SegmentList, topics: Topics, span: Span) -> None:
        """Find the segments that may hold messages of the span. Raises SegmentsGone."""
        super().__init__(segment_list, topics)
        for name in span.topics:
            topics.add(name)
        self.span = span
        self._ended = False
        """Whether the last read found nothing."""
        self.kept_from = segment_list.segments[0].first_sequence if segment_list.segments else 0
        """The first message that is kept."""
        self.start, self._stop = 0, 0
        self.place = (0, 0)
        """The committed end, up to which may be read: segment number and offset."""
        self._plan()
        self.allow(*self.place)
        self.seek(self.start)

    def _plan(self) -> None:
        found = list(self._look())
        sealed = [(info.number, int(footer.fields["end"])) for info, _, footer in found if footer]
        committed = read_committed(self.segment_list.layout.index)
        known = (committed[0], int(committed[1][POSITION])) if committed else self._written()
        # A segment is committed before it is sealed, whatever the index says.
        self.place = max([known, *sealed])
        chosen = [
            info
            for info, header, footer in found
            if info.number <= self.place[0] and self.span.may_lie_in(header, footer)
        ]
        if chosen:
            self.start = max(chosen[0].first_sequence, self.span.first)
            later = [i.first_sequence for i in self.segment_list.segments if i.number > chosen[-1].number]
            self._stop = min([self.span.end, *later[:1]])

    def _written(self) -> tuple[int, int]:
        """Behind the last frame: the end of a copy without an index."""
        if not self.segment_list.segments:
            return 0, 0
        info = self.segment_list.segments[-1]
        return info.number, self.segment_list.position_behind(info)

    def _look(self) -> Iterator[tuple[SegmentInfo, Record, Footer | None]]:
        """(segment, header, footer) of all segments that are kept."""
        for info in self.segment_list.segments:
            try:
                fd = self.segment_list.open_file(info)
            except FileNotFoundError:
                raise self._gone(info.first_sequence) from None
            try:
                footer = read_footer(fd)
                header = header_of(fd, info.first_sequence)
                yield info, header, footer if footer and self.segment_list.leads_on(info, footer) else None
            finally:
                os.close(fd)

    def seek(self, sequence: int) -> None:
        """Go to the frame that holds `sequence`, or to the first behind it. Raises SegmentsGone."""
        super().seek(sequence)
        if self.segment_list.segments and sequence < self.segment_list.segments[0].first_sequence:
            raise self._gone(sequence)

    @property
    def exhausted(self) -> bool:
        """Whether the end was reached."""
        return self._ended or self.sequence >= self._stop or self.position >= self.place

    @property
    def progress(self) -> tuple[int, int]:
        """Messages read, selected or not, and messages to read, without those of the last segment."""
        segments, done = self.segment_list.segments, min(self.sequence, self._stop)
        end = min(self._stop, segments[-1].first_sequence) if segments else 0
        return done - self.start, max(end, done) - self.start

    def next(self) -> Batch | None:
        """Messages from `sequence` on; None at the end. Raises SegmentsGone, ReadFailed."""
        if self.sequence >= self._stop:
            self._ended = True
            return None
        try:
            batch = super().next()
        except FileNotFoundError:
            raise self._gone(self.sequence) from None
        if self._unread:
            raise min(self._unread.items())[1].error
        if self._damage:
            self.segment_list.refresh()
            if self._damage[0].first < self.segment_list.segments[0].first_sequence:
                raise self._gone(self._damage[0].first)
        self._ended = batch is None
        return batch

    def pass_over(self, topics: Collection[bytes]) -> bool:  # noqa: ARG002
        """Never: a selection shows all of it."""
        return False

    def _on_where_the_log_begins(self) -> bool:
        """Raise: a selection must not skip removed messages."""
        raise self._gone(self.sequence)

    def _gone(self, sequence: int) -> SegmentsGone:
        return SegmentsGone(
            f"messages from {sequence} on were removed from {self.segment_list.layout.segments} to make room "
            "while they were read; begin again with what is left"
        )


@dataclass(frozen=True, slots=True)
class Wanted(Span):
    """A span of which only some messages are selected. An empty field selects all."""

    keys: frozenset[bytes] = frozenset()
    partition_keys: frozenset[int] = frozenset()
    """As they were sent, -2^31 to 2^31 - 1; excludes messages without one."""
    uids: frozenset[int] = frozenset()
    """Of the senders."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows of a batch are selected."""
        wanted = Span.rows(self, batch)
        if self.partition_keys:
            wanted &= batch.keyed & np.isin(batch.number, list(self.partition_keys))
        if self.uids:
            wanted &= np.isin(batch.uid, list(self.uids))
        if self.keys:
            wanted &= _have_key(batch, self.keys)
        return wanted


def _have_key(batch: Batch, keys: Iterable[bytes]) -> npt.NDArray[np.bool_]:
    """Which rows have one of these keys."""
    found = np.zeros(len(batch), np.bool_)
    for key in keys:
        alike = np.flatnonzero(batch.key_bytes == len(key))
        for at, byte in enumerate(key):
            alike = alike[batch.data[batch.key_at[alike] + at] == byte]
        found[alike] = True
    return found


@dataclass(frozen=True, slots=True)
class TopicCount:
    """Messages of the topic that they were sent to at first."""

    topic: str
    messages: int
    first_ns: int
    """When the first of them was received, and the last; ns since the epoch."""
    last_ns: int


class Sought:
    """Messages of one spool."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[SegmentInfo, Bits]] = {}
        self.total = 0

    def add(self, segment_list: SegmentList, sequences: npt.NDArray[np.int64]) -> None:
        """Add int64 sequences of one segment, in order, each once and never before."""
        if len(sequences) == 0:
            return
        info = segment_list.segments[segment_list.at(int(sequences[0]))]
        _, bits = self._segments.get(info.number, (info, np.zeros(0, np.uint8)))
        places = sequences - info.first_sequence
        fresh = np.zeros(int(places[-1]) + 1, np.uint8)
        fresh[places] = 1
        packed = np.packbits(fresh, bitorder="little")
        packed[: len(bits)] |= bits
        self._segments[info.number] = info, packed
        self.total += len(sequences)

    def left(self, resolved: Resolved) -> int:
        """How many of them are not resolved."""
        low_watermark, by_segment = resolved
        for number in [n for n, (info, bits) in self._segments.items() if _end(info, bits) <= low_watermark]:
            # The low watermark never decreases.
            del self._segments[number]
        return sum(
            _count_open(bits, low_watermark - info.first_sequence, by_segment.get(number))
            for number, (info, bits) in self._segments.items()
        )

    def left_below(self, resolved: Resolved, sequence: int) -> int:
        """How many of those in segments that begin below `sequence` are not resolved."""
        low_watermark, by_segment = resolved
        return sum(
            _count_open(bits, low_watermark - info.first_sequence, by_segment.get(number))
            for number, (info, bits) in self._segments.items()
            if info.first_sequence < sequence and _end(info, bits) > low_watermark
        )


def _end(info: SegmentInfo, bits: Bits) -> int:
    return info.first_sequence + 8 * len(bits)


def _count_open(bits: Bits, below: int, resolved: Bits | None) -> int:
    """How many bits are set from position `below` on, and not resolved."""
    still = bits.copy()
    if resolved is not None:
        both = min(len(still), len(resolved))
        still[:both] &= ~resolved[:both]
    if below > 0:
        still[: below >> 3] = 0
        still[below >> 3] &= 0xFF << (below & 7) & 0xFF
    return int(np.bitwise_count(still).sum())


def read_resolved(layout: Layout) -> Resolved:
    """The resolved messages of a spool at this instant; without marks, only those of segments called sent."""
    segment_list = SegmentList(layout)
    try:
        marks = Marks(layout.delivery, segment_list, readonly=True)
    except LMDB_REFUSES:
        return segment_list.sent_below(), {}
    try:
        return resolved_by(marks)
    except LMDB_REFUSES:
        return segment_list.sent_below(), {}
    finally:
        marks.close()


def resolved_by(marks: Marks) -> Resolved:
    """The resolved messages according to the marks. Raises LMDB_REFUSES."""
    # The low watermark first: rows dropped below a later one count as open for this look.
    low_watermark, _ = marks.low_watermark()
    by_segment: dict[int, Bits] = {}
    for info, chunk, bitmap in marks.chunks():
        end = (chunk + 1) * CHUNK_BYTES
        bits = by_segment.get(info.number, np.zeros(0, np.uint8))
        bits = np.pad(bits, (0, max(0, end - len(bits))))
        bits[end - CHUNK_BYTES : end] = bitmap
        by_segment[info.number] = bits
    return low_watermark, by_segment
