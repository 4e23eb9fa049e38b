"""Faults that the tool must find."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from spool.catalogue import Catalogue
from spool.changes import CHUNK_BYTES, Changes
from spool.layout import Layout
from spool.marks import Marks

NUMBER = 7
"""The message."""


def lose_message(layout: Layout) -> None:
    """Call a message of the first segment delivered, which nobody delivers."""
    bitmap = np.zeros(CHUNK_BYTES, np.uint8)
    bitmap[NUMBER >> 3] |= 1 << (NUMBER & 7)
    with closing(Marks(layout.delivery, Catalogue(layout))) as marks:
        marks.commit(Changes(0, chunks={(1, 0): bitmap}))


def forget_marks(layout: Layout) -> None:
    """Lose what was delivered of a spool that nobody has open."""
    for name in ("data.mdb", "lock.mdb"):
        (layout.delivery / name).unlink(missing_ok=True)
