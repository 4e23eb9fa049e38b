"""Reading segment files one by one, just as they are: no index, no marks, over damage.

`read_file` decodes messages, `read_frames` gives the rows of frames, `locate` finds one message.

For commands that show a log, or send parts of it again. The daemon itself reads through spool.read.reader.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.batch import Batch, Topics, decode
from spool.format.damage import AT, FIRST, MISSING, MOST_PLACES, Holes, malformed
from spool.format.frame import FRAME_AT, FRAME_COUNT, FRAME_FIRST, POSITION, SEQUENCE, Tail, tail_at_start
from spool.format.packed import header_of, is_packed, open_plain
from spool.format.scan import NOWHERE, WRITTEN, Chunk, Scan, digest_address, enter_at, skip_damage
from spool.format.segment import UNBOUND
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, Footer, Record, decode_header
from spool.index.log_end import committed_entries, committed_up_to, has_unlisted, read_footer
from spool.layout import SENT, SPARE, Layout
from spool.read.patterns import Pattern
from spool.storage.disk import opened, read_at
from spool.words import counted

Found = TypeVar("Found")
FOR_EVER = (1 << 63) - 1
CLOCK_NS = 3600 * 10**9
"""Margin for skipping a segment by the times of reception in its footer.

The times of the frames between two index marks are not known, and the clock may have been set there.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """The messages to select. Each range begins with its first and stops before its end."""

    first: int = 0
    end: int = FOR_EVER
    from_ns: int = 0
    """When they were received, ns since the epoch."""
    to_ns: int = FOR_EVER
    topics: frozenset[bytes] = frozenset()
    """Empty: all topics."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows of a batch are selected. Add `topics` to a bounded table before it is read."""
        wanted = (batch.sequence >= self.first) & (batch.sequence < self.end)
        if self.from_ns or self.to_ns != FOR_EVER:
            wanted &= (batch.received_ns >= self.from_ns) & (batch.received_ns < self.to_ns)
        if self.topics:
            numbers = [batch.topics.find(name) for name in self.topics]
            wanted &= np.isin(batch.topic, [number for number in numbers if number >= 0])
        return wanted

    def may_lie_in(self, header: Record, footer: Footer | None) -> bool:
        """Whether a segment can hold selected messages."""
        if int(header["first_sequence"]) >= self.end:
            return False
        if footer is None:
            return True
        fields, marks, topics, _ = footer
        if int(fields["next_sequence"]) <= self.first:
            return False
        if self.topics and self.topics.isdisjoint(name for name, *_ in topics) and not has_unlisted(footer):
            return False
        # The times of a few frames and of the last: in no order, since clocks are set.
        received = [int(fields["last_received_ns"]), *marks["received_ns"].tolist()]
        return min(received) - CLOCK_NS < self.to_ns and max(received) + CLOCK_NS >= self.from_ns


ALL = Span()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes of a segment that hold no good frame, or one without datagrams in it."""

    path: Path
    offset: int
    messages: int
    places: int = 1
    """More than one: `messages` is the sum of all places, and `offset` that of the first."""

    @property
    def sentence(self) -> str:
        """The loss and its place, for people."""
        places = "" if self.places == 1 else f", and in {counted(self.places - 1, 'place')} behind it"
        lost = counted(self.messages, "message")
        return f"{self.path}: {lost} cannot be read at byte {self.offset}{places}"


def unreadable(path: Path, holes: Holes, told: int) -> Iterator[Unreadable]:
    """The unreadable places of a chunk, when `told` places of the segment were reported before.

    The first MOST_PLACES are reported one by one, the others of a chunk as their sum: damage may be
    everywhere.
    """
    apart = max(0, MOST_PLACES - told)
    for at, _, _, messages, *_ in holes[:apart].tolist():
        yield Unreadable(path, at, messages)
    if len(rest := holes[apart:]):
        yield Unreadable(path, int(rest[0, AT]), int(rest[:, MISSING].sum()), len(rest))


def of_segment(read: Callable[[Path], Iterator[Found]], path: Path) -> Iterator[Found]:
    """The yield of `read` for a segment that a daemon may rename; nothing when it was removed.

    The daemon renames a segment when its messages are all resolved. `read` opens the file before it yields
    anything.
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
    """Batches with any message of `span`, each valid until the next; and unreadable places.

    Chunks without a match of `pattern` are not made into batches. The topics of `span` get numbers in
    `topics`, whatever its bound. Raises BadSpool when the file is no segment, UnknownVersion, OSError.
    """
    for name in span.topics:
        topics.add(name)
    with opened(path) as file:
        header, footer = header_of(file.fileno(), path), read_footer(file.fileno())
    if path.suffix == SPARE and header["first_sequence"] < 0:
        return
    if not span.may_lie_in(header, footer):
        return
    fd = open_plain(path)
    try:
        scan = Scan(fd, tail_at_start(header), int(footer.fields["end"]) if footer else None)
        if footer is None:
            scan.committed = committed_up_to(path, header)
        yield from _read(path, scan, topics, span, pattern)
    finally:
        os.close(fd)


def _read(
    path: Path, scan: Scan, topics: Topics, span: Span, pattern: Pattern | None
) -> Iterator[Batch | Unreadable]:
    told = 0
    while int(scan.tail[SEQUENCE]) < span.end:
        chunk = scan.over()
        if chunk is None:
            position = int(scan.tail[POSITION])
            missing = skip_damage(scan)
            if missing is None:
                return
            if missing == WRITTEN:
                continue
            yield Unreadable(path, position, missing)
            continue
        yield from unreadable(path, chunk.holes[chunk.holes[:, FIRST] < span.end], told)
        told += len(chunk.holes)
        frames = chunk.frames
        read = chunk.data[: int(scan.tail[POSITION]) - chunk.offset]
        may_hold = pattern is None or pattern.may_lie_in(read)
        while len(frames):
            bad = malformed(chunk.base, frames)
            good = frames if bad < 0 else frames[:bad]
            if may_hold and len(good) and int(good[-1, FRAME_FIRST] + good[-1, FRAME_COUNT]) > span.first:
                yield decode(chunk.data, chunk.offset, good, topics, digest_address())
            if bad < 0:
                break
            yield Unreadable(path, int(frames[bad, FRAME_AT]), int(frames[bad, FRAME_COUNT]))
            frames = frames[bad + 1 :]


def heads_of(chunk: Chunk) -> tuple[npt.NDArray[np.int64], Record]:
    """(offsets in the segment int64[n], heads HEAD[n]) of the frames in a chunk."""
    offsets = chunk.frames[:, FRAME_AT]
    bytes_of = chunk.data[(offsets - chunk.offset)[:, None] + np.arange(HEAD_BYTES)]
    return offsets.copy(), bytes_of.view(HEAD)[:, 0]


def read_frames(path: Path, span: Span = ALL) -> Iterator[tuple[npt.NDArray[np.int64], Record] | Unreadable]:
    """The rows of `heads_of`, chunk by chunk; and unreadable places. Nothing for a spare.

    Nothing, either, of a segment that by its footer holds no message of `span`; of others all frames.
    Raises BadSpool when the file is no segment, UnknownVersion, OSError.
    """
    fd = open_plain(path)
    try:
        header, footer = decode_header(read_at(fd, HEADER_BYTES, 0), path), read_footer(fd)
        if int(header["first_sequence"]) == UNBOUND or not span.may_lie_in(header, footer):
            return
        scan = Scan(fd, tail_at_start(header), int(footer.fields["end"]) if footer else None)
        if footer is None:
            scan.committed = committed_up_to(path, header)
        told = 0
        while True:
            while chunk := scan.over():
                yield from unreadable(path, chunk.holes, told)
                told += len(chunk.holes)
                yield heads_of(chunk)
            position = int(scan.tail[POSITION])
            missing = skip_damage(scan)
            if missing is None:
                return
            if missing != WRITTEN:
                yield Unreadable(path, position, missing)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Located:
    """A message and its location. Its frame has been verified."""

    path: Path
    header: Record
    """Of the segment."""
    packed: bool
    """The file is compressed: offsets are those in the uncompressed segment."""
    sealed: bool
    """The segment has a footer, and so will not change."""
    offset: int
    """Of the frame, in bytes."""
    head: Record
    """Of the frame."""
    batch: Batch
    """The messages of the frame."""
    row: int
    """The row of the message in `batch`."""


def locate(paths: Iterable[Path], sequence: int, *, fleeting: bool = False) -> Located | Unreadable | None:
    """Find a message in segment files; Unreadable if it was there and is damaged, None if no file had it.

    `fleeting`: a daemon may rename or remove files meanwhile; removed files are skipped. Files that are no
    segments are skipped, too. Raises OSError.
    """

    def look(path: Path) -> Iterator[Located | Unreadable | None]:
        with suppress(BadSpool):
            yield _look_into(path, sequence)

    lost = None
    for path in paths:
        for found in of_segment(look, path) if fleeting else look(path):
            if isinstance(found, Located):
                return found
            lost = lost or found
    return lost


def _look_into(path: Path, sequence: int) -> Located | Unreadable | None:
    with opened(path) as file:
        header, footer = header_of(file.fileno(), path), read_footer(file.fileno())
        packed = is_packed(file.fileno(), path)
    first = int(header["first_sequence"])
    if first < 0 or sequence < first or not Span(sequence, sequence + 1).may_lie_in(header, footer):
        return None
    fd = open_plain(path)
    try:
        header = decode_header(read_at(fd, HEADER_BYTES, 0), path)
        found = _find(fd, path, header, footer, sequence)
        if not isinstance(found, tuple):
            return found
        chunk, at = found
        offset = int(chunk.frames[at, FRAME_AT])
        frame = chunk.frames[at : at + 1]
        if malformed(chunk.base, frame) >= 0:
            return Unreadable(path, offset, int(frame[0, FRAME_COUNT]))
        batch = decode(chunk.data, chunk.offset, frame, Topics(), digest_address())
        head = np.frombuffer(read_at(fd, HEAD_BYTES, offset), HEAD)[0]
        row = sequence - int(frame[0, FRAME_FIRST])
        return Located(path, header, packed, footer is not None, offset, head, batch, row)
    finally:
        os.close(fd)


def _find(
    fd: int, path: Path, header: Record, footer: Footer | None, sequence: int
) -> tuple[Chunk, int] | Unreadable | None:
    """Like `_scan`: from a frame nearby, and if that does not find the message, from the first one."""
    end = int(footer.fields["end"]) if footer else None
    committed = NOWHERE if footer else committed_up_to(path, header)
    found: tuple[Chunk, int] | Unreadable | None = None
    for tail in (_near(fd, path, header, footer, sequence), tail_at_start(header)):
        scan = Scan(fd, tail, end)
        scan.committed = committed
        found = _scan(path, scan, sequence)
        if isinstance(found, tuple):
            break
    return found


def _near(fd: int, path: Path, header: Record, footer: Footer | None, sequence: int) -> Tail:
    """Before the nearest known frame at or before a message; the caller walks from there."""
    tail = tail_at_start(header)
    if footer:
        marks = footer.marks[["first_sequence", "offset"]].tolist()
    else:
        entries = committed_entries(Layout(path.resolve().parent.parent))
        marks = [(first, offset) for first, number, offset, *_ in entries if number == int(header["number"])]
    at = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0]) - 1
    if at >= 0:
        first, offset = marks[at]
        enter_at(fd, tail, offset, first)
    return tail


def _scan(path: Path, scan: Scan, sequence: int) -> tuple[Chunk, int] | Unreadable | None:
    """(a chunk, which of its frames holds the message)."""
    while int(scan.tail[SEQUENCE]) <= sequence:
        position, expected = int(scan.tail[POSITION]), int(scan.tail[SEQUENCE])
        chunk = scan.over()
        if chunk is not None:
            firsts = chunk.frames[:, FRAME_FIRST]
            ends = firsts + chunk.frames[:, FRAME_COUNT]
            holds = np.flatnonzero((firsts <= sequence) & (sequence < ends))
            if len(holds):
                return chunk, int(holds[0])
            firsts, counts = chunk.holes[:, FIRST], chunk.holes[:, MISSING]
            lost = np.flatnonzero((firsts <= sequence) & (sequence < firsts + counts))
            if len(lost):
                return Unreadable(path, *chunk.holes[lost[0], [AT, MISSING]].tolist())
            continue
        missing = skip_damage(scan)
        if missing is None:
            return None
        if missing != WRITTEN and expected <= sequence < expected + missing:
            return Unreadable(path, position, missing)
    return None
