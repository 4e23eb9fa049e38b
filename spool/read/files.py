"""Reading segment files one by one, just as they are: no index, no marks, over damage.

`read_file` decodes messages, `read_frames` gives the rows of frames, `locate` finds one message.

For commands that show a log, or send parts of it again. The daemon itself reads through spool.read.reader.

A `Pattern` searches keys and values of messages, a batch at a time.

Plain bytes are searched in blocks. A block is compared with four bytes of the text, 64 places at once, and
the few places that agree with the whole text. If many places agree, senders may have made them so: then
the rest of the block goes through an automaton that takes the same time for any bytes. It is bit-parallel
(shift-or) and knows the first 64 bytes of the text. If these are everywhere, and the text is longer, it is
that of Knuth, Morris and Pratt.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.batch import Batch, Topics, decode
from spool.format.damage import AT, FIRST, MISSING, MOST_PLACES, Holes, malformed
from spool.format.frame import FRAME_AT, FRAME_COUNT, FRAME_FIRST, POSITION, SEQUENCE, Tail, tail_at_start
from spool.format.packed import header_of, is_packed, open_plain
from spool.format.scan import NOWHERE, WRITTEN, Chunk, Scan, digest_address, enter_at, skip_damage
from spool.format.segment import UNBOUND
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, Record, decode_header
from spool.index.log_end import Footer, committed_entries, committed_up_to, has_unlisted, read_footer
from spool.layout import SENT, SPARE, Layout
from spool.native.kernel import interprets, kernel
from spool.native.memory import Address, address_of, load_u8, places_of
from spool.storage.disk import opened, read_at

Found = TypeVar("Found")
_AUTOMATON_BYTES, _BLOCK, _BLOCK_TEXTS, _STRIDE = 64, 4096, 8, 64
_WORK, _WARY = 4, 16
"""In a block of n places n / _WORK steps may go to those that seem to agree. If more did, the next _WARY
blocks go through an automaton at once."""
_POSITIVE = (1 << 63) - 1
FOR_EVER = (1 << 63) - 1
CLOCK_NS = 3600 * 10**9
"""Margin for skipping a segment by the times of reception in its footer.

The times of the frames between two index marks are not known, and the clock may have been set there.
"""


class Pattern(Protocol):
    """A pattern to search for."""

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether messages in these bytes can match, before they are decoded."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """bool[rows]: which messages match in their key or their value."""


class Sought(NamedTuple):
    """Bytes that are searched for, as kernels take them."""

    text: npt.NDArray[np.uint8]
    bit: int
    """Of the last byte in the masks."""
    masks: npt.NDArray[np.int64]
    """int64[256]: by byte, a bit for each of the first 64 places; 0: the text has this byte there."""
    borders: npt.NDArray[np.int64]
    """int64[length + 1]: where so many bytes agree, and the next does not, how many may agree instead.

    -1: none, and not even that byte with the first.
    """

    @classmethod
    def of(cls, wanted: bytes) -> Sought:
        """Prepare the search for these bytes, which must not be empty."""
        text, length = np.frombuffer(wanted, np.uint8), len(wanted)
        bits = [1 << at for at in range(_AUTOMATON_BYTES - 1)] + [-(1 << (_AUTOMATON_BYTES - 1))]
        masks = np.full(256, -1, np.int64)
        for bit, byte in zip(bits, wanted, strict=False):
            masks[byte] &= ~bit
        borders = np.zeros(length + 1, np.int64)
        _find_borders(text, borders)
        return cls(text, bits[min(length, _AUTOMATON_BYTES) - 1], masks, borders)

    @property
    def block(self) -> int:
        """Places that are searched at a time."""
        return max(_BLOCK, _BLOCK_TEXTS * len(self.text))


@kernel
def _find_borders(text: npt.NDArray[np.uint8], borders: npt.NDArray[np.int64]) -> None:
    """Fill `borders` int64[n + 1] of `text` uint8[n]: see Sought."""
    border, length = 0, text.shape[0]
    borders[0] = -1
    for at in range(1, length):
        # A border that is followed by the same byte would differ there, too.
        borders[at] = borders[border] if text[at] == text[border] else border
        while border >= 0 and text[at] != text[border]:
            border = borders[border]
        border += 1
    borders[length] = border


@kernel
def _agreeing(at: Address, text: npt.NDArray[np.uint8]) -> int:
    """How many bytes at an address are the first of `text` uint8[n]."""
    for i in range(text.shape[0]):
        if load_u8(at + i) != text[i]:
            return i
    return text.shape[0]


@kernel
def _filter_block(
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    hits: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Search the places [first, end) with little work: (places searched, hits among them).

    Offsets count from `base`. `text` uint8[n]. `hits` int64[places] receives the offsets.
    """
    length = text.shape[0]
    second, third, fourth = length - 1, length // 3, 2 * length // 3
    one, two, three, four = text[0], text[second], text[third], text[fourth]
    place, found, work = first, 0, (end - first) // _WORK
    while place + _STRIDE <= end and work >= 0:
        at = Address(base + place)
        near = places_of(at, one) & places_of(Address(at + second), two)
        if near != 0:
            near &= places_of(Address(at + third), three) & places_of(Address(at + fourth), four)
        ahead = 0
        while near != 0:
            if near & 1 != 0:
                same = _agreeing(Address(at + ahead), text)
                work -= same
                if same == length:
                    hits[found] = place + ahead
                    found += 1
            near = (near >> 1) & _POSITIVE
            ahead += 1
        work -= ahead
        place += _STRIDE
    while place < end and work >= 0:
        if _agreeing(Address(base + place), text) == length:
            hits[found] = place
            found += 1
        place += 1
    return place - first, found


@kernel
def _match_bits(  # noqa: C901, PLR0913, PLR0917  (a kernel: each array that is passed on costs time)
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    bit: int,
    masks: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
) -> int:
    """Search the places [first, end) for at most 64 bytes, in a time that depends on no byte: the hits.

    Four quarters at once: each step of one waits for the step before it. `bit`, `masks`: see Sought. `parts`
    int64[3, places / 4] is scratch; all else is as in `_filter_block`.
    """
    length, quarter = text.shape[0], (end - first) >> 2
    a, b, c, d = -1, -1, -1, -1
    in_a, in_b, in_c, in_d = 0, 0, 0, 0
    at = base + first
    for step in range(quarter + length - 1 if quarter else 0):
        a = (a << 1) | masks[load_u8(at + step)]
        b = (b << 1) | masks[load_u8(at + quarter + step)]
        c = (c << 1) | masks[load_u8(at + 2 * quarter + step)]
        d = (d << 1) | masks[load_u8(at + 3 * quarter + step)]
        if a & b & c & d & bit == 0:
            place = first + step - length + 1
            if a & bit == 0:
                hits[in_a] = place
                in_a += 1
            if b & bit == 0:
                parts[0, in_b] = place + quarter
                in_b += 1
            if c & bit == 0:
                parts[1, in_c] = place + 2 * quarter
                in_c += 1
            if d & bit == 0:
                parts[2, in_d] = place + 3 * quarter
                in_d += 1
    found = in_a
    for i in range(in_b):
        hits[found + i] = parts[0, i]
    found += in_b
    for i in range(in_c):
        hits[found + i] = parts[1, i]
    found += in_c
    for i in range(in_d):
        hits[found + i] = parts[2, i]
    found += in_d
    for place in range(first + 4 * quarter, end):
        if _agreeing(Address(base + place), text) == length:
            hits[found] = place
            found += 1
    return found


@kernel
def _keep_whole(
    base: Address, text: npt.NDArray[np.uint8], hits: npt.NDArray[np.int64], found: int, work: int
) -> int:
    """Keep those of the first `found` of `hits` where all of `text` uint8[n] is: how many; -1: much work."""
    kept = 0
    for i in range(found):
        same = _agreeing(Address(base + hits[i]), text)
        work -= same
        if work < 0:
            return -1
        if same == text.shape[0]:
            hits[kept] = hits[i]
            kept += 1
    return kept


@kernel
def _match_borders(
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    borders: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
) -> int:
    """The same for any length: at most two steps a byte. `borders` int64[n + 1]: see Sought."""
    length, same, found = text.shape[0], 0, 0
    for at in range(first, end + length - 1):
        byte = load_u8(base + at)
        while same >= 0 and text[same] != byte:
            same = borders[same]
        same += 1
        if same == length:
            hits[found] = at - length + 1
            found += 1
            same = borders[same]
    return found


@kernel
def _search(  # noqa: C901, PLR0913, PLR0917  (a kernel)
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    bit: int,
    masks: npt.NDArray[np.int64],
    borders: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    key_at: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.int32],
    value_at: npt.NDArray[np.int64],
    value_bytes: npt.NDArray[np.int32],
    rows: npt.NDArray[np.bool_],
) -> bool:
    """Whether the text is at one of the places [first, end); or, with rows, in which messages it is.

    Offsets count from `base`. `text`, `bit`, `masks`, `borders`: see Sought. `hits` int64[block] and `parts`
    int64[3, block / 4] are scratch. `rows` bool[messages] receives which messages have it within their key
    (`key_at`, `key_bytes`) or their value (`value_at`, `value_bytes`), all [messages], in order of their
    bytes.
    """
    length, row, wary, repeats = text.shape[0], 0, 0, False
    while first < end:
        last = min(first + hits.shape[0], end)
        searched = found = 0
        if wary == 0:
            searched, found = _filter_block(base, first, last, text, hits)
            # Behind many places that agreed more do so.
            wary = _WARY if first + searched < last else 0
        else:
            wary -= 1
            searched = last - first
            found = -1
            if not repeats:
                found = _match_bits(base, first, last, text[:_AUTOMATON_BYTES], bit, masks, hits, parts)
            if length > _AUTOMATON_BYTES and not repeats:
                found = _keep_whole(base, text, hits, found, searched)
            if found < 0:
                # The beginning of the text is everywhere.
                repeats = True
                found = _match_borders(base, first, last, text, borders, hits)
        if found > 0 and rows.shape[0] == 0:
            return True
        for i in range(found):
            place = hits[i]
            # The value is the end of a datagram.
            while row < rows.shape[0] and place >= value_at[row] + value_bytes[row]:
                row += 1
            if row == rows.shape[0]:
                return True
            behind = place + length
            in_key = key_at[row] <= place and behind <= key_at[row] + key_bytes[row]
            in_value = value_at[row] <= place and behind <= value_at[row] + value_bytes[row]
            rows[row] |= in_key or in_value
        first += searched
    return False


class Plain:
    """Literal bytes: the whole batch is searched at once."""

    def __init__(self, wanted: bytes) -> None:
        """`wanted` must not be empty."""
        self._wanted, self._sought = wanted, Sought.of(wanted)

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether the bytes occur, even across two messages."""
        if interprets():
            return self._wanted in data.tobytes()
        none, lengths = np.empty(0, np.int64), np.empty(0, np.int32)
        return self._search(
            address_of(data), 0, len(data), none, lengths, none, lengths, np.empty(0, np.bool_)
        )

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """A hit counts when it is within one key, or within one value."""
        if interprets():
            hits = [
                self._wanted in batch.value(row) or self._wanted in (batch.key(row) or b"")
                for row in range(len(batch))
            ]
            return np.array(hits, np.bool_)
        found = np.zeros(len(batch), np.bool_)
        if len(batch):
            begin, end = int(batch.datagram_at[0]), int(batch.datagram_at[-1] + batch.datagram_bytes[-1])
            columns = batch.key_at, batch.key_bytes, batch.value_at, batch.value_bytes
            self._search(batch.data_at, begin, end, *columns, found)
        return found

    def _search(self, base: Address, first: int, end: int, *rest: npt.NDArray[Any]) -> bool:
        block, places = self._sought.block, end - len(self._wanted) + 1
        scratch = np.empty(block, np.int64), np.empty((3, block >> 2), np.int64)
        return bool(_search(base, first, places, *self._sought, *scratch, *rest))


class Regex:
    """A regular expression over bytes, tried on each key and each value."""

    def __init__(self, expression: bytes) -> None:
        """Raises re.error."""
        self._expression = re.compile(expression, re.DOTALL)

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:  # noqa: ARG002
        """Always: only a key or a value can tell."""
        return True

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """One call a message: an anchor means the beginning or the end of a key or of a value."""
        search = self._expression.search
        hits = [bool(search(batch.key(row) or b"") or search(batch.value(row))) for row in range(len(batch))]
        return np.array(hits, np.bool_)


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
        fields, marks, topics = footer
        if int(fields["next_sequence"]) <= self.first:
            return False
        if self.topics and self.topics.isdisjoint(name for name, *_ in topics) and not has_unlisted(footer):
            return False
        # The times of a few frames and of the last: in no order, since clocks are set.
        received = [int(fields["last_received_ns"]), *marks["received_ns"].tolist()]
        return min(received) - CLOCK_NS < self.to_ns and max(received) + CLOCK_NS >= self.from_ns


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
        places = "" if self.places == 1 else f", and in {self.places - 1} places behind it"
        return f"{self.path}: {self.messages} messages cannot be read at byte {self.offset}{places}"


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
        scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
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


def read_frames(path: Path) -> Iterator[tuple[npt.NDArray[np.int64], Record] | Unreadable]:
    """The rows of `heads_of`, chunk by chunk; and unreadable places. Nothing for a spare.

    Raises BadSpool when the file is no segment, UnknownVersion, OSError.
    """
    fd = open_plain(path)
    try:
        header, footer = decode_header(read_at(fd, HEADER_BYTES, 0), path), read_footer(fd)
        if int(header["first_sequence"]) == UNBOUND:
            return
        scan = Scan(fd, tail_at_start(header), int(footer[0]["end"]) if footer else None)
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
    end = int(footer[0]["end"]) if footer else None
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
        marks = footer[1][["first_sequence", "offset"]].tolist()
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
