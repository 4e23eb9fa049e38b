"""Frames in a raw disk image, or in what is left of a deleted segment.

A frame is verified by the keys of its segment (spool.format), which are made of the spool's secret and the
segment's first sequence. The secret is that of the spools that the caller names, and of the image itself when
it begins as a segment does; the first sequences are those of headers with that secret, in these spools and
anywhere in the image. A header elsewhere in an image may be a sender's, whose secret is not one of those.

Other frames are told by their form alone, and are not verified: a sender can make them. Frames of version 1
are among these.

A frame names neither its spool nor its segment. What follows it in the same file does so in the image too,
as long as the filesystem put it there in one piece: a run of frames, each with the digest of the one before.
Blocks of packed segments are not found: they are zstd's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.carved import Earlier
from spool.disk import open_to_read, read_at
from spool.errors import BadSpool
from spool.examination import malformed
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, MAGIC, Keys, Record, decode_header, keys_from
from spool.frame import (
    CUT,
    KEY,
    MARK,
    POSITION,
    TAIL_FIELDS,
    Tail,
    holds_datagrams,
    padded,
    skip_to,
    verify,
)
from spool.frames import heads_of
from spool.identity import list_headers, list_secrets
from spool.kernel import address_of, kernel, load_u16, load_u32
from spool.layout import Layout
from spool.scan import CHUNK_BYTES, Chunk, Scan, frame_at

Marks = npt.NDArray[np.int64]
_REREAD = 4
"""How many times the bytes of an image may be read again for frames that may be long."""


@dataclass(slots=True)
class Run:
    """Frames that follow one another."""

    offset: int
    """Of the first, in the image."""
    first_sequence: int
    verified: bool
    """Its frames were told by their segment's keys; else a sender may have made them."""
    next_sequence: int = 0
    frames: int = 0
    messages: int = 0
    again: int = 0
    """Frames that were found before, elsewhere in the image, and are passed over here."""
    first_received_ns: int = 0
    last_received_ns: int = 0


@kernel
def _find(base: int, position: int, limit: int, end: int, marks: Marks, tail: Tail) -> tuple[int, int]:
    """The next place at or behind `position` that has the form of a frame: (offset, 0); (-1, 0) without one.

    (offset, bytes): memory does not hold these bytes of what may be one, before offset `end`. `marks`: those
    that are known, sorted; with one of them a head is enough. tail[MARK] is set to the frame's. Else as
    spool.frame.find.
    """
    while position + HEAD_BYTES <= limit:
        at = base + position
        if load_u16(at + 12) == HEAD_BYTES and load_u32(at + 16) + load_u32(at + 20) > 0:
            tail[MARK] = load_u32(at + 8)
            known = np.searchsorted(marks, tail[MARK])
            if known < marks.shape[0] and marks[known] == tail[MARK]:
                return position, 0
            found = verify(at, limit - position, tail, 0)
            if found == 0 and holds_datagrams(at):
                return position, 0
            whole = HEAD_BYTES + padded(load_u32(at + 24))
            if found == CUT and position + whole <= end:
                return position, whole
        position += 8
    return -1, 0


class Carver:
    """One image, and the keys that are known."""

    def __init__(self, path: Path, spools: Iterable[Path] = ()) -> None:
        """`spools`: directories of spools, from whose segments frames of the image may be. Raises OSError."""
        self._fd = open_to_read(path, links=True)
        self._size = os.fstat(self._fd).st_size
        self._keys = {keys.mark: keys for keys in self._known_keys(spools)}
        self._marks = np.array(sorted(self._keys), np.int64)
        self._left = _REREAD * self._size
        """Bytes that may yet be read once more, since a frame may be longer than what is in memory."""

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
        """Of the segments whose headers have a secret that is known."""
        secrets, firsts = set[bytes](), set[tuple[bytes, int]]()
        for layout in map(Layout, spools):
            secrets.update(list_secrets(layout))
            firsts.update((bytes(h["secret"]), int(h["first_sequence"])) for h in list_headers(layout))
        own = self._header(0)
        if own is not None:
            secrets.add(bytes(own["secret"]))
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
        """(offset, its keys if they are known) of what has the form of a frame; None: there is no more."""
        tail, window = np.zeros(TAIL_FIELDS, np.int64), CHUNK_BYTES
        while position + HEAD_BYTES <= self._size:
            data = np.frombuffer(read_at(self._fd, min(window, self._size - position), position), np.uint8)
            limit = position + len(data)
            end = self._size if self._left > 0 else 0
            found, whole = _find(address_of(data) - position, position, limit, end, self._marks, tail)
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
    """What of a chunk is new and well-formed."""
    offsets, heads = heads_of(chunk)
    new = ~earlier.note(offsets, heads)
    frames = np.ascontiguousarray(chunk.frames[new])
    base = address_of(chunk.data) - chunk.offset
    good = np.array([malformed(base, frames[row : row + 1]) < 0 for row in range(len(frames))], np.bool_)
    kept = np.ascontiguousarray(frames[good])
    last = heads[-1]
    run.frames += len(kept)
    run.messages += int(kept[:, 2].sum())
    run.again += int((~new).sum())
    run.next_sequence = int(last["first_sequence"]) + int(last["count"])
    run.last_received_ns = int(last["received_ns"])
    return Chunk(chunk.data, chunk.offset, kept)
