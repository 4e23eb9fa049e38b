"""Frames in a raw disk image, or in the remains of a deleted segment.

A frame is verified by the keys of its segment (spool.format.segment_format), which are made of the spool's
secret and the segment's first sequence. The known secrets are those of the spools that the caller names. The
first sequences come from headers with these secrets, in these spools and anywhere in the image. A header in
an image may be forged by a sender, whose secret is not one of those: also the header that an image begins
with, since a fragment of a disk can begin inside a message.

Other frames are recognised by their form alone, and are not verified: a sender can forge them. Frames of
version 1 are among these.

A frame names neither its spool nor its segment. Frames that follow each other in a file do so in the image
too, if the filesystem put the file there in one piece: a run of frames, each with the digest of the one
before. Blocks of packed segments are not found: they are compressed by zstd.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.damage import malformed
from spool.format.frame import (
    CUT,
    FRAME_COUNT,
    KEY,
    MARK,
    POSITION,
    TAIL_FIELDS,
    Tail,
    holds_datagrams,
    length_of,
    padded,
    skip_to,
    verify,
)
from spool.format.scan import CHUNK_BYTES, Chunk, Scan, frame_at
from spool.format.segment_format import (
    BODY_BYTES_AT,
    COUNT_AT,
    DISCARDED_AT,
    HEAD,
    HEAD_BYTES,
    HEAD_BYTES_AT,
    HEADER_BYTES,
    MAGIC,
    MARK_AT,
    Keys,
    Record,
    decode_header,
    keys_from,
)
from spool.index.identity import list_headers, list_secrets
from spool.layout import Layout
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, load_u16, load_u32
from spool.read.files import heads_of
from spool.storage.disk import open_to_read, read_at

Marks = npt.NDArray[np.int64]
_REREAD = 4
"""How many times the image's bytes may be read again for frames that may be long."""


@dataclass(slots=True)
class Run:
    """Frames that follow one another."""

    offset: int
    """Of the first frame, in the image."""
    first_sequence: int
    verified: bool
    """Its frames were verified by their segment's keys; else a sender may have forged them."""
    next_sequence: int = 0
    frames: int = 0
    messages: int = 0
    again: int = 0
    """Frames that were found before, elsewhere in the image, and are skipped here."""
    first_received_ns: int = 0
    last_received_ns: int = 0


@kernel
def _find(base: Address, position: int, limit: int, end: int, marks: Marks, tail: Tail) -> tuple[int, int]:
    """The next offset at or behind `position` with the form of a frame: (offset, 0); (-1, 0) without one.

    (offset, bytes): a possible frame of so many bytes, before offset `end`, that memory does not hold whole.
    `marks` int64[n]: the known marks, sorted; a head with one of them is enough. tail[MARK] is set to the
    frame's mark. All else is as in spool.format.frame.find.
    """
    while position + HEAD_BYTES <= limit:
        at = Address(base + position)
        if (
            load_u16(at + HEAD_BYTES_AT) == HEAD_BYTES
            and load_u32(at + COUNT_AT) + load_u32(at + DISCARDED_AT) > 0
        ):
            tail[MARK] = load_u32(at + MARK_AT)
            known = np.searchsorted(marks, tail[MARK])
            if known < marks.shape[0] and marks[known] == tail[MARK]:
                return position, 0
            found = verify(at, limit - position, tail, 0)
            if found == 0 and holds_datagrams(at):
                return position, 0
            whole = HEAD_BYTES + padded(load_u32(at + BODY_BYTES_AT))
            if found == CUT and position + whole <= end:
                return position, whole
        position += 8
    return -1, 0


class Carver:
    """One image, and the known keys."""

    def __init__(self, path: Path, spools: Iterable[Path] = ()) -> None:
        """`spools`: directories of spools whose frames may be in the image. Raises OSError."""
        self._fd = open_to_read(path, links=True)
        self._size = os.fstat(self._fd).st_size
        self._keys = {keys.mark: keys for keys in self._known_keys(spools)}
        self._marks = np.array(sorted(self._keys), np.int64)
        self._left = _REREAD * self._size
        """How many bytes may still be read again, since a frame may be longer than the part in memory."""

    def close(self) -> None:
        """Close the image."""
        os.close(self._fd)

    def runs(self) -> Iterator[tuple[Run, Chunk]]:
        """(the run so far, its next good frames), each valid until the next. Raises OSError."""
        earlier, position = Earlier(self._fd), 0
        while (found := self._next(position)) is not None:
            position, keys = found
            tail = np.zeros(TAIL_FIELDS, np.int64)
            head = np.frombuffer(read_at(self._fd, HEAD_BYTES, position), HEAD)[0]
            tail[KEY], tail[MARK] = keys or (0, int(head["mark"]))
            if keys and frame_at(self._fd, position, tail) is None:
                position += 8
                continue
            skip_to(tail, position, head)
            run = Run(position, int(head["first_sequence"]), keys is not None)
            run.first_received_ns = int(head["received_ns"])
            earlier.begin_run()
            scan = Scan(self._fd, tail, self._size, keyless=keys is None)
            while chunk := scan.next():
                yield run, _count(run, chunk, earlier)
            position = max(position + 8, int(tail[POSITION]))

    def _known_keys(self, spools: Iterable[Path]) -> Iterator[Keys]:
        """The keys of the segments whose headers have a known secret."""
        secrets, firsts = set[bytes](), set[tuple[bytes, int]]()
        for layout in map(Layout, spools):
            secrets.update(list_secrets(layout))
            firsts.update((bytes(h["secret"]), int(h["first_sequence"])) for h in list_headers(layout))
        if secrets:
            firsts.update((bytes(h["secret"]), int(h["first_sequence"])) for h in self._headers())
        return (keys_from(*one) for one in firsts if one[0] in secrets and any(one[0]))

    def _headers(self) -> Iterator[Record]:
        """Every header in the image, at a multiple of 8."""
        magic, position = int.from_bytes(MAGIC, "little"), 0
        while data := read_at(self._fd, CHUNK_BYTES, position):
            words = np.frombuffer(data, "<u8", len(data) // 8)
            for at in np.flatnonzero(words == magic).tolist():
                if (header := self._header(position + 8 * at)) is not None:
                    yield header
            position += CHUNK_BYTES

    def _header(self, offset: int) -> Record | None:
        try:
            return decode_header(read_at(self._fd, HEADER_BYTES, offset), "")
        except BadSpool:
            return None

    def _next(self, position: int) -> tuple[int, Keys | None] | None:
        """(offset, its keys if known) of the next bytes with the form of a frame; None: there are no more."""
        tail, window = np.zeros(TAIL_FIELDS, np.int64), CHUNK_BYTES
        while position + HEAD_BYTES <= self._size:
            data = np.frombuffer(read_at(self._fd, min(window, self._size - position), position), np.uint8)
            limit = position + len(data)
            end = self._size if self._left > 0 else 0
            base = Address(address_of(data) - position)
            found, whole = _find(base, position, limit, end, self._marks, tail)
            if found >= 0 and not whole:
                return int(found), self._keys.get(int(tail[MARK]))
            window = CHUNK_BYTES
            if found < 0:
                position = max(position + 8, (limit - HEAD_BYTES + 8) & ~7)
            else:
                position, window = int(found), max(CHUNK_BYTES, int(whole))
                self._left -= window
        return None


def _count(run: Run, chunk: Chunk, earlier: Earlier) -> Chunk:
    """Count the new and well-formed frames of a chunk, and return them."""
    offsets, heads = heads_of(chunk)
    new = ~earlier.note(offsets, heads)
    frames = np.ascontiguousarray(chunk.frames[new])
    base = chunk.base
    good = np.array([malformed(base, frames[row : row + 1]) < 0 for row in range(len(frames))], np.bool_)
    kept = np.ascontiguousarray(frames[good])
    last = heads[-1]
    run.frames += len(kept)
    run.messages += int(kept[:, FRAME_COUNT].sum())
    run.again += int((~new).sum())
    run.next_sequence = int(last["first_sequence"]) + int(last["count"])
    run.last_received_ns = int(last["received_ns"])
    return Chunk(chunk.data, chunk.offset, kept)


_RUN, _FIRST, _LAST, _OFFSET, _FRAMES = range(5)


class Earlier:
    """The chunks that were found so far, in the file `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rows = np.zeros((64, 5), np.int64)
        """A row for each chunk: run number, first and last burst, offset of its first frame, and frames."""
        self._count = self._run = 0
        self._strangers: set[int] = set()
        """Earlier runs that share no more frames with the present one."""

    def begin_run(self) -> None:
        """Begin a new run: the next frames do not follow the last ones."""
        self._run += 1
        self._strangers.clear()

    def note(self, offsets: npt.NDArray[np.int64], heads: Record) -> npt.NDArray[np.bool_]:
        """Which frames of the run's next chunk were found before: bool[n]. Raises OSError.

        `offsets` int64[n] in the file, `heads` HEAD[n], from spool.read.files.heads_of.
        """
        bursts = heads["burst"].astype(np.int64)
        again = np.zeros(len(heads), np.bool_)
        rows = self._rows[: self._count]
        meets = (rows[:, _FIRST] <= bursts[-1]) & (rows[:, _LAST] >= bursts[0]) & (rows[:, _RUN] != self._run)
        for row in rows[meets]:
            if int(row[_RUN]) not in self._strangers:
                again |= self._common(row, bursts, heads["digest"])
        self._keep(int(bursts[0]), int(bursts[-1]), int(offsets[0]), len(bursts))
        return again

    def _common(
        self, row: npt.NDArray[np.int64], bursts: npt.NDArray[np.int64], digests: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Which of these frames an earlier chunk has, too."""
        common = np.zeros(len(bursts), np.bool_)
        offset = int(row[_OFFSET])
        for _ in range(int(row[_FRAMES])):
            head = np.frombuffer(read_at(self._fd, HEAD_BYTES, offset), HEAD)[0]
            offset, burst = offset + length_of(head), head["burst"].astype(np.int64)
            at = int(np.searchsorted(bursts, burst))
            if at == len(bursts):
                break
            if bursts[at] != burst:
                continue
            if digests[at] != head["digest"]:
                self._strangers.add(int(row[_RUN]))
                break
            common[at] = True
        return common

    def _keep(self, first: int, last: int, offset: int, frames: int) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self._count] = self._run, first, last, offset, frames
        self._count += 1


def compile_kernels() -> None:
    """Compile the search for frames of any spool."""
    _find(Address(0), 0, 0, 0, np.zeros(0, np.int64), np.zeros(TAIL_FIELDS, np.int64))
