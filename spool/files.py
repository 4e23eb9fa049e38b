"""Reading segment files one by one, as they lie there: no index, no marks, over damage.

For whoever looks at a log, or sends parts of it again. The daemon itself reads through spool.reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spool.decode import decode
from spool.disk import opened
from spool.examination import WRITTEN, malformed, skip_damage
from spool.format import Record
from spool.frame import POSITION, SEQUENCE, tail_at_start
from spool.kernel import address_of
from spool.layout import SENT, SPARE, Layout
from spool.live import Footer, has_unlisted, read_footer
from spool.packed import header_of, open_plain
from spool.pattern import Pattern
from spool.record import Batch, Topics
from spool.scan import Scan, digest_address
from spool.segment import bound_spares
from spool.vouched import vouched_up_to

Found = TypeVar("Found")

FOR_EVER = (1 << 63) - 1
CLOCK_NS = 3600 * 10**9
"""Segments are passed over by the times of reception in their footers, give or take so much: of the frames
between two marks nothing is known, and the clock may have been set there."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which messages are asked for. Each range begins with its first and stops before its end."""

    first: int = 0
    end: int = FOR_EVER
    from_ns: int = 0
    """When they were received, ns since the epoch."""
    to_ns: int = FOR_EVER
    topics: frozenset[bytes] = frozenset()
    """None: all."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows of a batch are asked for."""
        wanted = (batch.sequence >= self.first) & (batch.sequence < self.end)
        if self.from_ns or self.to_ns != FOR_EVER:
            wanted &= (batch.received_ns >= self.from_ns) & (batch.received_ns < self.to_ns)
        if self.topics:
            named = np.array([name in self.topics for name in batch.topics.names], np.bool_)
            wanted &= named[batch.topic]
        return wanted

    def may_lie_in(self, header: Record, footer: Footer | None) -> bool:
        """Whether a segment can hold what is asked for."""
        if int(header["first_sequence"]) >= self.end:
            return False
        if footer is None:
            return True
        fields, marks, topics = footer
        if int(fields["next_sequence"]) <= self.first:
            return False
        if self.topics and self.topics.isdisjoint(name for name, *_ in topics) and not has_unlisted(footer):
            return False
        # Times of a few frames and of the last: no order among them, since clocks are set.
        received = [int(fields["last_received_ns"]), *marks["received_ns"].tolist()]
        return min(received) - CLOCK_NS < self.to_ns and max(received) + CLOCK_NS >= self.from_ns


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes of a segment that hold no good frame, or one without datagrams in it."""

    path: Path
    offset: int
    messages: int


def list_files(layout: Layout) -> list[Path]:
    """The segment files of a spool in order, those that have no name yet at the end."""
    return [layout.segment(*p) for p in layout.list_segments()] + [path for path, _ in bound_spares(layout)]


def of_segment(read: Callable[[Path], Iterator[Found]], path: Path) -> Iterator[Found]:
    """What `read` has of a segment that a daemon may have in hand; nothing when it was removed.

    Meanwhile it may have got the name of those whose messages are all resolved. `read` opens the file before
    it yields anything.
    """
    try:
        yield from read(path)
    except FileNotFoundError:
        if path.suffix != SENT:
            with suppress(FileNotFoundError):
                yield from read(path.with_suffix(SENT))


def read_file(
    path: Path, topics: Topics, span: Span, pattern: Pattern | None = None
) -> Iterator[Batch | Unreadable]:
    """Batches with anything of `span` in them, each valid until the next; and what cannot be read.

    Chunks that hold nothing like `pattern` are not made into batches. Raises BadSpool when the file is no
    segment, UnknownVersion, OSError.
    """
    with opened(path) as file:
        header, footer = header_of(file.fileno(), path), read_footer(file.fileno())
    if path.suffix == SPARE and header["first_sequence"] < 0:
        return
    if not span.may_lie_in(header, footer):
        return
    fd = open_plain(path)
    try:
        scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
        if footer is None:
            scan.vouched = vouched_up_to(path, header)
        yield from _read(path, scan, topics, span, pattern)
    finally:
        os.close(fd)


def _read(
    path: Path, scan: Scan, topics: Topics, span: Span, pattern: Pattern | None
) -> Iterator[Batch | Unreadable]:
    while int(scan.tail[SEQUENCE]) < span.end:
        chunk = scan.next()
        if chunk is None:
            position = int(scan.tail[POSITION])
            missing = skip_damage(scan)
            if missing is None:
                return
            if missing == WRITTEN:
                continue
            yield Unreadable(path, position, missing)
            continue
        frames = chunk.frames
        read = chunk.data[: int(scan.tail[POSITION]) - chunk.offset]
        may_hold = pattern is None or pattern.may_lie_in(read)
        while len(frames):
            bad = malformed(address_of(chunk.data) - chunk.offset, frames)
            good = frames if bad < 0 else frames[:bad]
            if may_hold and len(good) and int(good[-1, 1] + good[-1, 2]) > span.first:
                yield decode(chunk.data, chunk.offset, good, topics, digest_address())
            if bad < 0:
                break
            yield Unreadable(path, int(frames[bad, 0]), int(frames[bad, 2]))
            frames = frames[bad + 1 :]
