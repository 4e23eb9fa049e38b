"""Frames of version 1 behind damage: believed if the digest of a frame that bruce wrote leads to them.

Version 1 has no secret, so a sender can put a whole frame into a message. But the digest of a frame depends
on when it was received and on all frames before it, so the sender never knows one that bruce wrote. Two of
these are available behind damage: the one at the head of the damaged frame, which the next frame names as
`previous`; and that of the last frame, in the footer, from which each `previous` leads back to the frame
before it. Frames that neither leads to are not believed, though they verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

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
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, load_i64, load_u16, load_u32
from spool.storage.disk import read_at, read_into

_MARK = OLD_KEYS.mark
_CHUNK_BYTES = 1 << 20
_FIRST_BYTES = 4 << 10
"""Read first, and then twice as much each time: the next frame is near, most often."""
Offsets = npt.NDArray[np.int64]
"""int64[n], of frames, ascending."""
NO_LINKS: Offsets = np.empty(0, np.int64)


@subkernel
def _may_be_frame(at: Address, position: int, end: int) -> bool:
    """Whether a head may be at address `at`, at this offset of a segment that ends at `end`."""
    if load_u32(at + MARK_AT) != _MARK or load_u16(at + HEAD_BYTES_AT) != HEAD_BYTES:
        return False
    body_bytes = load_u32(at + BODY_BYTES_AT)
    fits = body_bytes <= MAX_BODY_BYTES and position + HEAD_BYTES + padded(body_bytes) <= end
    return fits and load_u32(at + COUNT_AT) <= MAX_BURST


@kernel
def _lead_back(
    base: Address, position: int, begin: int, end: int, digest: int, offsets: Offsets
) -> tuple[int, int]:
    """Follow `digest` to the frames that begin in [begin, position), which are in memory.

    `base` is the address where offset 0 of the segment would be, `end` where the segment ends. `offsets`
    int64[n] has room for one in 8 bytes, and receives where the frames begin, the last one first. A frame
    names one that is before it, so each byte is looked at once. Returns (how many, the digest that the last
    of these names).
    """
    found = 0
    while position > begin:
        position -= 8
        at = Address(base + position)
        if load_i64(at) == digest and _may_be_frame(at, position, end):
            offsets[found] = position
            digest = load_i64(at + PREVIOUS_AT)
            found += 1
    return found, digest


@kernel
def _find_named(base: Address, position: int, behind: int, end: int, digest: int) -> int:
    """The first frame that begins in [position, behind) and names `digest` as `previous`; -1: none.

    `base` and `end` are those of _lead_back.
    """
    while position < behind:
        at = Address(base + position)
        if load_u32(at + MARK_AT) == _MARK and load_i64(at + PREVIOUS_AT) == digest:
            if _may_be_frame(at, position, end):
                return position
        position += 8
    return -1


@subkernel
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


@subkernel
def find_linked(  # noqa: C901, PLR0913, PLR0917  (a kernel)
    base: Address, position: int, limit: int, end: int, after: Tail, linked: Offsets, digest: int
) -> tuple[int, int]:
    """As frame.find, among the offsets behind the damage at `position` where a frame is believed.

    `after` int64[TAIL_FIELDS]. `linked` int64[n]: see Links.
    """
    if position + HEAD_BYTES > limit:
        return -1, 0
    damaged, most = load_i64(base + position), end // LEAST_MESSAGE_BYTES
    one = _first_from(linked, position + 1)
    while True:
        following = linked[one] if one < linked.shape[0] else end
        found = -1
        if damaged != 0:
            found = _find_named(base, position + 8, min(following, limit - HEAD_BYTES + 1), end, damaged)
        if found < 0:
            # Behind `limit`, another frame may name it.
            if following + HEAD_BYTES > limit:
                return -1, 0
            found = following
            one += 1
        position, at = found, Address(base + found)
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
        self._fd, self._limit = fd, limit
        self.linked = _linked(fd, position, limit)
        """The offsets that the digest of the last frame leads back to."""

    def behind(self, position: int) -> Iterator[int]:
        """Offsets behind `position` where a frame is believed if it verifies, in order. Raises ReadFailed.

        Each is looked up when it is taken: a segment may be damaged in every place.
        """
        damaged = int.from_bytes(read_at(self._fd, 8, position), "little", signed=True)
        first = int(np.searchsorted(self.linked, position, "right"))
        for following in chain(map(int, self.linked[first:]), (self._limit,)):
            if damaged:
                yield from self._naming(damaged, position, following)
            if following < self._limit:
                yield following
            position = following

    def _naming(self, digest: int, position: int, following: int) -> Iterator[int]:
        """Offsets between these two of frames that name this digest, in order."""
        size, end = _FIRST_BYTES, self._limit
        while (position := position + 8) < min(following, end - HEAD_BYTES + 1):
            data = np.frombuffer(read_at(self._fd, min(size, end - position), position), np.uint8)
            if len(data) < HEAD_BYTES:
                return  # the file has shrunk meanwhile
            base, behind = Address(address_of(data) - position), position + len(data) - HEAD_BYTES + 1
            while (found := _find_named(base, position, min(behind, following), end, digest)) >= 0:
                yield found
                position = found + 8
            position = behind - 1 & ~7
            size = min(2 * size, _CHUNK_BYTES)


def _linked(fd: int, position: int, limit: int) -> Offsets:
    """The offsets, from `position` on, that the digest of the last frame leads back to."""
    digest = _last_digest(fd)
    if digest is None:
        return NO_LINKS
    parts, offsets = [NO_LINKS], np.empty(_CHUNK_BYTES // 8, np.int64)
    data = np.empty(_CHUNK_BYTES + HEAD_BYTES, np.uint8)
    position, behind = (position + 7) & ~7, limit & ~7
    while position < behind:
        begin = max(position, behind - _CHUNK_BYTES)
        got, failed = read_into(fd, data[: limit - begin].data, begin)
        if failed:
            raise failed
        whole = min(behind, begin + (got - HEAD_BYTES + 8 & ~7))
        base = Address(address_of(data) - begin)
        found, digest = _lead_back(base, whole, begin, limit, digest, offsets)
        parts.append(offsets[:found].copy())
        behind = begin
    return np.concatenate(parts)[::-1].copy()


def _last_digest(fd: int) -> int | None:
    """The digest of the last frame, by the footer; None without a footer. Raises ReadFailed."""
    try:
        header = decode_header(read_at(fd, HEADER_BYTES, 0), "")
    except BadSpool:
        return None
    footer = decode_footer(footer_of(fd), header)
    return None if footer is None else int(footer.fields["digest"].astype(np.int64))
