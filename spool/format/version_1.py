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
from spool.format.frame import (
    BURST,
    CUT,
    KEY,
    LEAST_MESSAGE_BYTES,
    MARK,
    SEQUENCE,
    Tail,
    can_follow,
    padded,
    verify_by,
)
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
def _first_from(ascending: npt.NDArray[np.int64], value: int) -> int:
    """The first of `ascending` int64[n] that is not below `value`: its index, or n."""
    low, high = 0, ascending.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _lead_back(
    rows: Rows, digests: npt.NDArray[np.int64], digest: int, linked: npt.NDArray[np.bool_]
) -> None:
    """Mark the rows that `digest` leads to: its own, the one before that, and so on.

    `rows` int64[n, 3], sorted by digest; `digests` int64[n]: of them; `linked` bool[n].
    """
    for _ in range(rows.shape[0]):
        at = _first_from(digests, digest)
        if at == rows.shape[0] or digests[at] != digest or linked[at]:
            return
        linked[at] = True
        digest = rows[at, PREVIOUS]


@kernel
def find_linked(  # noqa: C901, PLR0913, PLR0917  (a kernel)
    base: Address,
    position: int,
    limit: int,
    end: int,
    after: Tail,
    linked: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    named: npt.NDArray[np.int64],
    digest: int,
) -> tuple[int, int]:
    """As frame.find, among the offsets behind the damage at `position` where a frame is believed.

    `after` int64[TAIL_FIELDS]. `linked` int64[n], `names` int64[m], `named` int64[m]: see Links.
    """
    if position + HEAD_BYTES > limit:
        return -1, 0
    damaged, most = load_i64(base + position), end // LEAST_MESSAGE_BYTES
    one, other = _first_from(linked, position + 1), _first_from(names, damaged)
    while True:
        while other < names.shape[0] and names[other] == damaged and named[other] <= position:
            other += 1
        found = linked[one] if one < linked.shape[0] else end
        if damaged != 0 and other < names.shape[0] and names[other] == damaged:
            found = min(found, named[other])
        if found >= end:
            return -1, 0
        if found + HEAD_BYTES > limit:
            return found, HEAD_BYTES
        position, at = found, Address(base + found)
        one += one < linked.shape[0] and linked[one] == found
        if not can_follow(at, most, after[SEQUENCE], after[BURST]):
            continue
        why = verify_by(at, limit - found, after[MARK], after[KEY], digest)
        if why == 0:
            return found, 0
        whole = HEAD_BYTES + padded(load_u32(at + BODY_BYTES_AT))
        if why == CUT and found + whole <= end:
            return found, whole


class Links:
    """The frames behind an offset of one segment of version 1, as their digests link them."""

    def __init__(self, fd: int, position: int, limit: int) -> None:
        """Look at the plain segment `fd` from offset `position` up to `limit`. Raises ReadFailed."""
        self._fd = fd
        rows, last = _heads(fd, position, limit), _last_digest(fd)
        self.linked = np.empty(0, np.int64)
        """The offsets that the digest of the last frame leads back to."""
        if last is not None:
            by_digest = rows[_order(rows[:, DIGEST].copy())]
            linked = np.zeros(len(rows), np.bool_)
            _lead_back(by_digest, by_digest[:, DIGEST].copy(), last, linked)
            self.linked = np.sort(by_digest[linked, OFFSET])
        order = _order(rows[:, PREVIOUS].copy())
        self.names, self.named = rows[order, PREVIOUS], rows[order, OFFSET]
        """The digests that frames name as `previous`, in order, and the offsets of these frames."""

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The links as `find_linked` takes them."""
        return self.linked, self.names, self.named

    def behind(self, position: int) -> Iterator[int]:
        """Offsets behind `position` where a frame is believed if it verifies, in order. Raises ReadFailed.

        Each is looked up when it is taken: a segment may be damaged in every place.
        """
        damaged = int.from_bytes(read_at(self._fd, 8, position), "little", signed=True)
        first = int(np.searchsorted(self.names, damaged))
        behind = int(np.searchsorted(self.names, damaged, "right")) if damaged else first
        last = position
        for offset in heapq.merge(_above(self.linked, position), _above(self.named[first:behind], position)):
            if offset > last:
                last = offset
                yield offset


def _order(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The order of some values, equal ones in theirs.

    NumPy's order of values that all differ takes a fifth of the time.
    """
    order = np.argsort(values)
    ascending = values[order]
    return np.argsort(values, kind="stable") if (ascending[1:] == ascending[:-1]).any() else order


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
