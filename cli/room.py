"""Why there is no room, in words: of the whole spool, or of a topic's quota."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from spool.fullness import Full, WhenFull
from spool.page import QUOTA_ROW, Field
from spool.quotas import ALLOWED, BACKLOG, NAME, NAME_BYTES, OVER, SINCE, row_at
from status.snapshot import FullView

_WHAT = {
    Full.MAX_BYTES: ("max_bytes", "its segments have reached [spool] max_bytes"),
    Full.RESERVE: (
        "min_free_bytes",
        "one more segment would leave less than [spool] min_free_bytes on its filesystem",
    ),
    Full.DISK: ("disk", "its filesystem has no room for one more segment"),
}
_THEN = {
    WhenFull.DISCARD_NEWEST: "new messages are discarded",
    WhenFull.BLOCK: "senders wait",
    WhenFull.DISCARD_OLDEST: "new messages are discarded, since nothing older can be given up",
}


def list_full(page: np.ndarray) -> Iterator[FullView]:
    """What has no room, and since when, as the keeper's words in the page say."""
    why = int(page[Field.FULL])
    if why:
        what, because = _WHAT[Full(why)]
        then = _THEN[WhenFull(int(page[Field.WHEN_FULL]))]
        since = utc(int(page[Field.FULL_SINCE_NS]))
        yield FullView(
            what,
            None,
            since,
            f"the spool is full since {since}: {because}; {then} when the segment in use is full",
        )
    yield from _quotas(page)


def _quotas(page: np.ndarray) -> Iterator[FullView]:
    for number in range(int(page[Field.QUOTA_TOPICS])):
        row = page[row_at(number) :][:QUOTA_ROW]
        if not row[OVER]:
            continue
        topic = row[NAME:].tobytes()[: int(row[NAME_BYTES])].decode(errors="replace")
        since, held, allowed = utc(int(row[SINCE])), int(row[BACKLOG]), int(row[ALLOWED])
        yield FullView(
            "quota",
            topic,
            since,
            f"topic {topic} has used up its quota since {since}: {held:,} bytes of it are undelivered, its "
            f"quota is {allowed:,}; new messages of it are discarded",
        )


def utc(ns: int) -> str:
    """A time in ns since the epoch, as 2026-11-21T17:00:00Z."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
