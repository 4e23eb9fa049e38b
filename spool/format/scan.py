"""Reading a segment from its file: good frames, a chunk at a time, by pread.

Never through a mapping: a file that shrinks or a disk that fails is an exception here, and a SIGBUS there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.format.damage import AT, BEHIND, HOLE, Holes, malformed, walk_over
from spool.format.frame import (
    BAD,
    CUT,
    END,
    KEY,
    LEAST_MESSAGE_BYTES,
    POSITION,
    ROW,
    SEQUENCE,
    TAIL_FIELDS,
    Frames,
    Tail,
    find,
    length_of,
    skip_to,
)
from spool.format.packed import header_of
from spool.format.segment_format import FOOTER_MAGIC, HEAD, HEAD_BYTES, OLD_KEYS, Record
from spool.format.version_1 import NO_LINKS, Links
from spool.native.digest import digest_function
from spool.native.memory import Address, address_of
from spool.storage.disk import opened, read_ahead, read_at, read_into
from spool.storage.parallel import checkpoint

WRITTEN = -1


CHUNK_BYTES = 1 << 20
"""Read at a time: small enough to stay in the cache until it is parsed, large enough to cost little."""
FIRST_BYTES = 64 << 10
"""Read first, and then twice as much each time: a reader of ten messages need not wait for thousands."""
READ_MESSAGES = 8192
"""Read at a time, about, if they are small: their columns, 81 bytes a message, stay in the cache as well."""
_COMPARED_BYTES = 256 << 10
_FRAMES = 8192
_NO_HOLES: Holes = np.empty((0, HOLE), np.int64)
_LOOKS, _PAUSE_S = 20, 0.001
"""At a frame that the writer may be storing."""
NOWHERE = (1 << 63) - 1
"""An offset that no segment has."""


@cache
def digest_address() -> int:
    """The digest function's address, for kernels."""
    return digest_function()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Good frames and the bytes that hold them."""

    data: npt.NDArray[np.uint8]
    offset: int
    """The offset of `data` in the segment."""
    frames: Frames
    holes: Holes = field(default_factory=lambda: _NO_HOLES)
    """int64[n, HOLE], rows of spool.format.damage: the damage between these frames, and before the first."""
    data_at: Address | None = None
    """Of the first byte of `data`; None: it was not asked for."""

    @property
    def base(self) -> Address:
        """The address that offset 0 of the segment would have."""
        return Address((self.data_at or address_of(self.data)) - self.offset)


class Scan:
    """Good frames of one open segment, from `tail` on, which moves along.

    After `next` has returned None, `stopped` says why: END, CUT or BAD (spool.format.frame).
    """

    def __init__(
        self,
        fd: int,
        tail: Tail,
        limit: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        first_bytes: int = FIRST_BYTES,
        keyless: bool = False,
    ) -> None:
        """Read `fd` below offset `limit` (default: the end of the file).

        `first_bytes`: of the first chunk, for a reader that does not stop in the middle. `keyless`: the key
        of the segment is not known, and digests are compared with one another only.
        """
        self.fd, self.tail = fd, tail
        size = os.fstat(fd).st_size
        self.limit = size if limit is None else min(limit, size)
        self.stopped = END
        self.committed = NOWHERE
        """A live keeper has verified everything below this offset (spool.index.log_end)."""
        self._digest = 0 if keyless else digest_address()
        self._links: Links | None = None
        self._advised = False
        self._chunk_bytes = chunk_bytes
        self._next_bytes = min(first_bytes, chunk_bytes)
        self._enough = chunk_bytes
        """Bytes that hold READ_MESSAGES messages, by the last chunk."""
        self._set_buffer(self._next_bytes)
        self._table = np.empty((_FRAMES, ROW), np.int64)
        self._holes = np.empty((_FRAMES, HOLE), np.int64)

    def next(self) -> Chunk | None:
        """The next chunk, without holes, valid until the call after it; None at the end of what is good.

        Raises ReadFailed behind the last frame that the disk can read, with the tail there.
        """
        return self._next(0)

    def over(self, *, zeros: bool = True) -> Chunk | None:
        """The next chunk, with the holes that end in the bytes read at a time.

        None at the end of what is good; `skip` may go on. `zeros`: zeros may be damage, too. Beside a live
        keeper only holes that begin below its committed end are passed over. Raises like `next`.
        """
        before = self.tail.copy()
        # In a segment of version 1 the first damage is passed over by `skip`, which finds the links.
        sure = 0 if self.tail[KEY] == OLD_KEYS.key and self._links is None else self.committed
        chunk = self._next(sure, zeros=zeros)
        if chunk is None or not len(chunk.holes) or self._stays(chunk):
            return chunk
        self.tail[:] = before
        return self._next(0)

    def _stays(self, chunk: Chunk) -> bool:
        """Whether the bytes of its holes are still the same.

        Frames are written in order: any frame before a good one is finished by now, or damaged.
        """
        first, behind = int(chunk.holes[0, AT]), int(chunk.holes[-1, BEHIND])
        window = np.empty(min(_COMPARED_BYTES, behind - first), np.uint8)
        for offset in range(first, behind, _COMPARED_BYTES):
            seen = chunk.data[offset - chunk.offset : behind - chunk.offset][:_COMPARED_BYTES]
            got, _ = read_into(self.fd, window[: len(seen)].data, offset)
            # Holes begin and end at multiples of eight.
            if got < len(seen) or not np.array_equal(window[:got].view(np.int64), seen.view(np.int64)):
                return False
        return True

    def _next(self, sure: int, *, zeros: bool = False) -> Chunk | None:
        """The next chunk, over holes that begin below offset `sure`."""
        if not self._next_bytes <= len(self._buffer) <= self._chunk_bytes:
            self._set_buffer(self._next_bytes)
        size = min(self._next_bytes, self._enough)
        while True:
            checkpoint()
            start, sequence = int(self.tail[POSITION]), int(self.tail[SEQUENCE])
            self._advise(start)
            room = self._buffer[: max(0, min(size, self.limit - start))]
            got, failed = read_into(self.fd, room.data, start)
            base = Address(self._buffer_at - start)
            self.stopped, rows, passed = walk_over(
                base,
                start + got,
                self.limit,
                self.tail,
                self._table,
                self._holes,
                sure,
                zeros,
                self._digest,
                NO_LINKS if self._links is None else self._links.linked,
            )
            if rows:
                self._next_bytes = min(2 * self._next_bytes, self._chunk_bytes)
                messages = max(1, int(self.tail[SEQUENCE]) - sequence)
                enough = (int(self.tail[POSITION]) - start) * READ_MESSAGES // messages
                self._enough = max(FIRST_BYTES, min(enough, self._chunk_bytes))
                frames, holes = self._table[:rows], self._holes[:passed]
                return Chunk(self._buffer[:size], start, frames, holes, self._buffer_at)
            if failed and self.stopped != BAD:
                raise failed
            if self.stopped != CUT or got < size:
                return None
            size *= 2
            self._set_buffer(size)

    def _set_buffer(self, size: int) -> None:
        self._buffer = np.empty(size, np.uint8)
        self._buffer_at = address_of(self._buffer)

    def _advise(self, start: int) -> None:
        """Once all of a file seems to be read, advise the kernel, which begins with a few pages.

        From then on it reads large pieces into large folios, which takes a third of the CPU.
        """
        if not self._advised and self._next_bytes == self._chunk_bytes:
            self._advised = True
            read_ahead(self.fd, start, self.limit)

    @property
    def ended(self) -> bool:
        """Whether the log ends at the tail: zeros follow, and a live keeper has committed all before them."""
        return self.stopped == END and int(self.tail[POSITION]) >= self.committed

    def is_being_stored(self) -> bool:
        """Whether the frame behind the tail, which did not verify, verifies a moment later."""
        if self.stopped == END or int(self.tail[POSITION]) < self.committed:
            return False
        before = self.tail.copy()
        for _ in range(_LOOKS):
            time.sleep(_PAUSE_S)
            if self.next() is not None:
                self.tail[:] = before
                return True
        return False

    def skip(self) -> int | None:
        """Go over damage to the next good frame below the limit; how many messages are missing, or None.

        Raises ReadFailed, with the tail where it was.
        """
        # More damage may follow: read little until frames are known to be good.
        self._next_bytes = min(FIRST_BYTES, self._chunk_bytes)
        found = self._next_linked() if self.tail[KEY] == OLD_KEYS.key else self._next_good()
        return None if found is None else skip_to(self.tail, *found)

    def _next_good(self) -> tuple[int, Record] | None:
        """(offset, head) of the next frame that verifies and can be at that offset."""
        offset, hopeless = int(self.tail[POSITION]), 0
        while (offset := find_frame(self.fd, offset, self.limit, self.tail)) >= 0:
            head = self._head(offset)
            belongs = self._has_room(offset, head)
            if not belongs and offset >= hopeless:
                # If bytes were cut out, everything behind them is in order.
                run = self._run(offset)
                hopeless = int(run.tail[POSITION])
                footer = read_at(self.fd, len(FOOTER_MAGIC), hopeless) == FOOTER_MAGIC
                belongs = footer or run.stopped == END or hopeless >= self.limit
            if belongs:
                return offset, head
            offset += 8
        return None

    def _next_linked(self) -> tuple[int, Record] | None:
        """The same in a segment of version 1, in which a sender may have forged frames."""
        if self._links is None:
            self._links = Links(self.fd, int(self.tail[POSITION]), self.limit)
        for offset in self._links.behind(int(self.tail[POSITION])):
            if (head := frame_at(self.fd, offset, self.tail)) is not None:
                return offset, head
        return None

    def _head(self, offset: int) -> Record:
        data = read_at(self.fd, HEAD_BYTES, offset)
        return np.frombuffer(data.ljust(HEAD_BYTES, b"\0"), HEAD)[0]

    def _has_room(self, offset: int, head: Record) -> bool:
        """Whether the messages missing before a frame fit in the bytes that are passed over."""
        missing = int(head["first_sequence"]) - int(self.tail[SEQUENCE])
        return missing <= (offset - int(self.tail[POSITION])) // LEAST_MESSAGE_BYTES

    def _run(self, offset: int) -> Scan:
        """A scan that has walked the chain of frames from the one at `offset` on."""
        tail = self.tail.copy()
        skip_to(tail, offset, self._head(offset))
        run = Scan(self.fd, tail, self.limit, self._chunk_bytes)
        while run.next():
            continue
        return run

    def all(self) -> Iterator[Chunk]:
        """Every good chunk below the limit, over damage."""
        while True:
            while chunk := self.over():
                yield chunk
            if self.skip() is None:
                return


def read_header(path: Path) -> Record:
    """The header of a segment file. Raises BadSpool, UnknownVersion, OSError."""
    with opened(path) as file:
        return header_of(file.fileno(), path)


def frame_at(fd: int, offset: int, tail: Tail) -> Record | None:
    """The head of the frame at an offset, if one that can be behind `tail` verifies there by itself.

    `tail`: as in find_frame. Raises ReadFailed.
    """
    head = np.frombuffer(read_at(fd, HEAD_BYTES, offset).ljust(HEAD_BYTES, b"\0"), HEAD)[0]
    return head if find_frame(fd, offset, offset + length_of(head), tail) == offset else None


def enter_at(fd: int, tail: Tail, offset: int, sequence: int | None = None) -> bool:
    """Move `tail` before the frame that begins at an offset by a footer or an index.

    Returns False, and moves nothing, unless a frame verifies there by itself, and begins with `sequence` if
    that is given. Raises ReadFailed.
    """
    anywhere = tail.copy()
    anywhere[POSITION] = 0
    head = frame_at(fd, offset, anywhere)
    if head is None or sequence not in (None, int(head["first_sequence"])):
        return False
    skip_to(tail, offset, head)
    return True


def find_frame(fd: int, position: int, limit: int, tail: Tail, chunk_bytes: int = CHUNK_BYTES) -> int:
    """The offset of the next frame at or behind `position` that verifies by itself; -1 if there is none.

    `tail` has the keys of the segment. Frames that cannot be behind it are passed over, unless its position
    is 0. `chunk_bytes`: read at a time, or as many as a frame has. Raises ReadFailed.
    """
    position, window, tried = (position + 7) & ~7, min(FIRST_BYTES, chunk_bytes), -1
    while position + HEAD_BYTES <= limit:
        checkpoint()
        data = np.empty(min(window, limit - position), np.uint8)
        got, failed = read_into(fd, data.data, position)
        base = Address(address_of(data) - position)
        found, whole = find(base, position, position + got, limit, tail, digest_address())
        if found >= 0 and not whole:
            return int(found)
        if failed:
            raise failed
        if found < 0 and got < len(data):
            return -1
        if found < 0:
            position = max(position + 8, (position + got - HEAD_BYTES + 8) & ~7)
        elif found == tried:
            position = found + 8  # the file has shrunk meanwhile
        else:
            # A frame may begin there: look again, with as many bytes as it says it has.
            position = tried = found
        window = max(min(2 * window, chunk_bytes), whole)
    return -1


def compile_kernels() -> None:
    """Compile a scan's loops, before forking processes that scan."""
    nothing = np.zeros(TAIL_FIELDS, np.int64)
    table, holes = np.zeros((1, ROW), np.int64), np.zeros((1, HOLE), np.int64)
    walk_over(Address(0), 0, 0, nothing, table, holes, 0, False, 0, NO_LINKS)
    find(Address(0), 0, 0, 0, nothing, 0)
    malformed(Address(0), table[:0])


def skip_damage(scan: Scan) -> int | None:
    """Go over damage to the next good frame: how many messages are missing; None when there is no such frame.

    Returns WRITTEN, and passes nothing over, when the frame that was not good has become so meanwhile.
    """
    if scan.ended:
        return None
    if scan.is_being_stored():
        return WRITTEN
    before = scan.tail.copy()
    missing = scan.skip()
    behind = scan.tail.copy()
    # Frames are written in order: if one was found behind it, it is finished by now, or damaged.
    scan.tail[:] = before
    finished = scan.next() is not None
    scan.tail[:] = before if finished else behind
    return WRITTEN if finished else missing
