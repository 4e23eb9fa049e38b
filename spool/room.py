"""How much room a spool has left, in bytes: what undelivered messages take, and what they may take.

Delivered segments and spares are room: they go, or are used, before anything else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from spool.fullness import Space, reserve
from spool.history import Change


def waiting_bytes(segments: Sequence[tuple[int, int]], end: int, end_bytes: int, floor: int) -> int:
    """Bytes that messages at or above `floor` take, and those behind a message that is stuck with them.

    `segments`: (first sequence, bytes of disk) of those that are not delivered, in order, the last one in
    use: of that the log has `end_bytes` up to the sequence `end`. The first counts by the part of it that
    lies above the floor.
    """
    if not segments:
        return 0
    sizes = [size for _, size in segments[:-1]] + [min(end_bytes, segments[-1][1])]
    first, behind = segments[0][0], segments[1][0] if len(segments) > 1 else end
    done = min(max(floor - first, 0), behind - first)
    return sum(sizes) - (sizes[0] * done // (behind - first) if done else 0)


def capacity(space: Space, max_bytes: int, min_free_bytes: int | None) -> int:
    """Bytes that undelivered messages may take, others leaving the filesystem as it is."""
    return max(0, min(max_bytes, space.free + space.used - reserve(min_free_bytes, space.size)))


def seconds_until_full(left: int, minute: Change | None, quarter: Change | None) -> float | None:
    """How long `left` bytes last at the present rate; None when what waits does not grow, or nobody knows.

    By the last minute, so that an outage shows soon, or by the last quarter of an hour where that was faster:
    packing gives room back in waves.
    """
    if not minute or not quarter or minute.waiting_bytes <= 0:
        return None
    return left / max(change.waiting_bytes / change.seconds for change in (minute, quarter))
