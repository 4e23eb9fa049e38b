"""Counting outcomes: discards by topic, lines about them in the log, open messages by topic.

`DiscardNames` chooses the name under which a discard is counted: that of its topic for the first topics that
came, else `(others)`. Any program may send any number of names. So one compiled loop reads the names from the
messages themselves, and counts only so many apart.

`DiscardLog` writes lines for discards, so that none goes unreported, and a flood of them does not flood the
log.

`OpenCounts` counts the messages of topics with a quota that are read and not resolved, for the keeper to sum
up. The keeper knows the messages stored after the live reader, and cannot tell which messages before it are
resolved; the router knows that of those alone. It counts by message, as outcomes come, which is exact enough
for a share. When nothing is left below the reader the count begins again at 0, so that no error stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from router.timing import DISCARD_LINES_S
from spool.format.batch import Batch, Topics
from spool.format.topic_table import OTHERS, enter
from spool.format.wire import (
    DEAD_LETTERED,
    TOPIC_SIZE_BYTES,
    load_be16,
    reason_name,
    topic_at,
)
from spool.marks.discarded import MOST_COUNTS
from spool.native.digest import digest_function
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of
from spool.throttle import Throttle
from spool.words import clipped, counted, reason_in_words

_log = logging.getLogger("bruce.router")

MOST_TOPICS = 200
"""So many pairs have lines of their own; the others share one a reason."""

Report = Callable[[int, npt.NDArray[np.int64]], None]
"""Gets the position of the live reader, and int64[topics]: the open messages below it."""


@kernel
def _number(
    base: Address,
    rows: npt.NDArray[np.int64],
    start: int,
    datagram_at: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
    digest: int,
    slots: npt.NDArray[np.int64],
    homes: npt.NDArray[np.uint8],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: Address,
    welcome: npt.NDArray[np.int64],
) -> int:
    """Number the topics of `rows` from `start` on, in `out`; up to which the table (`slots` ...) has room.

    `rows` int64[n]: of `datagram_at` int64[messages]. `out` int64[n].
    """
    for i in range(start, len(rows)):
        at = topic_at(Address(base + datagram_at[rows[i]]))
        name, size = Address(at + TOPIC_SIZE_BYTES), load_be16(at)
        number = enter(name, size, digest, slots, homes, seed, words, names, arena, arena_at, welcome)
        if number < 0:
            return i
        out[i] = number
    return len(rows)


class DiscardNames:
    """The names of one deliverer."""

    def __init__(self, known: Iterable[bytes] = (), most: int = MOST_COUNTS) -> None:
        """`known`: counted by their names already, in order. `most`: names."""
        self._topics = Topics()
        self._topics.bound(most)
        for name in known:
            if len(self._topics.names) <= most:
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
                    out,
                    digest_function(),
                    *self._topics.table,
                )
            )
            if done == len(rows):
                return out
            self._topics.make_room()

    def number(self, name: bytes) -> int:
        """The number of one name."""
        return self._topics.number(name)

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


class DiscardLog:
    """Counts between lines. `flush` now and then, and `close`, so that the last ones are logged, too."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = Throttle(DISCARD_LINES_S, clock=clock)
        self._open: dict[tuple[int, bytes], tuple[int, int]] = {}
        """By reason and topic: the first message that no line counts yet, and how many there are."""

    def note(self, reason: int, topic: bytes, sequence: int, messages: int) -> None:
        """So many were discarded, `sequence` being the first of them."""
        key = (reason, topic)
        if len(self._open) >= MOST_TOPICS or not self._throttle.has_room(key, MOST_TOPICS):
            key = key if key in self._open else (reason, b"")
        first, before = self._open.get(key, (sequence, 0))
        self._open[key] = first, before + messages
        if self._throttle.due(key):
            self._log(key)

    def flush(self) -> None:
        """Log what is due."""
        for key in list(self._open):
            if self._throttle.due(key):
                self._log(key)

    def close(self) -> None:
        """Log all that no line counts yet."""
        for key in list(self._open):
            self._log(key)

    def _log(self, key: tuple[int, bytes]) -> None:
        reason, topic = key
        first, messages = self._open.pop(key)
        where = "went to the dead-letter topic" if reason & DEAD_LETTERED else "discarded"
        name = clipped(topic.decode(errors="replace"))
        why = reason_in_words(reason_name(reason)) + (f", topic {name}" if name else "")
        _log.error("%s from %d on %s: %s", counted(messages, "message"), first, where, why)


class OpenCounts:
    """Open messages below the live reader's position, by topic."""

    def __init__(self, names: Sequence[bytes], topics: Topics, report: Report) -> None:
        """`names`: the topics with a quota."""
        self._numbers = np.array([topics.add(name) for name in names], np.int64)
        self._names, self._open = list(names), np.zeros(len(names), np.int64)
        self._report = report

    def note_read(self, batch: Batch, rows: npt.NDArray[np.bool_]) -> None:
        """The live reader has read these messages; those in `rows` are open."""
        self._open += self._counts(batch.topic[rows])

    def note_resolved(self, topics: npt.NDArray[np.int32]) -> None:
        """Messages that it had read are resolved, with these numbers of topics."""
        self._open = np.maximum(0, self._open - self._counts(topics))

    def note_discarded(self, topic: bytes, count: int) -> None:
        """Messages that it had read were discarded."""
        if topic in self._names:
            row = self._names.index(topic)
            self._open[row] = max(0, self._open[row] - count)

    def report(self, read_position: int, low_watermark: int) -> None:
        """Report the counts, with the live reader at `read_position`."""
        if low_watermark >= read_position:
            self._open[:] = 0
        self._report(read_position, self._open)

    def _counts(self, topics: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        counts = np.bincount(topics, minlength=int(self._numbers.max()) + 1)
        return counts[self._numbers].astype(np.int64)
