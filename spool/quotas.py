"""Quotas of topics: who has more undelivered than its share, as the shared page tells the appender.

    page word QUOTAS        how many topics are over their quota; 0: the appender looks no further
              QUOTA_TOPICS  how many have one
              FRONTIER      of the deliverer: it has read so far, and knows what is open below
    from QUOTA_ROWS on, a row of 48 words for each topic:
        0 over: 1 or 0      1 since, ns      2 undelivered, bytes      3 quota, bytes      4 bytes of the name
        8 of the deliverer: messages open below FRONTIER               16 the name

A topic is over its quota from the quota on, and until it has a tenth less.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from spool.fullness import over_quota
from spool.layout import Layout
from spool.page import QUOTA_ROW, Field, Page
from spool.scan import Chunk
from spool.tally import Tally

log = logging.getLogger("bruce.keeper")

LOOK_S = 0.2
OVER, SINCE, BACKLOG, ALLOWED, NAME_BYTES, OPEN, NAME = 0, 1, 2, 3, 4, 8, 16


def row_at(number: int) -> int:
    """The word at which the row of a topic begins."""
    return int(Field.QUOTA_ROWS) + number * QUOTA_ROW


def publish_open(page: Page, place: int, counts: npt.NDArray[np.int64]) -> None:
    """The deliverer's side: what is open of each topic below the sequence `place`."""
    for number, count in enumerate(counts.tolist()):
        page.words[row_at(number) + OPEN] = count
    page.words[Field.FRONTIER] = place


class Quotas:
    """The keeper's side."""

    def __init__(self, layout: Layout, page: Page, quotas: Mapping[bytes, float], max_bytes: int) -> None:
        self._page, self._names = page, sorted(quotas)
        self._tally = Tally(layout, self._names) if quotas else None
        self._looked_at = 0.0
        words = page.words
        words[[Field.QUOTAS, Field.QUOTA_TOPICS]] = 0
        for number, name in enumerate(self._names):
            row = words[row_at(number) :][:QUOTA_ROW]
            row[[OVER, BACKLOG]] = 0
            row[ALLOWED], row[NAME_BYTES] = int(quotas[name] * max_bytes), len(name)
            row[NAME:].view(np.uint8)[: len(name)] = np.frombuffer(name, np.uint8)
        words[Field.QUOTA_TOPICS] = len(self._names)

    def add(self, first: int, chunk: Chunk) -> None:
        """These frames were committed, of the segment that begins with sequence `first`."""
        if self._tally:
            self._tally.add(first, chunk)

    def look(self) -> None:
        """Find out who is over, and say so to the appender."""
        if self._tally is None or time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        words = self._page.words
        frontier, floor = int(words[Field.FRONTIER]), int(words[Field.FLOOR])
        above, mean = self._tally.above(floor, max(frontier, floor))
        over = 0
        for number, name in enumerate(self._names):
            row = words[row_at(number) :][:QUOTA_ROW]
            row[BACKLOG] = above[number] + row[OPEN] * mean[number]
            is_over = over_quota(int(row[BACKLOG]), int(row[ALLOWED]), before=bool(row[OVER]))
            if is_over != bool(row[OVER]):
                self._say(name, row, is_over=is_over)
            row[OVER] = is_over
            over += is_over
        words[Field.QUOTAS] = over

    def _say(self, name: bytes, row: npt.NDArray[np.int64], *, is_over: bool) -> None:
        shown = name.decode(errors="replace")
        if is_over:
            row[SINCE] = time.time_ns()
            log.error("topic %s has used up its quota; new messages of it are discarded", shown)
        else:
            log.warning("topic %s has room again; new messages of it are accepted", shown)
