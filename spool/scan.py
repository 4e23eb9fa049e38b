"""Reading a segment from its file: good frames, a chunk at a time, by pread.

Never through a mapping: a file that shrinks or a disk that fails is an exception here, and a SIGBUS there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.abreast import checkpoint
from spool.digest import digest_function
from spool.disk import opened, read_ahead, read_at, read_into
from spool.format import FOOTER_MAGIC, HEAD, HEAD_BYTES, OLD_KEYS, Record
from spool.frame import (
    BAD,
    CUT,
    END,
    KEY,
    LEAST_MESSAGE_BYTES,
    POSITION,
    ROW,
    SEQUENCE,
    TAIL_FIELDS,
    Tail,
    find,
    length_of,
    skip_to,
    walk,
)
from spool.kernel import address_of
from spool.links import Links
from spool.packed import header_of

CHUNK_BYTES = 1 << 20
"""Read at a time: small enough to stay in the cache until it is parsed, large enough to cost little."""
FIRST_BYTES = 64 << 10
"""Read first, and then twice as much each time: who wants ten messages need not wait for thousands."""
_FRAMES = 8192
_LOOKS, _PAUSE_S = 20, 0.001
"""At a frame that may be being stored."""
NOWHERE = (1 << 63) - 1
"""An offset that no segment has."""


@cache
def digest_address() -> int:
    """The digest function's address, for kernels."""
    return digest_function()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of good frames and the bytes they lie in."""

    data: npt.NDArray[np.uint8]
    offset: int
    """Where in the segment `data` begins."""
    frames: npt.NDArray[np.int64]
    """int64[n, 5], rows of FRAME_ROW."""


class Scan:
    """Good frames of one open segment, from `tail` on, which moves along.

    After `next` has returned None, `stopped` says why: END, CUT or BAD (spool.frame).
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
        self.vouched = NOWHERE
        """Up to this offset a keeper that lives has verified all of it (spool.vouched)."""
        self._digest = 0 if keyless else digest_address()
        self._links: Links | None = None
        self._advised = False
        self._chunk_bytes = chunk_bytes
        self._next_bytes = min(first_bytes, chunk_bytes)
        self._buffer = np.empty(self._next_bytes, np.uint8)
        self._table = np.empty((_FRAMES, ROW), np.int64)

    def next(self) -> Chunk | None:
        """The next chunk, valid until the call after it; None at the end of what is good.

        Raises ReadFailed behind the last frame that the disk gives, with the tail there.
        """
        if len(self._buffer) != self._next_bytes:
            self._buffer = np.empty(self._next_bytes, np.uint8)
        while True:
            checkpoint()
            start = int(self.tail[POSITION])
            self._advise(start)
            got, failed = read_into(self.fd, self._room(self.limit - start), start)
            base = address_of(self._buffer) - start
            self.stopped, rows = walk(base, start + got, self.tail, self._table, self._digest)
            if rows:
                self._next_bytes = min(2 * self._next_bytes, self._chunk_bytes)
                return Chunk(self._buffer, start, self._table[:rows])
            if failed and self.stopped != BAD:
                raise failed
            if self.stopped != CUT or got < len(self._buffer):
                return None
            self._buffer = np.empty(2 * len(self._buffer), np.uint8)

    def _advise(self, start: int) -> None:
        """Once it looks as if all of a file were read, tell the kernel, which begins with a few pages.

        From there on it reads large pieces into large folios, which takes a third of the CPU.
        """
        if not self._advised and self._next_bytes == self._chunk_bytes:
            self._advised = True
            read_ahead(self.fd, start, self.limit)

    @property
    def ended(self) -> bool:
        """Whether nothing is behind the tail: zeros, and a keeper that lives vouches for all before them."""
        return self.stopped == END and int(self.tail[POSITION]) >= self.vouched

    def is_being_stored(self) -> bool:
        """Whether the frame behind the tail, which did not verify, does so in a moment."""
        if self.stopped == END or int(self.tail[POSITION]) < self.vouched:
            return False
        before = self.tail.copy()
        for _ in range(_LOOKS):
            time.sleep(_PAUSE_S)
            if self.next() is not None:
                self.tail[:] = before
                return True
        return False

    def skip(self) -> int | None:
        """Go over damage to the next good frame below the limit; messages that are missing, or None.

        Raises ReadFailed, with the tail where it was.
        """
        # Where there is damage there may be more: little is read before it is known to be good.
        self._next_bytes = min(FIRST_BYTES, self._chunk_bytes)
        found = self._next_linked() if self.tail[KEY] == OLD_KEYS.key else self._next_good()
        return None if found is None else skip_to(self.tail, *found)

    def _next_good(self) -> tuple[int, Record] | None:
        """(offset, head) of the next frame that verifies, and can be in this place."""
        offset, hopeless = int(self.tail[POSITION]), 0
        while (offset := find_frame(self.fd, offset, self.limit, self.tail)) >= 0:
            head = self._head(offset)
            belongs = self._has_room(offset, head)
            if not belongs and offset >= hopeless:
                # Bytes were cut out: then all that is behind them is in order.
                run = self._run(offset)
                hopeless = int(run.tail[POSITION])
                footer = read_at(self.fd, len(FOOTER_MAGIC), hopeless) == FOOTER_MAGIC
                belongs = footer or run.stopped == END or hopeless >= self.limit
            if belongs:
                return offset, head
            offset += 8
        return None

    def _next_linked(self) -> tuple[int, Record] | None:
        """The same in a segment of version 1, of which a sender may have made some."""
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
        """Whether what is missing before a frame can have been in the bytes that are passed over."""
        missing = int(head["first_sequence"]) - int(self.tail[SEQUENCE])
        return missing <= (offset - int(self.tail[POSITION])) // LEAST_MESSAGE_BYTES

    def _run(self, offset: int) -> Scan:
        """A scan that has gone from the frame at `offset` on, over all that follow one another."""
        tail = self.tail.copy()
        skip_to(tail, offset, self._head(offset))
        run = Scan(self.fd, tail, self.limit, self._chunk_bytes)
        while run.next():
            continue
        return run

    def all(self) -> Iterator[Chunk]:
        """Every good chunk below the limit, over damage."""
        while True:
            while chunk := self.next():
                yield chunk
            if self.skip() is None:
                return

    def _room(self, left: int) -> memoryview:
        return self._buffer[: max(0, min(left, len(self._buffer)))].data


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
    """Move `tail` before the frame at an offset, where a footer or an index says that it begins.

    False, and nothing moved, unless a frame verifies there by itself, which begins with `sequence` if that is
    given. Raises ReadFailed.
    """
    anywhere = tail.copy()
    anywhere[POSITION] = 0
    head = frame_at(fd, offset, anywhere)
    if head is None or sequence not in (None, int(head["first_sequence"])):
        return False
    skip_to(tail, offset, head)
    return True


def find_frame(fd: int, position: int, limit: int, tail: Tail) -> int:
    """The offset of the next frame at or behind `position` that verifies by itself; -1 if there is none.

    `tail`: has the keys of the segment. Frames that cannot be behind it are passed over, unless its position
    is 0. Raises ReadFailed.
    """
    position, window, tried = (position + 7) & ~7, min(FIRST_BYTES, CHUNK_BYTES), -1
    while position + HEAD_BYTES <= limit:
        checkpoint()
        data = np.empty(min(window, limit - position), np.uint8)
        got, failed = read_into(fd, data.data, position)
        base = address_of(data) - position
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
        window = max(min(2 * window, CHUNK_BYTES), whole)
    return -1


def compile_kernels() -> None:
    """Compile, or load from the cache, what a scan runs, before forking those who will scan."""
    nothing = np.zeros(TAIL_FIELDS, np.int64)
    walk(0, 0, nothing, np.zeros((1, ROW), np.int64), 0)
    find(0, 0, 0, 0, nothing, 0)
