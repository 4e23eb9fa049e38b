"""Which frames of an image were found before, elsewhere in it: remembered by chunk, not by frame.

A frame's digest is seeded with that of the frame before it. So two runs that have a frame in common have in
common all those before it that lie in both: they agree from where the later one begins up to some frame, and
not behind it. One comparison at the first burst that both have tells whether they agree at all; only where
they do, heads are read again. Of a chunk (64 KiB to 1 MiB of frames) a row of 40 bytes is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.disk import read_at
from spool.format import HEAD, HEAD_BYTES, Record
from spool.frame import length_of

_RUN, _FIRST, _LAST, _OFFSET, _FRAMES = range(5)


class Earlier:
    """The chunks that were found so far, in the file `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rows = np.zeros((64, 5), np.int64)
        """A chunk each: number of its run, first and last burst, offset of its first frame, and how many."""
        self._count = self._run = 0
        self._strangers: set[int] = set()
        """Earlier runs with which the present one has nothing more in common."""

    def begin_run(self) -> None:
        """What comes now does not follow what came before."""
        self._run += 1
        self._strangers.clear()

    def note(self, offsets: npt.NDArray[np.int64], heads: Record) -> npt.NDArray[np.bool_]:
        """Which frames of the run's next chunk were there before: bool[n]. Raises OSError.

        `offsets` int64[n] in the file, `heads` HEAD[n], as spool.frames.heads_of has them.
        """
        bursts = heads["burst"].astype(np.int64)
        again = np.zeros(len(heads), np.bool_)
        rows = self._rows[: self._count]
        meets = (rows[:, _FIRST] <= bursts[-1]) & (rows[:, _LAST] >= bursts[0]) & (rows[:, _RUN] != self._run)
        for row in rows[meets]:
            if int(row[_RUN]) not in self._strangers:
                again |= self._common(row, bursts, heads["digest"])
        self._keep(int(bursts[0]), int(bursts[-1]), int(offsets[0]), len(bursts))
        return again

    def _common(
        self, row: npt.NDArray[np.int64], bursts: npt.NDArray[np.int64], digests: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Which of these frames an earlier chunk has, too."""
        common = np.zeros(len(bursts), np.bool_)
        offset = int(row[_OFFSET])
        for _ in range(int(row[_FRAMES])):
            head = np.frombuffer(read_at(self._fd, HEAD_BYTES, offset), HEAD)[0]
            offset, burst = offset + length_of(head), head["burst"].astype(np.int64)
            at = int(np.searchsorted(bursts, burst))
            if at == len(bursts):
                break
            if bursts[at] != burst:
                continue
            if digests[at] != head["digest"]:
                self._strangers.add(int(row[_RUN]))
                break
            common[at] = True
        return common

    def _keep(self, first: int, last: int, offset: int, frames: int) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self._count] = self._run, first, last, offset, frames
        self._count += 1
