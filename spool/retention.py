"""Segments in stock: which to remove, when to make more, when the spool is full."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from spool.crash_point import reach
from spool.disk import allocated_bytes, sync_directory
from spool.errors import SpoolFull
from spool.layout import SEGMENT, SENT, Layout
from spool.options import SpoolOptions
from spool.segment import Identity, create_spare

AHEAD_S = 6.0
"""Spares last at least this long at the present rate: a disk that stands still must not stop intake."""


def removable(named: list[tuple[int, str]]) -> int | None:
    """The first sequence of the delivered segment to remove first; None when there is none."""
    return next((first for first, suffix in named if suffix == SENT), None)


def delivered(named: list[tuple[int, str]], floor: int) -> list[int]:
    """First sequences of the segments that lie wholly below `floor`, and are not yet called sent.

    The last segment is not among them: it is the one being written.
    """
    ends = pairwise(named)
    return [first for (first, suffix), (following, _) in ends if suffix == SEGMENT and following <= floor]


def most_spares(options: SpoolOptions) -> int:
    """Spares never take more than a quarter of max_bytes, whatever the rate."""
    return max(1, options.max_bytes // (4 * options.segment_bytes))


class Stock:
    """The segment files of one spool, as their keeper counts them."""

    def __init__(self, layout: Layout, identity: Identity, options: SpoolOptions) -> None:
        self.layout, self.identity, self.options = layout, identity, options

    def used_bytes(self) -> int:
        """Bytes of disk that all segments and spares take."""
        return sum(allocated_bytes(Path(entry.path)) for entry in os.scandir(self.layout.segments))

    def make_spare(self, number: int) -> None:
        """Allocate one more segment, removing delivered ones to make room. Raises SpoolFull, OSError."""
        while self.used_bytes() + self.options.segment_bytes > self.options.max_bytes:
            if not self._remove_one():
                raise SpoolFull(f"{self.layout.directory} has reached max_bytes = {self.options.max_bytes}")
        try:
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)
        except SpoolFull:
            if not self._remove_one():
                raise
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)

    def _remove_one(self) -> bool:
        first = removable(self.layout.list_segments())
        if first is None:
            return False
        self.layout.segment(first, SENT).unlink(missing_ok=True)
        reach("retire.removed")
        sync_directory(self.layout.segments)
        return True

    def retire(self, floor: int) -> int:
        """Call the segments below `floor` sent; how many."""
        done = delivered(self.layout.list_segments(), floor)
        for first in done:
            os.rename(self.layout.segment(first), self.layout.segment(first, SENT))
            reach("retire.named")
        if done:
            sync_directory(self.layout.segments)
        return len(done)
