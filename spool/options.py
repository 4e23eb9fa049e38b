"""The options of a spool, the `[spool]` table of bruce.toml; and by them, without I/O, when a spool is full.

A spool becomes full when it has no segment left beyond the one in use, and is full until it has `LEAST` of
them again: one that becomes free for a moment must not let it accept for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

MIB = 1 << 20
INTERVAL, ALWAYS = "interval", "always"
LEAST = 2
"""Segments beyond the one in use with which a full spool accepts again; fewer if never so many fit."""
_RESERVE, _RESERVE_SHARE = 256 * MIB, 20
_ROOM_SHARE = 16
_QUOTA_MARGIN = 10


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """How a spool is laid out and how soon it is synced."""

    directory: Path
    """The directory of the spool, on a local disk: a network filesystem cannot promise what sync promises."""

    max_bytes: int = 4096 * MIB
    """Bytes that segments may take, delivered ones included. When nothing delivered is left to remove,
    the spool is full: see when_full. Footers of segments that were not full yet come on top: at most a
    thirtieth of what these take, with thousands of topics in each."""

    min_free_bytes: int | None = None
    """Bytes that segments leave free on their filesystem, for index and marks, and for others. When others
    take them, delivered segments go, and then the spool is full. Danger: with 0 a full disk can prevent the
    marks from being written, so that delivered messages are sent twice."""

    when_full: str = "discard_newest"
    """How a full spool treats messages. `discard_newest`: new ones are discarded and counted. `block`: they
    wait in the socket, and so do their senders. `discard_oldest`: the oldest undelivered messages are
    discarded and counted, a sixteenth of max_bytes at a time; one that still awaited its acknowledgement may
    be in Kafka all the same. Danger: `block` stops every program that writes to the socket."""

    keep_delivered_bytes: int | None = None
    """Bytes of delivered segments that are kept for replay, at most; 0 keeps none. They go in any case
    when max_bytes needs the room, the oldest first, and before anything that is not delivered."""

    keep_delivered_hours: int | None = None
    """Hours that a delivered segment is kept, at most, counted while bruce runs and not by the wall
    clock."""

    segment_bytes: int = 64 * MIB
    """Bytes of one segment, preallocated. At least 256 KiB; max_bytes must hold four of them."""

    recompress: bool = True
    """Pack segments with zstd that have been full, and not delivered, for a minute: messages that wait for
    Kafka then take a fraction of the disk. The keeper does it while processors are idle. Reading a packed
    segment takes 64 MiB of memory meanwhile."""

    sync: str = INTERVAL
    """When written messages are synced: "interval", by the two keys below, or "always": at once, each sync
    taking along the messages written during the one before. With "always" they are delivered sooner by the
    interval, and power loss takes those written during a sync; a slow disk is kept busy with syncs alone."""

    sync_interval_ms: int = 20
    """Longest time that an accepted message waits for its sync, in ms, on a disk that keeps up.
    Power loss takes messages that are not synced; none is delivered before it is."""

    sync_bytes: int = 8 * MIB
    """Unsynced bytes that start a sync before the interval is over."""

    max_topics: int = 10_000
    """Topics that the spool delivers to, at most. Names that Kafka does not have may take half of it. Beyond
    that their messages are discarded and counted (too_many_topics), until some of the others are given up and
    make room. Each topic that Kafka has costs the delivery worker up to 30 KB of memory."""

    quotas: Mapping[bytes, float] = field(default_factory=dict)
    """The share of max_bytes that undelivered messages of the topic may take. When they do, new ones of this
    topic are discarded and counted, until there is a tenth less; other topics go on. Enforced to within a few
    MiB and a fraction of a second. Not given: no limit."""


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
    """How a full spool treats new messages: `[spool] when_full`, lower case."""

    DISCARD_NEWEST = 0
    BLOCK = 1
    DISCARD_OLDEST = 2


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of disk: those that segments and spares take, and the filesystem's free and total bytes."""

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
    """Why the spool is full, or ROOM, with `spares` segments beyond the one in use.

    `before`: the previous result. `found`: what a further segment lacks. `least`: with so many spares it is
    not full any more.
    """
    if spares >= least:
        return Full.ROOM
    return found or before if before or spares < 1 else Full.ROOM


def give_up(open_segments: Sequence[tuple[int, int]], want_bytes: int) -> int | None:
    """The sequence below which to give up messages, so that segments of `want_bytes` can go; None: none can.

    `open_segments`: (first sequence, bytes) of those that are not delivered, in order, the last one in use.
    """
    freed = 0
    for (_, size), (following, _) in pairwise(open_segments):
        freed += size
        if freed >= want_bytes:
            return following
    return open_segments[-1][0] if len(open_segments) > 1 else None


def over_quota(backlog: int, quota: int, *, before: bool) -> bool:
    """Whether a topic with so many undelivered bytes is over its quota; `before`: whether it was before."""
    return backlog > quota - max(1, quota // _QUOTA_MARGIN) if before else backlog >= quota


def want(max_bytes: int, segment_bytes: int) -> int:
    """Bytes that are given up at a time: enough not to be full at once again."""
    return max(LEAST * segment_bytes, max_bytes // _ROOM_SHARE)
