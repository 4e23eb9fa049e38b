"""Faults that the tool must find."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES

NUMBER = 7
"""The message."""


def lose_message(layout: Layout) -> None:
    """Mark a message of the first segment as delivered, without delivering it."""
    bitmap = np.zeros(CHUNK_BYTES, np.uint8)
    bitmap[NUMBER >> 3] |= 1 << (NUMBER & 7)
    with closing(Marks(layout.delivery, SegmentList(layout))) as marks:
        marks.commit(Changes(0, chunks={(1, 0): bitmap}))


def forget_marks(layout: Layout) -> None:
    """Remove the marks of a spool that no process has open."""
    for name in ("data.mdb", "lock.mdb"):
        (layout.delivery / name).unlink(missing_ok=True)
