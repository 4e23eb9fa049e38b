"""Discards in the log: none is passed over in silence, and no flood of them floods the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from spool.wire import DEAD_LETTERED, reason_name

_log = logging.getLogger("bruce.router")

QUIET_S = 10.0
"""Between two lines for the same reason and topic, which then count all in between."""
FLUSH_S = 1.0
"""Between two looks for pairs that make room."""
MOST_TOPICS = 200
"""So many pairs have lines of their own; the others share one a reason."""


@dataclass(slots=True)
class _Count:
    said_at: float
    messages: int = 0
    first: int = 0


class DiscardLog:
    """Counts between lines. `flush` now and then, so that the last ones are said too."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[tuple[int, bytes], _Count] = {}
        self._flushed_at = clock() - FLUSH_S

    def note(self, reason: int, topic: bytes, sequence: int, messages: int) -> None:
        """So many were discarded, `sequence` being the first of them."""
        now = self._clock()
        key = (reason, topic) if (reason, topic) in self._counts or self._has_room() else (reason, b"")
        count = self._counts.setdefault(key, _Count(now - QUIET_S))
        if not count.messages:
            count.first = sequence
        count.messages += messages
        if now - count.said_at >= QUIET_S:
            _say(key, count, now)

    def _has_room(self) -> bool:
        if len(self._counts) >= MOST_TOPICS and self._clock() - self._flushed_at >= FLUSH_S:
            self.flush()
        return len(self._counts) < MOST_TOPICS

    def flush(self) -> None:
        """Say what is due, and forget what is old."""
        self._flushed_at = now = self._clock()
        for key, count in list(self._counts.items()):
            if now - count.said_at < QUIET_S:
                continue
            if count.messages:
                _say(key, count, now)
            else:
                del self._counts[key]


def _say(key: tuple[int, bytes], count: _Count, now: float) -> None:
    reason, topic = key
    where = "went to the dead-letter topic" if reason & DEAD_LETTERED else "discarded"
    name = topic.decode(errors="replace")
    why = f"{reason_name(reason)} {name}".rstrip()
    _log.error("%d messages from %d on %s: %s", count.messages, count.first, where, why)
    count.said_at, count.messages = now, 0
