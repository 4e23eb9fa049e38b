"""Segments in stock: which to remove, and room for one more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from spool.crash_point import reach
from spool.disk import allocated_bytes, free_bytes, sync_directory
from spool.errors import SpoolFull
from spool.fullness import Full, Space, lack, reserve
from spool.layout import SEGMENT, SENT, Layout
from spool.options import SpoolOptions
from spool.refused import carry_over
from spool.segment import Identity, create_spare

_LACKS = {
    Full.MAX_BYTES: "has reached [spool] max_bytes",
    Full.RESERVE: "would leave less than [spool] min_free_bytes on its filesystem",
}


def removable(named: list[tuple[int, str]]) -> int | None:
    """The first sequence of the delivered segment to remove first; None when there is none."""
    return next((first for first, suffix in named if suffix == SENT), None)


def delivered(named: list[tuple[int, str]], floor: int) -> list[int]:
    """First sequences of the segments that lie wholly below `floor`, and are not yet called sent.

    The last segment is not among them: it is the one being written.
    """
    ends = pairwise(named)
    return [first for (first, suffix), (following, _) in ends if suffix == SEGMENT and following <= floor]


def expired(
    sent: Sequence[tuple[int, int, float]], keep_bytes: int | None, keep_s: float | None
) -> list[int]:
    """First sequences of the delivered segments that need not be kept any longer, the oldest first.

    `sent`: (first sequence, bytes, seconds since it was delivered), in order. None keeps all.
    """
    over = sum(size for _, size, _ in sent) - keep_bytes if keep_bytes is not None else 0
    gone = []
    for first, size, age in sent:
        # In order, without gaps: a segment stays as long as one before it.
        if over <= 0 and (keep_s is None or age < keep_s):
            break
        over -= size
        gone.append(first)
    return gone


def undelivered(layout: Layout, floor: int) -> list[tuple[int, int]]:
    """(first sequence, bytes) of the segments that are not delivered, in order, the last one in use."""
    named = layout.list_segments()
    done = set(delivered(named, floor))
    kept = [first for first, suffix in named if suffix == SEGMENT and first not in done]
    return [(first, allocated_bytes(layout.segment(first))) for first in kept]


class Stock:
    """The segment files of one spool, as their keeper counts them."""

    def __init__(self, layout: Layout, identity: Identity, options: SpoolOptions) -> None:
        self.layout, self.identity, self.options = layout, identity, options
        self.leaving: Callable[[], None] = lambda: None
        """Is called before segments are removed."""

    def used_bytes(self) -> int:
        """Bytes of disk that all segments and spares take."""
        return sum(allocated_bytes(Path(entry.path)) for entry in os.scandir(self.layout.segments))

    def space(self) -> Space:
        """What there is of room. Counted anew each time: a sum that is kept could be wrong for ever."""
        return Space(self.used_bytes(), *free_bytes(self.layout.segments))

    def make_spare(self, number: int) -> None:
        """Allocate one more segment, removing delivered ones to make room. Raises SpoolFull, OSError."""
        while found := self._lacks():
            if not self._remove_one():
                raise SpoolFull(f"{self.layout.directory} {_LACKS[found]}", why=found)
        try:
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)
        except SpoolFull:
            if not self._remove_one():
                raise
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)

    def _lacks(self) -> Full:
        space, options = self.space(), self.options
        least_free = reserve(options.min_free_bytes, space.size)
        return lack(space, options.segment_bytes, options.max_bytes, least_free)

    def _remove_one(self) -> bool:
        first = removable(self.layout.list_segments())
        if first is None:
            return False
        self.remove([first])
        return True

    def remove(self, sent: Iterable[int]) -> None:
        """Remove delivered segments by their first sequences, or the first of them (spool.refused)."""
        self.leaving()
        for first in carry_over(self.layout, list(sent)):
            self.layout.segment(first, SENT).unlink(missing_ok=True)
            reach("retire.removed")
        sync_directory(self.layout.segments)

    def give_back_reserve(self) -> int:
        """Remove delivered segments until the reserve is free again, which others took; how many."""
        count = 0
        while True:
            free, size = free_bytes(self.layout.segments)
            if free >= reserve(self.options.min_free_bytes, size) or not self._remove_one():
                return count
            count += 1

    def sent(self) -> list[tuple[int, int]]:
        """(first sequence, bytes) of the segments called sent, in order."""
        named = [first for first, suffix in self.layout.list_segments() if suffix == SENT]
        return [(first, allocated_bytes(self.layout.segment(first, SENT))) for first in named]

    def retire(self, floor: int) -> int:
        """Call the segments below `floor` sent; how many."""
        done = delivered(self.layout.list_segments(), floor)
        for first in done:
            os.rename(self.layout.segment(first), self.layout.segment(first, SENT))
            reach("retire.named")
        if done:
            sync_directory(self.layout.segments)
        return len(done)
