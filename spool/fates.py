"""What became of single messages, for somebody who waits for them: the marks, read again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.layout import Layout
from spool.lock import is_in_use
from spool.marks import CHUNK_BYTES, CHUNK_MESSAGES, LMDB_REFUSES, MARK_KEY, Marks
from spool.row import matches

OPEN, DELIVERED, UNTOLD = -1, 0, -2
"""Not resolved yet; acknowledged by Kafka; resolved, and what is known of its segment is gone."""


class Fates(Marks):
    """The marks of a spool whose deliverer comes and goes."""

    def __init__(self, directory: Path, catalogue: Catalogue) -> None:
        """Raises LMDB_REFUSES while there is nothing to read."""
        self.catalogue = catalogue
        # Always with a place in the lock file: whoever writes may begin later.
        self._open(directory, readonly=True, lock=True)

    def of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """By message: OPEN, DELIVERED, UNTOLD, or the Reason that it was discarded for."""
        fates = np.full(len(sequences), OPEN, np.int64)
        with self._env.begin() as txn:
            # The snapshot first: a row that is dropped in it belongs to a segment that is gone by now.
            self.catalogue.refresh()
            for row in self._resolved(txn, sequences):
                fates[row] = self._fate(txn, int(sequences[row]))
        return fates

    def _resolved(self, txn: Any, sequences: npt.NDArray[np.int64]) -> Iterator[int]:
        """The rows of the messages that are resolved."""
        below = sequences < self._floor(txn)
        yield from np.flatnonzero(below).tolist()
        segments = self.catalogue.segments
        if not segments:
            return
        firsts = np.array([info.first_sequence for info in segments])
        # What lies before the first segment has gone since the snapshot: the next one will say so.
        above = np.flatnonzero(~below & (sequences >= firsts[0]))
        segment = np.searchsorted(firsts, sequences[above], side="right") - 1
        chunk, bit = np.divmod(sequences[above] - firsts[segment], CHUNK_MESSAGES)
        for at, number in set(zip(segment.tolist(), chunk.tolist(), strict=True)):
            rows = np.flatnonzero((segment == at) & (chunk == number))
            resolved = self._bits(txn, segments[at], number)[bit[rows]] > 0
            yield from above[rows[resolved]].tolist()

    def _bits(self, txn: Any, info: SegmentInfo, chunk: int) -> npt.NDArray[np.uint8]:
        """uint8[CHUNK_MESSAGES]: 1 where a message of this chunk is resolved."""
        key = MARK_KEY.pack(info.number, chunk)
        row = txn.get(key, db=self._db[b"mark"])
        if row is None or not matches(key, row, info.identity):
            return np.zeros(CHUNK_MESSAGES, np.uint8)
        return np.unpackbits(np.frombuffer(row, np.uint8, CHUNK_BYTES), bitorder="little")

    def _fate(self, txn: Any, sequence: int) -> int:
        """Of a message that is resolved."""
        key = sequence.to_bytes(8, "big")
        row = txn.get(key, db=self._db[b"lost"])
        if row is not None and matches(key, row, self._info(sequence).identity):
            return int.from_bytes(row[:2], "little")
        segments = self.catalogue.segments
        return DELIVERED if segments and sequence >= segments[0].first_sequence else UNTOLD


def open_fates(layout: Layout) -> Fates | None:
    """The marks, once there is somebody who writes them, and so has found them fit to be read."""
    if not is_in_use(layout.delivery / "lock.mdb"):
        return None
    try:
        return Fates(layout.delivery, Catalogue(layout))
    except LMDB_REFUSES:
        return None
