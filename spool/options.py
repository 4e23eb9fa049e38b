"""What can be chosen about a spool. The `[spool]` table of bruce.toml, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
INTERVAL, ALWAYS = "interval", "always"


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """How a spool is laid out and how soon it is synced."""

    directory: Path
    """Where the spool lies. Local disk: a network filesystem cannot promise what sync promises."""

    max_bytes: int = 4096 * MIB
    """Bytes that segments may take, delivered ones included. When nothing delivered is left to remove,
    the spool is full: see when_full. Footers of segments that were not full yet come on top: at most a
    thirtieth of what these take, with thousands of topics in each."""

    min_free_bytes: int | None = None
    """Bytes that segments leave free on their filesystem, for index and marks, and for others. When others
    take them, delivered segments go, and then the spool is full. Danger: with 0 a full disk can keep what
    was delivered from being written down, so that it is sent twice."""

    when_full: str = "discard_newest"
    """What happens without room. `discard_newest`: new messages are discarded and counted. `block`: they
    wait in the socket, and so do their senders. `discard_oldest`: the oldest undelivered messages are
    discarded and counted, a sixteenth of max_bytes at a time; one of them whose acknowledgement was still
    awaited may be in Kafka all the same. Danger: `block` stops every program that writes to the socket."""

    keep_delivered_bytes: int | None = None
    """Bytes of delivered segments that are kept for replay, at most; 0 keeps none. They go in any case
    when max_bytes needs the room, the oldest first, and before anything that is not delivered."""

    keep_delivered_hours: int | None = None
    """Hours that a delivered segment is kept, at most, counted while bruce runs and not by the clock on
    the wall."""

    segment_bytes: int = 64 * MIB
    """Bytes of one segment, preallocated. At least 256 KiB; max_bytes must hold four of them."""

    recompress: bool = True
    """Pack segments with zstd that have been full, and not delivered, for a minute: what waits for Kafka
    takes a fraction of the disk. Done in time that the processors have left. Reading them again takes 64 MiB
    of memory while a segment is read."""

    sync: str = INTERVAL
    """When what was written is synced: "interval", as the two keys below say, or "always": at once, each sync
    taking along what was written during the one before. Messages are then delivered sooner by the interval,
    and power loss takes what one sync lasts; a disk that is slow to sync is kept busy with nothing else."""

    sync_interval_ms: int = 20
    """Longest time that an accepted message waits for its sync, in ms, on a disk that keeps up.
    Power loss takes what is not synced; nothing is delivered before it is."""

    sync_bytes: int = 8 * MIB
    """Unsynced bytes that start a sync before the interval is over."""

    max_topics: int = 10_000
    """Topics that the spool delivers to, at most. Names that Kafka does not have may take half of it. Beyond
    that their messages are discarded and counted (too_many_topics), until some of the others are given up and
    make room. Each topic that Kafka has costs the delivery worker up to 30 KB of memory."""

    quotas: Mapping[bytes, float] = field(default_factory=dict)
    """The share of max_bytes that undelivered messages of the topic may take. When they do, new ones of this
    topic are discarded and counted, until there is a tenth less; others go on. Followed to a few MiB and a
    fraction of a second. Not given: as much as there is."""
