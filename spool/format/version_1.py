"""Frames of version 1 behind damage: believed if the digest of a frame that bruce wrote leads to them.

Version 1 has no secret, so a sender can put a whole frame into a message. But the digest of a frame depends
on when it was received and on all frames before it, so the sender never knows one that bruce wrote. Two of
these are available behind damage: the one at the head of the damaged frame, which the next frame names as
`previous`; and that of the last frame, in the footer, from which each `previous` leads back to the frame
before it. Frames that neither leads to are not believed, though they verify.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.frame import padded
from spool.format.packed import footer_of
from spool.format.segment_format import (
    BODY_BYTES_AT,
    COUNT_AT,
    HEAD_BYTES,
    HEAD_BYTES_AT,
    HEADER_BYTES,
    MARK_AT,
    MAX_BODY_BYTES,
    MAX_BURST,
    OLD_KEYS,
    PREVIOUS_AT,
    decode_footer,
    decode_header,
)
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, load_i64, load_u16, load_u32
from spool.storage.disk import read_at

OFFSET, DIGEST, PREVIOUS = range(3)
_MARK = OLD_KEYS.mark
_CHUNK_BYTES = 1 << 20
_ROWS = _CHUNK_BYTES // 8
"""Heads in a chunk, at most."""

Rows = npt.NDArray[np.int64]
"""int64[n, 3]: the offset of a possible frame, its digest, and the digest that it names as `previous`."""


@kernel
def _collect(base: Address, position: int, limit: int, end: int, rows: Rows) -> int:
    """Note every possible head at or behind `position`, below `limit`, in a segment that ends at `end`.

    `base` is the address where offset 0 of the segment would be. `rows` int64[n, 3] has room for all. Returns
    how many were filled.
    """
    found = 0
    while position + HEAD_BYTES <= limit:
        at = base + position
        if (
            load_u32(at + MARK_AT) == _MARK
            and load_u16(at + HEAD_BYTES_AT) == HEAD_BYTES
            and load_u32(at + COUNT_AT) <= MAX_BURST
        ):
            body_bytes = load_u32(at + BODY_BYTES_AT)
            if body_bytes <= MAX_BODY_BYTES and position + HEAD_BYTES + padded(body_bytes) <= end:
                rows[found, OFFSET] = position
                rows[found, DIGEST] = load_i64(at)
                rows[found, PREVIOUS] = load_i64(at + PREVIOUS_AT)
                found += 1
        position += 8
    return found


@kernel
def _lead_back(rows: Rows, digest: int, linked: npt.NDArray[np.bool_]) -> None:
    """Mark the rows that `digest` leads to: its own, the one before that, and so on.

    `rows` int64[n, 3], sorted by digest; `linked` bool[n].
    """
    for _ in range(rows.shape[0]):
        at = np.searchsorted(rows[:, DIGEST], digest)
        if at == rows.shape[0] or rows[at, DIGEST] != digest or linked[at]:
            return
        linked[at] = True
        digest = rows[at, PREVIOUS]


class Links:
    """The frames behind an offset of one segment of version 1, as their digests link them."""

    def __init__(self, fd: int, position: int, limit: int) -> None:
        """Look at the plain segment `fd` from offset `position` up to `limit`. Raises ReadFailed."""
        self._fd = fd
        rows = _heads(fd, position, limit)
        rows = rows[np.argsort(rows[:, DIGEST], kind="stable")]
        linked = np.zeros(len(rows), np.bool_)
        if (last := _last_digest(fd)) is not None:
            _lead_back(rows, last, linked)
        self._linked = np.sort(rows[linked, OFFSET])
        rows = rows[np.lexsort((rows[:, OFFSET], rows[:, PREVIOUS]))]
        self._names, self._named = rows[:, PREVIOUS].copy(), rows[:, OFFSET].copy()
        """The digests that frames name as `previous`, in order, and the offsets of these frames."""

    def behind(self, position: int) -> Iterator[int]:
        """Offsets behind `position` where a frame is believed if it verifies, in order. Raises ReadFailed.

        Each is looked up when it is taken: a segment may be damaged in every place.
        """
        damaged = int.from_bytes(read_at(self._fd, 8, position), "little", signed=True)
        first = int(np.searchsorted(self._names, damaged))
        behind = int(np.searchsorted(self._names, damaged, "right")) if damaged else first
        last = position
        for offset in heapq.merge(
            _above(self._linked, position), _above(self._named[first:behind], position)
        ):
            if offset > last:
                last = offset
                yield offset


def _above(offsets: npt.NDArray[np.int64], position: int) -> Iterator[int]:
    """Those of some offsets, in order, that are above `position`."""
    return map(int, offsets[np.searchsorted(offsets, position, "right") :])


def _heads(fd: int, position: int, limit: int) -> Rows:
    position = (position + 7) & ~7
    table, parts = np.empty((_ROWS, 3), np.int64), [np.empty((0, 3), np.int64)]
    while position + HEAD_BYTES <= limit:
        data = np.frombuffer(read_at(fd, min(_CHUNK_BYTES, limit - position), position), np.uint8)
        if len(data) < HEAD_BYTES:
            break
        found = _collect(Address(address_of(data) - position), position, position + len(data), limit, table)
        parts.append(table[:found].copy())
        position += (len(data) - HEAD_BYTES + 8) & ~7
    return np.concatenate(parts)


def _last_digest(fd: int) -> int | None:
    """The digest of the last frame, by the footer; None without a footer. Raises ReadFailed."""
    try:
        header = decode_header(read_at(fd, HEADER_BYTES, 0), "")
    except BadSpool:
        return None
    footer = decode_footer(footer_of(fd), header)
    return None if footer is None else int(footer[0]["digest"].astype(np.int64))
