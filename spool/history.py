"""What the last hour was like: samples that the keeper leaves in the shared page, for rates.

They live as long as the page does: a restart of the host, or a clean end of the daemon, begins anew. What
became of messages is counted there by who delivers, since the marks tell it only to who reads them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from spool.page import Field

STEP_S = 5.0
"""Between two samples."""
ROWS = 724
"""An hour, and a little more: the oldest may be being written over."""
_FRESH_S = 4 * STEP_S


class Sample(NamedTuple):
    """Totals at one moment; only their differences mean anything."""

    time_ns: int
    """On a clock that no one sets: CLOCK_MONOTONIC."""
    received: int
    """Datagrams, what was refused included."""
    delivered: int
    discarded: int
    """For whatever reason, at intake or later."""
    waiting_bytes: int
    """Bytes of disk that undelivered messages take."""


WORDS = len(Sample._fields)


class Change(NamedTuple):
    """What happened between two samples."""

    seconds: float
    received: int
    delivered: int
    discarded: int
    waiting_bytes: int


class History:
    """The samples as their one writer has them."""

    def __init__(self, words: np.ndarray, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`words`: those of the mapped page."""
        self._words, self._clock = words, clock
        newest = samples(words)[-1:]
        self._due_ns = newest[0].time_ns + int(STEP_S * 1e9) if newest else 0

    def due(self) -> bool:
        """Whether it is time for another sample."""
        return self._clock() >= self._due_ns

    def note(self, received: int, delivered: int, discarded: int, waiting_bytes: int) -> None:
        """Leave a sample."""
        now, count = self._clock(), int(self._words[Field.HISTORY])
        self._due_ns = now + int(STEP_S * 1e9)
        self._words[_at(count) :][:WORDS] = (now, received, delivered, discarded, waiting_bytes)
        self._words[Field.HISTORY] = count + 1


def change_over(words: np.ndarray, seconds: float, now_ns: int) -> Change | None:
    """What happened in the last `seconds`, or in as much of them as samples tell; None when none do.

    `words`: of a copied page. Of a keeper that has left no sample lately nothing is told.
    """
    rows = samples(words)
    if not rows or now_ns - rows[-1].time_ns > _FRESH_S * 1e9:
        return None
    newest = rows[-1]
    within = [row for row in rows if newest.time_ns - row.time_ns <= (seconds + STEP_S / 2) * 1e9]
    first = within[0]
    if first is newest:
        return None
    differences = (int(b - a) for a, b in zip(first[1:], newest[1:], strict=True))
    return Change((newest.time_ns - first.time_ns) / 1e9, *differences)


def samples(words: np.ndarray) -> list[Sample]:
    """The samples, in order, without the one that may be being written over."""
    count = int(words[Field.HISTORY])
    return [Sample(*words[_at(n) :][:WORDS].tolist()) for n in range(max(0, count - ROWS + 1), count)]


def _at(number: int) -> int:
    return Field.HISTORY + 1 + WORDS * (number % ROWS)
