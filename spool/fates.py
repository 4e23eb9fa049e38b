"""What became of single messages, for somebody who waits for them: the marks, read again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import CHUNK_BYTES, CHUNK_MESSAGES
from spool.environment import LMDB_REFUSES, Opened, look_at, open_tables
from spool.layout import Layout
from spool.lock import is_in_use
from spool.lost import reasons, split
from spool.marks import MARK_KEY, Marks
from spool.row import matches

OPEN, DELIVERED, UNTOLD = -1, 0, -2
"""Not resolved yet; acknowledged by Kafka; resolved, and what is known of its segment is gone."""


def _stay_with(directory: Path) -> Opened:
    # Always with a place in the lock file: whoever writes may begin later.
    return open_tables(directory, readonly=True, lock=True)


class Fates(Marks):
    """The marks of a spool whose deliverer comes and goes."""

    def __init__(
        self, directory: Path, catalogue: Catalogue, opener: Callable[[Path], Opened] = _stay_with
    ) -> None:
        """Raises LMDB_REFUSES while there is nothing to read."""
        self.catalogue = catalogue
        self._env, self._db = opener(directory)

    def of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """By message: OPEN, DELIVERED, UNTOLD, or the Reason that it was discarded for."""
        fates = np.full(len(sequences), OPEN, np.int64)
        with self._env.begin() as txn:
            # The snapshot first: a row that is dropped in it belongs to a segment that is gone by now.
            self.catalogue.refresh()
            below = sequences < self._floor(txn)
            segments = self.catalogue.segments
            # What lies before the first segment, and not below the floor, has gone since the snapshot: the
            # next one will say so.
            fates[below] = UNTOLD
            for place, bits, rows in split(segments, sequences):
                resolved = below[rows] | (self._bits(txn, *place)[bits] > 0)
                fates[rows[resolved]] = reasons(txn, self._db[b"gone"], place, bits[resolved])
        return fates

    def _bits(self, txn: Any, info: SegmentInfo, chunk: int) -> npt.NDArray[np.uint8]:
        """uint8[CHUNK_MESSAGES]: 1 where a message of this chunk is resolved."""
        key = MARK_KEY.pack(info.number, chunk)
        row = txn.get(key, db=self._db[b"mark"])
        if row is None or not matches(key, row, info.identity):
            return np.zeros(CHUNK_MESSAGES, np.uint8)
        return np.unpackbits(np.frombuffer(row, np.uint8, CHUNK_BYTES), bitorder="little")


def open_fates(layout: Layout) -> Fates | None:
    """The marks, once there is somebody who writes them, and so has found them fit to be read."""
    if not is_in_use(layout.delivery / "lock.mdb"):
        return None
    try:
        fates = Fates(layout.delivery, Catalogue(layout))
    except LMDB_REFUSES:
        return None
    if fates.tells_discards:
        return fates
    # Of an earlier release; whoever writes them adds what is missing, right now.
    fates.close()
    return None


def fates_now(layout: Layout, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """What `Fates.of` says at this instant, whether anybody delivers or not. Nothing is written.

    None when there are no marks, or they cannot be read, or are of a release that kept no fates.
    """
    try:
        fates = Fates(layout.delivery, Catalogue(layout), look_at)
    except LMDB_REFUSES:
        return None
    try:
        return fates.of(sequences) if fates.tells_discards else None
    except LMDB_REFUSES:
        return None
    finally:
        fates.close()
