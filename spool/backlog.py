"""What waits to be delivered: by topic, and the oldest of it. From marks and footers, with little reading.

A segment of which nothing is delivered tells by its footer what it holds; what is wholly delivered need not
be looked at. Frames are read of the segment in use, and of those of which a part is delivered. When a broker
has been away for hours these are all there are: then a few of them are read, and in the others each topic is
taken to be open to a like share. Beside a keeper that lives the segment in use is entered where that has
committed it, and its messages are counted without the compiled loops (spool.fresh). How many wait is exact in
any case; `estimated` says that their topics are not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool import scan
from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import CHUNK_MESSAGES
from spool.decode import decode
from spool.disk import opened
from spool.environment import UNREADABLE
from spool.errors import BadSpool, ReadFailed
from spool.files import Span, Unreadable, read_file
from spool.frame import POSITION, ROW, SEQUENCE, STORED, Tail
from spool.fresh import Fresh
from spool.index import read_committed
from spool.kernel import compile_at_once, interprets
from spool.layout import Layout
from spool.live import empty_tail, end_of, live_segment, named_topics, read_footer
from spool.marks import Bitmaps, Marks
from spool.reader import Reader
from spool.record import Batch, Topics
from spool.segment import bound_spares
from spool.vouched import vouched_for

MOST_READ = 4
"""Partly delivered segments that are read at one look: 0.05 s of a processor each, 0.15 s packed."""
LITTLE_BYTES = 256 << 10
"""Of a segment without a footer, through which a walk takes less time than the compiled loops to load."""
_ALL = 1 << 40
"""An offset behind the end of every segment."""
_TRIES = 5

Counts = Counter[bytes]
"""Messages by topic."""


class Oldest(NamedTuple):
    """The message that has waited longest."""

    sequence: int
    received_ns: int
    """ns since the epoch."""


class Place(NamedTuple):
    """Where the log ends."""

    number: int
    """Of the segment."""
    position: int
    """Offset in it."""
    sequence: int
    """Of the next message."""


class Waiting(NamedTuple):
    """What waits at one instant."""

    topics: dict[bytes, int]
    """Messages by topic, those with most first."""
    estimated: bool
    oldest: Oldest | None
    marked: bool
    """False: there are marks, and they cannot be read; what they call delivered waits here."""
    floor: int
    """Below this sequence nothing waits."""
    end: Place
    """Of the log."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment with something open in it."""

    info: SegmentInfo
    messages: int
    count: int
    """Open ones."""
    first: int
    """The sequence of the first of them."""
    open: npt.NDArray[np.bool_] | None
    """By message; None: all are."""
    stored: Counts | None
    """From the footer; None: it has none."""
    position: int = _ALL
    """The end of its frames."""


class Backlog:
    """What waits in one spool; a second look reads only what has changed."""

    def __init__(self, layout: Layout) -> None:
        if _has_far_to_walk(layout):
            compile_at_once()
        compile_kernels()
        self._layout, self._topics = layout, Topics()
        self._catalogue = Catalogue(layout)
        self._reader = Reader(self._catalogue, self._topics)
        self._known: dict[int, tuple[int, Counts]] = {}
        """By number, of sealed segments that were read: how many were open, and their topics."""
        self._fresh: Fresh | None = None

    def look(self) -> Waiting:
        """Look once. Nothing is written; a daemon may be at work meanwhile. Raises BadSpool, OSError."""
        for _ in range(_TRIES - 1):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # a segment was removed, or got its name, while we looked
        return self._look()

    def close(self) -> None:
        """Let go of the segment that was read last."""
        self._reader.close()

    def _look(self) -> Waiting:
        # Outcomes first, frames second: what is delivered in between is seen as waiting.
        marked, floor, settled = self._outcomes()
        known, live = vouched_for(self._layout), live_segment(self._layout)
        tail = end_of(live, known=known).tail if live else empty_tail()
        self._catalogue.refresh()
        if live and known and interprets():
            self._fresh = Fresh(self._layout, self._catalogue, live, tail)
        parts = self._parts(floor, settled, tail)
        counts, estimated = self._count(parts)
        # Of the first that the disk gives.
        oldest = next((found for part in parts if (found := self._oldest(part))), None)
        for path in self._unnamed():
            more, first = self._read_unnamed(path)
            counts += more
            oldest = oldest or first
        end = Place(int(live.header["number"]) if live else 0, int(tail[POSITION]), int(tail[SEQUENCE]))
        return Waiting(dict(counts.most_common()), estimated, oldest, marked, floor, end)

    def _outcomes(self) -> tuple[bool, int, Bitmaps]:
        """(whether the marks, if there are any, can be read, the floor, what is resolved above it)."""
        nothing: Bitmaps = {}
        without = self._catalogue.sent_below(), nothing
        if not (self._layout.delivery / "data.mdb").exists():
            return True, *without
        try:
            marks = Marks(self._layout.delivery, self._catalogue, readonly=True)
        except UNREADABLE:
            return False, *without
        try:
            return True, *marks.settled()
        except UNREADABLE:
            return False, *without
        finally:
            marks.close()

    # -- what is open -----------------------------------------------------------------------------------

    def _parts(self, floor: int, settled: Bitmaps, tail: Tail) -> list[_Part]:
        segments = self._catalogue.segments
        found = []
        for at in range(self._catalogue.at(floor), len(segments)):
            info, last = segments[at], at + 1 == len(segments)
            behind = self._stored_at_the_end(tail) if last else segments[at + 1].stored
            position = int(tail[POSITION]) if last and behind == tail[STORED] else _ALL
            part = self._part(info, behind - info.stored, floor, settled, position)
            if part:
                found.append(part)
        return found

    def _stored_at_the_end(self, tail: Tail) -> int:
        """Messages up to the end of the last segment that has its name."""
        last = self._catalogue.segments[-1].number
        unnamed = (header for _, header in bound_spares(self._layout) if int(header["number"]) > last)
        header = next(unnamed, None)
        return int(tail[STORED]) if header is None else int(header["stored"])

    def _part(
        self, info: SegmentInfo, messages: int, floor: int, settled: Bitmaps, position: int
    ) -> _Part | None:
        """None when nothing in it is open."""
        done = max(0, floor - info.first_sequence)
        if messages <= done:
            return None
        bitmaps = settled.get(info.number, {})
        if not done and not bitmaps:
            stored = self._footer_counts(info)
            return _Part(info, messages, messages, info.first_sequence, None, stored, position)
        is_open = np.ones(messages, np.bool_)
        is_open[:done] = False
        for chunk, bitmap in bitmaps.items():
            place = is_open[chunk * CHUNK_MESSAGES :][:CHUNK_MESSAGES]
            place &= np.unpackbits(bitmap, count=len(place), bitorder="little") == 0
        count = int(np.count_nonzero(is_open))
        if not count:
            return None
        first = info.first_sequence + int(is_open.argmax())
        return _Part(info, messages, count, first, is_open, self._footer_counts(info), position)

    def _footer_counts(self, info: SegmentInfo) -> Counts | None:
        try:
            with os.fdopen(self._catalogue.open_file(info), "rb", buffering=0) as file:
                footer = read_footer(file.fileno())
        except ReadFailed:
            return None
        if footer is None or not self._catalogue.leads_on(info, footer):
            return None
        return Counter(dict(named_topics(footer)))

    # -- of which topics --------------------------------------------------------------------------------

    def _count(self, parts: list[_Part]) -> tuple[Counts, bool]:
        """(messages by topic, whether that is estimated)."""
        total, unknown = Counts(), list[_Part]()
        read, stored = Counts(), Counts()
        for part in parts:
            if part.stored is None:
                total += self._read(part)
            elif part.open is None:
                total += part.stored
            elif self._known.get(part.info.number, (0, 0))[0] != part.count:
                unknown.append(part)
            else:
                read += self._known[part.info.number][1]
                stored += part.stored
        # Evenly, the oldest among them: who waits longest need not be who waits now.
        chosen = unknown[:: -(-len(unknown) // MOST_READ) or 1]
        for part in chosen:
            counts = self._read(part)
            self._known[part.info.number] = part.count, counts
            read += counts
            stored += part.stored or Counts()
        rest = [part for part in unknown if part not in chosen]
        for part in rest:
            total += _share_out(part, read, stored)
        return total + read, bool(rest)

    def _read(self, part: _Part) -> Counts:
        fresh = self._fresh if part.stored is None else None
        if fresh and (found := fresh.topics(part.info, part.first, part.open)) is not None:
            return found
        counts = Counts()
        for batch in self._batches(part):
            rows = None if part.open is None else part.open[batch.sequence - part.info.first_sequence]
            counts += by_topic(batch, rows)
        return counts

    def _batches(self, part: _Part) -> Iterator[Batch]:
        """What lies in a segment from its first open message on."""
        self._reader.allow(part.info.number, part.position)
        self._reader.seek(part.first)
        end = part.info.first_sequence + part.messages
        while (batch := self._reader.next()) is not None:
            if int(batch.sequence[-1]) >= end:
                break
            yield batch
        self._reader.damage.clear()

    def _oldest(self, part: _Part) -> Oldest | None:
        for batch in self._batches(part):
            return Oldest(int(batch.sequence[0]), int(batch.received_ns[0]))
        return None

    def _unnamed(self) -> Iterator[Path]:
        """Segments that have no name yet: nothing of them is committed."""
        last = self._catalogue.segments[-1].number if self._catalogue.segments else 0
        return (path for path, header in bound_spares(self._layout) if int(header["number"]) > last)

    def _read_unnamed(self, path: Path) -> tuple[Counts, Oldest | None]:
        """(messages by topic, the first) of such a segment."""
        if self._fresh and (seen := self._fresh.unnamed(path)):
            return seen[0], seen[1] and Oldest(seen[1].first_sequence, seen[1].received_ns)
        counts, oldest = Counts(), None
        for batch in read_file(path, self._topics, Span()):
            if not isinstance(batch, Unreadable):
                counts += by_topic(batch)
                oldest = oldest or Oldest(int(batch.sequence[0]), int(batch.received_ns[0]))
        return counts, oldest


class Arrivals:
    """What comes in from now on, by topic."""

    def __init__(self, layout: Layout) -> None:
        self._reader, self._begun = Reader(Catalogue(layout), Topics()), False

    def count(self, end: Place) -> Counts:
        """What has come since the last call, up to there; of a segment without a name the next call tells."""
        counts = Counts()
        self._reader.allow(end.number, end.position)
        if not self._begun:
            self._reader.seek(end.sequence)
            self._begun = True
        while (batch := self._reader.next()) is not None:
            counts += by_topic(batch)
        self._reader.damage.clear()
        return counts

    def close(self) -> None:
        """Let go of the segment that was read last."""
        self._reader.close()


def compile_kernels() -> None:
    """Load what looking takes: in that time others deliver, and a look is to be of one moment.

    Where that has been put off (spool.kernel), nothing is loaded here, and little is to be walked.
    """
    scan.compile_kernels()
    decode(np.zeros(8, np.uint8), 0, np.zeros((0, ROW), np.int64), Topics(), scan.digest_address())


def _has_far_to_walk(layout: Layout) -> bool:
    """Whether the end of the log is far behind the beginning of a segment that has no footer to tell it.

    Where a keeper lives nobody walks from there.
    """
    if vouched_for(layout):
        return False
    try:
        live = live_segment(layout)
        if live is None:
            return False
        with opened(live.path) as file:
            if read_footer(file.fileno()):
                return False
    except (OSError, BadSpool):
        return True  # it changes while we look, or is damaged: nobody knows
    committed = read_committed(layout.index)
    return committed is None or int(committed[1][POSITION]) > LITTLE_BYTES


def by_topic(batch: Batch, rows: npt.NDArray[np.bool_] | None = None) -> Counts:
    """The messages of a batch, or those in `rows`."""
    counts = np.bincount(batch.topic if rows is None else batch.topic[rows]).tolist()
    return Counter({batch.topics.names[number]: n for number, n in enumerate(counts) if n})


def _share_out(part: _Part, read: Counts, stored: Counts) -> Counts:
    """The open messages of a segment among its topics, as they are open where `stored` were `read`."""
    assert part.stored
    weights = {name: n * read[name] / (stored[name] or 1) for name, n in part.stored.items()}
    if not any(weights.values()):
        weights = dict(part.stored)
    scale = part.count / sum(weights.values())
    counts = Counter({name: int(weight * scale) for name, weight in weights.items()})
    counts[max(weights, key=lambda name: weights[name])] += part.count - counts.total()
    return counts
