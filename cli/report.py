"""Everything that `status` shows: a snapshot, rates from the shared page, the backlog by topic, and room."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from cli.room import utc
from cli.snapshot import take_snapshot
from spool.backlog import Backlog, Place, Waiting
from spool.disk import allocated_bytes, free_bytes
from spool.fullness import Space
from spool.history import Change, change_over
from spool.identity import read_identity
from spool.layout import Layout
from spool.options import SpoolOptions
from spool.own import believed
from spool.page import Field, read_page, read_text
from spool.recovery import boot_id
from spool.retention import undelivered
from spool.room import capacity, seconds_until_full, waiting_bytes
from spool.runtime import find_page
from status.report import LastTrouble, OldestView, RateView, Report, RoomView

MINUTE_S, QUARTER_S = 60.0, 900.0
UNDER_WAY_S = 10.0
"""While no message has waited for longer, the spool does not fill: what comes goes."""


def look_once(directory: Path, options: SpoolOptions | None) -> Report:
    """`take_report`, for who looks once."""
    backlog = Backlog(Layout(directory))
    try:
        return take_report(directory, backlog, options)[0]
    finally:
        backlog.close()


def take_report(directory: Path, backlog: Backlog, options: SpoolOptions | None) -> tuple[Report, Place]:
    """Look at a spool, whether or not its daemon lives; the report, and how far the log was looked at.

    `options`: those of the spool, where they are known; a daemon that lives says itself how much room it has.
    Raises NoSpool, BadSpool, OSError.
    """
    layout = Layout(directory)
    snapshot = take_snapshot(directory)
    waiting = backlog.look()
    now_ns = time.time_ns()
    spool, boot = read_identity(layout), boot_id()
    page = read_page(find_page(directory, spool, boot), believed(directory))
    counting = page if snapshot.workers else None
    minute, quarter = (_change(counting, seconds) for seconds in (MINUTE_S, QUARTER_S))
    limits = _limits(counting, options)
    oldest = _oldest(waiting, now_ns)
    waits = oldest is not None and oldest.age_seconds > UNDER_WAY_S
    report = Report(
        taken=utc(now_ns),
        snapshot=snapshot,
        minute=_rate(minute),
        quarter_hour=_rate(quarter),
        topics=tuple(waiting.topics.items()),
        topics_estimated=waiting.estimated,
        oldest=oldest,
        room=limits and _room(layout, waiting, *limits, minute, quarter, waits=waits),
        last_trouble=_last_trouble(page),
        marked=waiting.marked,
    )
    return report, waiting.end


def _change(page: np.ndarray | None, seconds: float) -> Change | None:
    return None if page is None else change_over(page, seconds, time.monotonic_ns())


def _rate(change: Change | None) -> RateView | None:
    if change is None:
        return None
    # As exact as that one message in a quarter of an hour is more than none.
    each = (round(n / change.seconds, 4) for n in (change.received, change.delivered, change.discarded))
    return RateView(round(change.seconds, 1), *each)


def _oldest(waiting: Waiting, now_ns: int) -> OldestView | None:
    if waiting.oldest is None:
        return None
    sequence, received_ns = waiting.oldest
    return OldestView(sequence, utc(received_ns), round(max(0, now_ns - received_ns) / 1e9, 1))


def _limits(page: np.ndarray | None, options: SpoolOptions | None) -> tuple[int, int | None] | None:
    """max_bytes and min_free_bytes, as the daemon has them, else as configured."""
    if page is not None and page[Field.MAX_BYTES]:
        least = int(page[Field.MIN_FREE_BYTES])
        return int(page[Field.MAX_BYTES]), None if least < 0 else least
    return (options.max_bytes, options.min_free_bytes) if options else None


def _room(
    layout: Layout,
    waiting: Waiting,
    max_bytes: int,
    min_free_bytes: int | None,
    minute: Change | None,
    quarter: Change | None,
    *,
    waits: bool,
) -> RoomView:
    """`waits`: whether anything does, rather than being under way."""
    used = sum(map(allocated_bytes, layout.segments.iterdir()))
    most = capacity(Space(used, *free_bytes(layout.segments)), max_bytes, min_free_bytes)
    taken = waiting_bytes(
        undelivered(layout, waiting.floor), waiting.end.sequence, waiting.end.position, waiting.floor
    )
    left = max(0, most - taken)
    seconds = seconds_until_full(left, minute, quarter) if waits else None
    return RoomView(most, taken, None if seconds is None else round(seconds / 3600, 2))


def _last_trouble(page: np.ndarray | None) -> LastTrouble | None:
    text = None if page is None else read_text(page, Field.LAST_TROUBLE)
    if page is None or not text:
        return None
    return LastTrouble(text, utc(int(page[Field.LAST_TROUBLE_NS])))
