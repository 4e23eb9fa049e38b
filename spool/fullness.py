"""Whether there is room for one more segment, and when a spool is full: decisions without I/O.

A spool becomes full when it has no segment left beyond the one in use, and is full until it has `LEAST` of
them again: one that becomes free for a moment must not let it accept for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

MIB = 1 << 20
LEAST = 2
"""Segments beyond the one in use with which a full spool accepts again; fewer where never so many fit."""
_RESERVE, _RESERVE_SHARE = 256 * MIB, 20
_ROOM_SHARE = 16
_QUOTA_MARGIN = 10


class Full(IntEnum):
    """Why there is no room for one more segment."""

    ROOM = 0
    """There is."""
    MAX_BYTES = 1
    """Segments take `max_bytes`."""
    RESERVE = 2
    """The filesystem would have less than `min_free_bytes` left."""
    DISK = 3
    """The filesystem has no room, or the quota of its user is used up."""


class WhenFull(IntEnum):
    """What becomes of new messages then: `[spool] when_full`, lower case."""

    DISCARD_NEWEST = 0
    BLOCK = 1
    DISCARD_OLDEST = 2


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of disk: what segments and spares take, what the filesystem has free, how large it is."""

    used: int
    free: int
    size: int


def reserve(configured: int | None, size: int) -> int:
    """Bytes to be left free on a filesystem of `size` bytes."""
    return min(_RESERVE, size // _RESERVE_SHARE) if configured is None else configured


def lack(space: Space, segment_bytes: int, max_bytes: int, min_free_bytes: int) -> Full:
    """Why one more segment may not be allocated; ROOM when it may."""
    if space.used + segment_bytes > max_bytes:
        return Full.MAX_BYTES
    if space.free - segment_bytes < min_free_bytes:
        return Full.RESERVE
    return Full.ROOM


def most_spares(max_bytes: int, segment_bytes: int) -> int:
    """Spares never take more than a quarter of max_bytes, whatever the rate."""
    return max(1, max_bytes // (4 * segment_bytes))


def fullness(before: Full, spares: int, least: int, found: Full) -> Full:
    """What the spool is, with `spares` segments beyond the one in use; `found`: what a further one lacks.

    `least`: with so many it is not full any more.
    """
    if spares >= least:
        return Full.ROOM
    return found or before if before or spares < 1 else Full.ROOM


def give_up(open_segments: Sequence[tuple[int, int]], want_bytes: int) -> int | None:
    """Up to which sequence to give messages up, so that segments of `want_bytes` can go; None: nothing can.

    `open_segments`: (first sequence, bytes) of those that are not delivered, in order, the last one in use.
    """
    freed = 0
    for (_, size), (following, _) in pairwise(open_segments):
        freed += size
        if freed >= want_bytes:
            return following
    return open_segments[-1][0] if len(open_segments) > 1 else None


def over_quota(backlog: int, quota: int, *, before: bool) -> bool:
    """Whether a topic with so many undelivered bytes is over its quota, as it was, or was not, before."""
    return backlog > quota - max(1, quota // _QUOTA_MARGIN) if before else backlog >= quota


def want(max_bytes: int, segment_bytes: int) -> int:
    """Bytes that are given up at a time: enough not to be full at once again."""
    return max(LEAST * segment_bytes, max_bytes // _ROOM_SHARE)
