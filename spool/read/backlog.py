"""The backlog: undelivered messages by topic, and the oldest. From marks and footers, with little reading.

For a segment of which nothing is delivered, the footer has the counts; a segment that is wholly delivered is
skipped. Frames are read only in the segment in use, and in partly delivered segments. When a broker has been
away for hours, all segments are partly delivered: then a few are read, and in the others each topic is
assumed to be open to the same share. Beside a live keeper, the look enters the segment in use near its
committed end, and counts its messages without the compiled loops (UnsealedSegments). The total is exact in
any case; `estimated` says that the counts by topic are not.
"""

from __future__ import annotations

import bisect
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, ReadFailed
from spool.format import scan
from spool.format.batch import Batch, Topics, decode
from spool.format.frame import BURST, POSITION, ROW, SEQUENCE, STORED, Tail
from spool.format.head_scan import MOST_FRAMES, Entrance, Run, entrance_of, runs, topics_of
from spool.format.scan import read_header
from spool.format.segment import bound_spares
from spool.format.segment_format import Record
from spool.format.topic_table import counted_name
from spool.index.committed import read_committed
from spool.index.environment import UNREADABLE
from spool.index.log_end import (
    LiveSegment,
    committed_end,
    committed_entries,
    empty_tail,
    end_of,
    live_segment,
    named_topics,
    read_footer,
)
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout
from spool.marks.marks import Bitmaps, Marks
from spool.native.digest import CHUNK_MESSAGES
from spool.native.kernel import compile_at_once, interprets
from spool.read.files import Span, Unreadable, read_file
from spool.read.reader import Reader
from spool.shared.runtime import announced
from spool.storage.disk import open_to_read, opened

MOST_READ = 4
"""Partly delivered segments that are read at one look: 0.05 s of a processor each, 0.15 s packed."""
LITTLE_BYTES = 256 << 10
"""Bytes of a segment without a footer that are walked in less time than the compiled loops take to load."""
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
    topic: bytes = b""
    """Empty: not known."""
    timestamp_ms: int = -1
    """Its own, ms since the epoch; negative: it has none, or that is not known."""

    def record_age_s(self, now_ns: int) -> float:
        """Its age as Kafka counts it, from the message's own timestamp; negative for one of the future."""
        begun_ns = self.received_ns if self.timestamp_ms < 0 else self.timestamp_ms * 10**6
        return (now_ns - begun_ns) / 1e9


class LogPosition(NamedTuple):
    """The end of the log."""

    number: int
    """Of the segment."""
    position: int
    """Offset in it."""
    sequence: int
    """Of the next message."""


class Waiting(NamedTuple):
    """The backlog at one instant."""

    topics: dict[bytes, int]
    """Messages by topic, those with most first."""
    estimated: bool
    oldest: Oldest | None
    marked: bool
    """False: marks exist, and cannot be read; messages that they call delivered count as waiting."""
    low_watermark: int
    """No message below this sequence waits."""
    end: LogPosition
    """Of the log."""
    discarded: Counts
    """Messages that were discarded after acceptance, by topic."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment with open messages."""

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
    """The backlog of one spool; a second look reads only what has changed."""

    def __init__(self, layout: Layout) -> None:
        if _has_far_to_walk(layout):
            compile_at_once()
        compile_kernels()
        self._layout, self._topics = layout, Topics.of_counter()
        self._segment_list = SegmentList(layout)
        self._reader = Reader(self._segment_list, self._topics)
        self._known: dict[int, tuple[int, Counts]] = {}
        """By number, for sealed segments that were read: how many messages were open, and their topics."""
        self._unsealed: UnsealedSegments | None = None
        self._looked: list[tuple[_Part, Collection[bytes]]] = []
        """Of the last look: each segment with open messages, and the topics of which some surely are."""

    def look(self) -> Waiting:
        """Look once. Writes nothing; a daemon may be at work meanwhile. Raises BadSpool, OSError."""
        for _ in range(_TRIES - 1):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # a segment was removed or renamed during the look
        return self._look()

    def oldest_of(self, before_ns: Mapping[bytes, int]) -> dict[bytes, Oldest]:
        """By the last look, the oldest message of these topics that waits, if it came before its time.

        `before_ns`: by topic. At most MOST_READ segments are read: of a topic that is in others nothing may
        be found, or a message that is not the oldest. Raises BadSpool, OSError.
        """
        found, wanted, read = dict[bytes, Oldest](), set(before_ns), 0
        latest = max(before_ns.values(), default=0)
        for part, topics in self._looked:
            if read == MOST_READ or not wanted:
                break
            if wanted.isdisjoint(topics):
                continue
            read += 1
            # It may be gone since the look.
            with suppress(FileNotFoundError):
                for batch in self._batches(part):
                    if int(batch.received_ns[0]) >= latest:
                        return found
                    for one in self._firsts(batch, part, wanted):
                        wanted.discard(one.topic)
                        if one.received_ns < before_ns[one.topic]:
                            found[one.topic] = one
        return found

    def _firsts(self, batch: Batch, part: _Part, wanted: Collection[bytes]) -> list[Oldest]:
        """The first open message of each of these topics in a batch."""
        rows = np.arange(len(batch))
        if part.open is not None:
            rows = rows[part.open[batch.sequence - part.info.first_sequence]]
        numbers, at = np.unique(batch.topic[rows], return_index=True)
        named = {number: name for name in wanted if (number := self._topics.find(name)) >= 0}
        pairs = zip(numbers.tolist(), rows[at].tolist(), strict=True)
        return [_message_of(batch, row) for number, row in pairs if number in named]

    def close(self) -> None:
        """Close the segment that was read last."""
        self._reader.close()

    def _look(self) -> Waiting:
        # Outcomes first, frames second: a message that is delivered in between counts as waiting.
        marked, low_watermark, settled, discarded = self._outcomes()
        known, live = committed_end(self._layout), live_segment(self._layout)
        tail = empty_tail()
        if live:
            told = announced(self._layout.directory, live.header)
            tail = end_of(live, known=known, announced=told).tail
        self._segment_list.refresh()
        self._unsealed = None
        if live and known and interprets():
            self._unsealed = UnsealedSegments(self._layout, self._segment_list, live, tail)
        parts = self._parts(low_watermark, settled, tail)
        counts, estimated = self._count(parts)
        # From the first segment that the disk gives.
        oldest = next((found for part in parts if (found := self._oldest(part))), None)
        for path in self._unnamed():
            more, first = self._read_unnamed(path, int(tail[SEQUENCE]))
            counts.update(more)
            oldest = oldest or first
        end = LogPosition(int(live.header["number"]) if live else 0, int(tail[POSITION]), int(tail[SEQUENCE]))
        return Waiting(_descending(counts), estimated, oldest, marked, low_watermark, end, discarded)

    def _outcomes(self) -> tuple[bool, int, Bitmaps, Counts]:
        """(whether existing marks can be read, low watermark, resolved messages above it, discards by topic).

        The discards may be a little newer than the rest.
        """
        nothing: Bitmaps = {}
        without = self._segment_list.sent_below(), nothing, Counts()
        if not has_begun(self._layout.delivery):
            return True, *without
        try:
            marks = Marks(self._layout.delivery, self._segment_list, readonly=True)
        except UNREADABLE:
            return False, *without
        try:
            settled, discarded = marks.settled(), Counts()
            for row in marks.discards():
                discarded[row.topic] += row.count
        except UNREADABLE:
            return False, *without
        else:
            return True, *settled, discarded
        finally:
            marks.close()

    # -- what is open -----------------------------------------------------------------------------------

    def _parts(self, low_watermark: int, settled: Bitmaps, tail: Tail) -> list[_Part]:
        segments = self._segment_list.segments
        found = []
        for at in range(self._segment_list.at(low_watermark), len(segments)):
            info, last = segments[at], at + 1 == len(segments)
            behind = self._stored_at_the_end(tail) if last else segments[at + 1].stored
            position = int(tail[POSITION]) if last and behind == tail[STORED] else _ALL
            part = self._part(info, behind - info.stored, low_watermark, settled, position)
            if part:
                found.append(part)
        return found

    def _stored_at_the_end(self, tail: Tail) -> int:
        """Messages up to the end of the last segment that has its name."""
        last = self._segment_list.segments[-1].number
        unnamed = (header for _, header in bound_spares(self._layout) if int(header["number"]) > last)
        header = next(unnamed, None)
        return int(tail[STORED]) if header is None else int(header["stored"])

    def _part(
        self, info: SegmentInfo, messages: int, low_watermark: int, settled: Bitmaps, position: int
    ) -> _Part | None:
        """None when no message in it is open."""
        done = max(0, low_watermark - info.first_sequence)
        if messages <= done:
            return None
        bitmaps = settled.get(info.number, {})
        if not done and not bitmaps:
            stored = _footer_counts(self._segment_list, info)
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
        return _Part(
            info, messages, count, first, is_open, _footer_counts(self._segment_list, info), position
        )

    # -- of which topics --------------------------------------------------------------------------------

    def _count(self, parts: list[_Part]) -> tuple[Counts, bool]:
        """(messages by topic, whether that is estimated)."""
        total, unknown = Counts(), list[_Part]()
        read, stored = Counts(), Counts()
        surely = dict[int, Counts]()
        for part in parts:
            if part.stored is None:
                total.update(surely.setdefault(part.info.number, self._read(part)))
            elif part.open is None:
                total.update(surely.setdefault(part.info.number, part.stored))
            elif self._known.get(part.info.number, (0, 0))[0] != part.count:
                unknown.append(part)
            else:
                read.update(surely.setdefault(part.info.number, self._known[part.info.number][1]))
                stored.update(part.stored)
        # Evenly spread, with the oldest: topics that have waited longest need not be those that wait now.
        chosen = unknown[:: -(-len(unknown) // MOST_READ) or 1]
        for part in chosen:
            surely[part.info.number] = counts = self._read(part)
            self._known[part.info.number] = part.count, counts
            read.update(counts)
            stored.update(part.stored or {})
        rest = [part for part in unknown if part not in chosen]
        for part in rest:
            total.update(_share_out(part, read, stored))
        total.update(read)
        self._looked = [(part, surely[part.info.number]) for part in parts if part.info.number in surely]
        return total, bool(rest)

    def _read(self, part: _Part) -> Counts:
        unsealed = self._unsealed if part.stored is None else None
        if unsealed and (found := unsealed.topics(part.info, part.first, part.open)) is not None:
            return found
        sums = Sums(self._topics)
        for batch in self._batches(part):
            rows = None if part.open is None else part.open[batch.sequence - part.info.first_sequence]
            sums.add(batch, rows)
        return sums.by_name()

    def _batches(self, part: _Part) -> Iterator[Batch]:
        """The messages of a segment from its first open one on."""
        self._reader.allow(part.info.number, part.position)
        self._reader.seek(part.first)
        end = part.info.first_sequence + part.messages
        while (batch := self._reader.next()) is not None:
            if int(batch.sequence[-1]) >= end:
                break
            yield batch
        self._reader.take_damage()

    def _oldest(self, part: _Part) -> Oldest | None:
        for batch in self._batches(part):
            return _message_of(batch, 0)
        return None

    def _unnamed(self) -> Iterator[Path]:
        """Segments that have no name yet: nothing in them is committed."""
        last = self._segment_list.segments[-1].number if self._segment_list.segments else 0
        return (path for path, header in bound_spares(self._layout) if int(header["number"]) > last)

    def _read_unnamed(self, path: Path, end: int) -> tuple[Counts, Oldest | None]:
        """(messages by topic, the first) of such a segment, below the sequence number `end`."""
        seen = self._unsealed.unnamed(path) if self._unsealed else None
        sums, oldest, span = Sums(self._topics), None, Span(end=end)
        for batch in read_file(path, self._topics, span):
            if not isinstance(batch, Unreadable) and (rows := span.rows(batch)).any():
                oldest = oldest or _message_of(batch, int(rows.argmax()))
                if seen is not None:
                    break
                sums.add(batch, rows)
        return sums.by_name() if seen is None else seen, oldest


def _message_of(batch: Batch, row: int) -> Oldest:
    received_ns, timestamp_ms = int(batch.received_ns[row]), int(batch.timestamp[row])
    return Oldest(int(batch.sequence[row]), received_ns, batch.topic_name(row), timestamp_ms)


class Arrivals:
    """Messages that come in from now on, by topic."""

    def __init__(self, layout: Layout) -> None:
        self._segment_list = SegmentList(layout)
        self._reader, self._begun = Reader(self._segment_list, Topics.of_counter()), False

    def count(self, end: LogPosition) -> Counts:
        """Messages since the last call, up to `end`; a later call counts those in unnamed segments.

        Those in segments that were removed meanwhile are not counted.
        """
        sums, counts = Sums(self._reader.topics), Counts()
        self._reader.allow(end.number, end.position)
        if not self._begun:
            self._reader.seek(end.sequence)
            self._begun = True
        self._segment_list.refresh()
        while True:
            if (whole := self._whole_segment(end)) is not None:
                counts.update(whole)
            elif (batch := self._reader.next()) is not None:
                sums.add(batch)
            else:
                break
        self._reader.take_damage()
        return counts + sums.by_name()

    def _whole_segment(self, end: LogPosition) -> Counts | None:
        """The footer's counts, when a whole segment is next, and it has any: after hours without a look."""
        segments, first = self._segment_list.segments, self._reader.sequence
        at = self._segment_list.at(first)
        if (
            at + 1 >= len(segments)
            or segments[at].first_sequence != first
            or segments[at].number >= end.number
        ):
            return None
        try:
            found = _footer_counts(self._segment_list, segments[at])
        except FileNotFoundError:
            return None
        if found is not None:
            self._reader.seek(segments[at + 1].first_sequence)
        return found

    def close(self) -> None:
        """Close the segment that was read last."""
        self._reader.close()


def _footer_counts(segment_list: SegmentList, info: SegmentInfo) -> Counts | None:
    """Messages of a segment by topic; None when it has no footer of its own. Raises FileNotFoundError."""
    try:
        with os.fdopen(segment_list.open_file(info), "rb", buffering=0) as file:
            footer = read_footer(file.fileno())
    except ReadFailed:
        return None
    if footer is None or not segment_list.leads_on(info, footer):
        return None
    counts = Counts()
    for name, count in named_topics(footer):
        counts[counted_name(name)] += count
    return counts


def compile_kernels() -> None:
    """Load the kernels before a look: loading takes time, and a look should show one moment.

    If the kernels are interpreted (spool.native.kernel), nothing is loaded here, and there is little to walk.
    """
    scan.compile_kernels()
    decode(np.zeros(8, np.uint8), 0, np.zeros((0, ROW), np.int64), Topics(), scan.digest_address())


def _has_far_to_walk(layout: Layout) -> bool:
    """Whether a look has to walk far in a segment without a footer to find the end of the log.

    Beside a live keeper no walk is needed.
    """
    if committed_end(layout):
        return False
    try:
        live = live_segment(layout)
        if live is None:
            return False
        with opened(live.path) as file:
            if read_footer(file.fileno()):
                return False
    except PermissionError:
        return False  # no walk without permission: the look itself raises
    except (OSError, BadSpool):
        return True  # it changes during the look, or is damaged: not known
    committed = read_committed(layout.index)
    return committed is None or int(committed[1][POSITION]) > LITTLE_BYTES


class Sums:
    """Messages by topic number; the names are added at the end."""

    def __init__(self, topics: Topics) -> None:
        self._topics, self._counts = topics, np.zeros(0, np.int64)

    def add(self, batch: Batch, rows: npt.NDArray[np.bool_] | None = None) -> None:
        """Count the messages of a batch, or those in `rows`."""
        counts = np.bincount(batch.topic if rows is None else batch.topic[rows], minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def by_name(self) -> Counts:
        """All counts by name, those with most first; OTHERS for topics without a number of their own."""
        numbers = np.flatnonzero(self._counts)
        numbers = numbers[np.argsort(-self._counts[numbers], kind="stable")]
        counts = Counts()
        dict.update(counts, zip(self._topics.names.of(numbers), self._counts[numbers].tolist(), strict=True))
        return counts


def _descending(counts: Counts) -> dict[bytes, int]:
    """The counts, those with most first. If they are so already, thousands of them take no sorting."""
    values = np.fromiter(counts.values(), np.int64, len(counts))
    in_order = bool((values[1:] <= values[:-1]).all())
    return dict(counts) if in_order else dict(counts.most_common())


def _share_out(part: _Part, read: Counts, stored: Counts) -> Counts:
    """Share the open messages of a segment among its topics, in proportion to `read` of `stored`."""
    assert part.stored
    weights = {name: n * read[name] / (stored[name] or 1) for name, n in part.stored.items()}
    if not any(weights.values()):
        weights = dict(part.stored)
    scale = part.count / sum(weights.values())
    counts = Counter({name: int(weight * scale) for name, weight in weights.items()})
    counts[max(weights, key=lambda name: weights[name])] += part.count - counts.total()
    return +counts


class UnsealedSegments:
    """One look at the unsealed segments at the end of a log, while a keeper lives.

    All frames in them have been verified: by the keeper, or, behind its commits, by this look. So their
    messages are counted by topic without reading them frame by frame (spool.format.head_scan).
    """

    def __init__(self, layout: Layout, segment_list: SegmentList, live: LiveSegment, tail: Tail) -> None:
        """`tail`: behind the last frame of the last segment, as it was just seen."""
        self._layout, self._segment_list, self._live = layout, segment_list, live
        self._last_burst = int(tail[BURST])
        self._entries = committed_entries(layout)
        for sequence, number, offset, *_ in self._entries:
            # So that a reader need not walk from the beginning of the segment.
            marks = segment_list.entries.setdefault(number, [])
            if not marks or marks[-1][0] < sequence:
                marks.append((sequence, offset))

    def topics(self, info: SegmentInfo, first: int, is_open: npt.NDArray[np.bool_] | None) -> Counts | None:
        """Messages of a segment from sequence `first` on, or the open ones among them, by topic.

        None: there are too many frames, or something is wrong with them.
        """
        try:
            fd = self._segment_list.open_file(info)
        except FileNotFoundError:
            return None
        try:
            entrance, last = self._entrance(info, first), self._burst_at_the_end(info.number)
            if last is None or last - entrance.burst > MOST_FRAMES:
                return None
            counts = Counts()
            for run in runs(fd, entrance, last):
                rows = None if is_open is None else _rows(run, info.first_sequence, is_open)
                counts.update(topics_of(run, rows))
        except BadSpool:
            return None
        else:
            return counts
        finally:
            os.close(fd)

    def unnamed(self, path: Path) -> Counts | None:
        """Messages by topic of a segment without a name; None as for `topics`."""
        if path != self._live.path:
            return None
        entrance = entrance_of(self._live.header)
        if self._last_burst - entrance.burst > MOST_FRAMES:
            return None
        counts = Counts()
        fd = open_to_read(path)
        try:
            for run in runs(fd, entrance, self._last_burst):
                counts.update(topics_of(run))
        except BadSpool:
            return None
        else:
            return counts
        finally:
            os.close(fd)

    def _entrance(self, info: SegmentInfo, sequence: int) -> Entrance:
        """An entry into a segment: a frame at or before a sequence number."""
        at = bisect.bisect_right(self._entries, sequence, key=lambda entry: entry[0]) - 1
        if at >= 0 and self._entries[at][1] == info.number:
            return Entrance(*self._entries[at][2:])
        return entrance_of(self._header(info))

    def _header(self, info: SegmentInfo) -> Record:
        return read_header(self._layout.segment(info.first_sequence))

    def _burst_at_the_end(self, number: int) -> int | None:
        """The last burst of a segment; None when not known."""
        if number == int(self._live.header["number"]):
            return self._last_burst
        following = self._segment_list.by_number(number + 1)
        if following:
            return int(self._header(following)["burst"])
        is_next = int(self._live.header["number"]) == number + 1
        return int(self._live.header["burst"]) if is_next else None


def _rows(run: Run, first: int, is_open: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which messages of a run are open, in a segment that begins with sequence `first`."""
    rows = [is_open[head.first_sequence - first :][: head.messages] for head in run[1]]
    return np.concatenate(rows)
