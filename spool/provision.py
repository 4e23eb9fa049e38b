"""Spares ahead of need, and the word in the shared page that says whether the spool is full."""

from __future__ import annotations

import logging
import math
import time

from spool.crash_point import reach
from spool.disk import free_bytes, is_regular
from spool.errors import SpoolFull
from spool.fullness import LEAST, Full, WhenFull, fullness, give_up, most_spares, want
from spool.layout import SPARE
from spool.page import Field, Page
from spool.retention import Stock, undelivered

log = logging.getLogger("bruce.keeper")

AHEAD_S = 6.0
"""Spares last at least this long at the present rate: a disk that stands still must not stop intake."""
RATE_S = 0.5
EVICTION_S = 30.0
"""So long the delivery worker is given to discard the oldest messages; then the newest are discarded."""
_PATIENCE = 20
"""While there is no room and nothing changes, looking for some may take a twentieth of the time."""

_THEN = {
    WhenFull.DISCARD_NEWEST: "new messages are discarded until there is room",
    WhenFull.BLOCK: "senders wait until there is room",
    WhenFull.DISCARD_OLDEST: "new messages are discarded: there is nothing older to give up",
}


class Provision:
    """The keeper's provision of segments."""

    def __init__(self, stock: Stock, page: Page, number: int) -> None:
        """Offer the spares that are there behind segment `number`."""
        self._stock, self._page = stock, page
        options = stock.options
        self._when_full = WhenFull[options.when_full.upper()]
        self._most = most_spares(options.max_bytes, options.segment_bytes)
        self._least = min(LEAST, self._most)
        self.next_spare = number + 1
        while is_regular(stock.layout.segment(self.next_spare, SPARE)):
            self.next_spare += 1
        self.rate = 0.0
        """Bytes a second."""
        self._counted: int | None = None
        self._seen = (0, 0)
        self._counted_at = self._again_at = self._asked_at = 0.0
        page.words[Field.WHEN_FULL] = self._when_full
        page.words[Field.EVICT] = 0
        self._offer(number)

    def restock(self, written: int, log_bytes: int) -> None:
        """Have spares for AHEAD_S at the present rate; when there is no room, say so to the appender.

        `written`: the number of the segment in use. `log_bytes`: ever written, near enough for a rate.
        """
        ahead = self._ahead(log_bytes)
        if time.monotonic() < self._again_at and self._situation() == self._seen:
            return
        while self.next_spare <= written + ahead:
            started = time.monotonic()
            try:
                self._stock.make_spare(self.next_spare)
            except SpoolFull as error:
                self._lack(error, self.next_spare - 1 - written)
                self._again_at = started + _PATIENCE * (time.monotonic() - started)
                self._seen = self._situation()
                return
            reach("roll.made")
            self.next_spare += 1
            self._offer(written)

    def _situation(self) -> tuple[int, int]:
        """What must change before there can be room: the floor, or the free bytes of the filesystem."""
        free, _ = free_bytes(self._stock.layout.segments)
        return int(self._page.words[Field.FLOOR]), free

    def _ahead(self, log_bytes: int) -> int:
        """Segments to have beyond the one in use."""
        now = time.monotonic()
        if self._counted is None:
            self._counted, self._counted_at = log_bytes, now
        elif now - self._counted_at >= RATE_S:
            self.rate = (log_bytes - self._counted) / (now - self._counted_at)
            self._counted, self._counted_at = log_bytes, now
        ahead = 1 + max(1, math.ceil(self.rate * AHEAD_S / self._stock.options.segment_bytes))
        return min(ahead, self._most)

    def _offer(self, written: int) -> None:
        """Let the appender have the spares; after the spool was full, only when there are enough of them."""
        words, spares = self._page.words, self.next_spare - 1 - written
        before = Full(int(words[Field.FULL]))
        if before and fullness(before, spares, self._least, Full.ROOM):
            return
        words[Field.SPARE] = self.next_spare - 1
        if before:
            log.warning("there is room again; new messages are accepted")
        words[Field.FULL] = Full.ROOM

    def _lack(self, error: SpoolFull, spares: int) -> None:
        """There is no room for one more: ask for some, or say that the spool is full."""
        words = self._page.words
        short = spares < self._least
        if self._when_full is WhenFull.DISCARD_OLDEST and short and self._evict():
            return
        before = Full(int(words[Field.FULL]))
        found = fullness(before, spares, self._least, error.why)
        if found and not before:
            words[Field.FULL_SINCE_NS] = time.time_ns()
            log.error("%s; %s", error, _THEN[self._when_full])
        words[Field.FULL] = found

    def _evict(self) -> bool:
        """Have the oldest messages given up; False when there is nothing to give up, or nobody does it."""
        words, now, options = self._page.words, time.monotonic(), self._stock.options
        floor = int(words[Field.FLOOR])
        if floor >= words[Field.EVICT]:
            asked = want(options.max_bytes, options.segment_bytes)
            limit = give_up(undelivered(self._stock.layout, floor), asked)
            if limit is None or limit <= floor:
                return False
            log.warning("no room: undelivered messages below %d are discarded", limit)
            words[Field.EVICT], self._asked_at = limit, now
        return now - self._asked_at < EVICTION_S
