"""What can be chosen about a spool. The `[spool]` table of bruce.toml, field by field."""

from __future__ import annotations

from dataclasses import dataclass
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
    new messages are discarded and counted until there is room."""

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
