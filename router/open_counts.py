"""How much of the topics with a quota is read and not resolved, for the keeper to sum up.

The keeper knows what is stored behind the live reader, and cannot tell which messages before it are resolved;
the router knows that of no others. Counted by message, as outcomes come; near enough for a share. Where
nothing is left below the reader the count begins anew, so that no error stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from router.room import Mask
from spool.record import Batch, Topics

Report = Callable[[int, npt.NDArray[np.int64]], None]


class OpenCounts:
    """Open messages below the live reader's place, by topic."""

    def __init__(self, names: Sequence[bytes], topics: Topics, report: Report) -> None:
        """`report` is told the reader's place, and int64[len(names)]: the open messages below it."""
        self._numbers = np.array([topics.add(name) for name in names], np.int64)
        self._names, self._open = list(names), np.zeros(len(names), np.int64)
        self._report = report

    def note_read(self, batch: Batch, rows: Mask) -> None:
        """The live reader came by these messages; those in `rows` are open."""
        self._open += self._counts(batch.topic[rows])

    def note_resolved(self, topics: npt.NDArray[np.int32]) -> None:
        """Messages that it had come by are resolved, with these numbers of topics."""
        self._open = np.maximum(0, self._open - self._counts(topics))

    def note_discarded(self, topic: bytes, count: int) -> None:
        """Messages that it had come by were discarded."""
        if topic in self._names:
            row = self._names.index(topic)
            self._open[row] = max(0, self._open[row] - count)

    def report(self, place: int, floor: int) -> None:
        """Tell how it stands, with the live reader at `place`."""
        if floor >= place:
            self._open[:] = 0
        self._report(place, self._open)

    def _counts(self, topics: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        counts = np.bincount(topics, minlength=int(self._numbers.max()) + 1)
        return counts[self._numbers].astype(np.int64)
