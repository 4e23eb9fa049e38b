"""Under which names discards are counted: those of the first topics that came, and `(others)`.

Anybody may send any name, as many as he likes. So the names are read by one compiled loop, from the messages
themselves, and only so many are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from spool.digest import digest_function
from spool.discarded import MOST_COUNTS
from spool.kernel import address_of, kernel
from spool.record import Batch, Topics
from spool.topics import OTHERS, enter
from spool.wire import load_be16


@kernel
def _number(
    base: int,
    rows: npt.NDArray[np.int64],
    start: int,
    datagram_at: npt.NDArray[np.int64],
    keyed: npt.NDArray[np.bool_],
    out: npt.NDArray[np.int64],
    digest: int,
    slots: npt.NDArray[np.int64],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: int,
    welcome: npt.NDArray[np.int64],
) -> int:
    """Number the topics of `rows` from `start` on, in `out`; up to which the table (`slots` ...) has room."""
    for i in range(start, len(rows)):
        at = base + datagram_at[rows[i]] + 10
        if keyed[rows[i]]:
            at += 4
        number = enter(at + 2, load_be16(at), digest, slots, seed, words, names, arena, arena_at, welcome)
        if number < 0:
            return i
        out[i] = number
    return len(rows)


class DiscardNames:
    """The names of one deliverer."""

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        """`known`: counted by their names already, in order."""
        self._topics = Topics()
        self._topics.bound(MOST_COUNTS)
        for name in known:
            if len(self._topics.names) <= MOST_COUNTS:
                self._topics.add(name)

    def numbers(self, batch: Batch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the name of each of these rows."""
        out, done = np.empty(len(rows), np.int64), 0
        while True:
            done = int(
                _number(
                    address_of(batch.data),
                    rows,
                    done,
                    batch.datagram_at,
                    batch.keyed,
                    out,
                    digest_function(),
                    *self._topics.table,
                )
            )
            if done == len(rows):
                return out
            self._topics.make_room()

    def name(self, number: int) -> bytes:
        """The name that has this number."""
        return self._topics.names[number]

    def count(self, numbers: npt.NDArray[np.int64]) -> dict[bytes, int]:
        """How many there are of each name; `(others)` come last, so that they take no name its row."""
        found, counts = np.unique(numbers, return_counts=True)
        named = {self.name(number): n for number, n in zip(found.tolist(), counts.tolist(), strict=True)}
        if OTHERS in named:
            named[OTHERS] = named.pop(OTHERS)
        return named
