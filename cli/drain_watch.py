"""A drain beside a daemon: its work is watched, by what it writes down."""

from __future__ import annotations

import time
from typing import Protocol

from cli.drained import Drained
from cli.errors import NobodyListens
from cli.progress import Show
from cli.snapshot import take_snapshot
from dispatch.brokers import State
from ingest.hold import Hold
from spool.catalogue import Catalogue
from spool.errors import SegmentsGone, SpoolBusy
from spool.files import Span
from spool.layout import Layout
from spool.lock import Lock
from spool.record import Topics
from spool.selection import Selection
from spool.sought import Sought, read_resolved
from status.snapshot import Snapshot

LOOK_S = 0.3
"""Between two looks at a daemon's work."""
ABSENCE_S = 10.0
"""A daemon that is being started again is waited for so long."""
HOLD_S = 60.0
"""An intake that has room stops within a second or two; one of an earlier release never does."""


class Goal(Protocol):
    """What is waited for."""

    total: int

    def left(self, now: Snapshot) -> int:
        """How much of it is not done."""


class Everything:
    """All that had been accepted at one moment."""

    def __init__(self, before: Snapshot) -> None:
        self._before, self.total = before, before.backlog

    def left(self, now: Snapshot) -> int:
        """How much of it is not done; how much at least while others come in behind it."""
        before = self._before
        if now.backlog == 0 or now.watermarks.delivered >= before.watermarks.accepted:
            return 0
        done = now.received - now.backlog - (before.received - before.backlog)
        return max(1, before.backlog - max(0, done))


class OfTopics:
    """What of some topics had been accepted at one moment."""

    def __init__(self, layout: Layout, topics: frozenset[bytes], end: int) -> None:
        """`end`: messages below it are meant, and committed."""
        self._layout = layout
        self._sought = seek(layout, topics, end)
        self.total = self._sought.left(read_resolved(layout))

    def left(self, now: Snapshot) -> int:  # noqa: ARG002
        """How much of it is not done."""
        return self._sought.left(read_resolved(self._layout))


def seek(layout: Layout, topics: frozenset[bytes], end: int) -> Sought:
    """The messages of these topics from the floor up to `end`. Raises OSError."""
    while True:
        floor, _ = read_resolved(layout)
        try:
            return _seek(layout, Span(floor, end, topics=topics))
        except SegmentsGone:
            # Delivered, and removed while they were read: the floor lies behind them now.
            continue


def _seek(layout: Layout, span: Span) -> Sought:
    found, reader = Sought(), Selection(Catalogue(layout), Topics(), span)
    try:
        while batch := reader.next():
            found.add(reader.catalogue, batch.sequence[span.rows(batch)])
    finally:
        reader.close()
    return found


class Watch:
    """A daemon at work."""

    def __init__(
        self,
        layout: Layout,
        show: Show,
        deadline: float,
        topics: frozenset[bytes] = frozenset(),
        hold: Hold | None = None,
    ) -> None:
        self._layout, self._show, self._deadline = layout, show, deadline
        self._topics, self._hold = topics, hold
        self._seen = self._started = time.monotonic()

    def run(self, before: Snapshot) -> Drained:
        """Look now and then, until all is done. Raises NobodyListens."""
        goal, now, left = None if self._hold else self._goal(before), before, before.backlog
        while True:
            stopped = self._hold is None or self._hold.stands()
            now = take_snapshot(self._layout.directory)
            self._notice(now.backlog, alive=bool(now.workers))
            if not stopped:
                # What comes until it stops is meant as well.
                goal = None
                self._notice_deaf(now)
            elif goal is None:
                goal = self._goal(now if self._hold else before)
            left = now.backlog if goal is None else goal.left(now)
            if (goal and not left) or time.monotonic() >= self._deadline:
                break
            if goal:
                self._show(max(0, goal.total - left), goal.total, now.trouble or "")
            time.sleep(LOOK_S)
        return Drained(
            drained=goal is not None and left == 0,
            delivered=now.delivered - before.delivered,
            discarded=sum(now.discarded.values()) - sum(before.discarded.values()),
            left=left,
            backlog=now.backlog,
            seconds=time.monotonic() - self._started,
            by_daemon=True,
            reachable=any(broker.state == State.HEALTHY.name.lower() for broker in now.brokers),
            trouble=now.trouble,
        )

    def _goal(self, start: Snapshot) -> Goal | None:
        """What is to be waited for; None while that is not all committed."""
        if not self._topics:
            return Everything(start)
        end = start.watermarks.accepted
        if take_snapshot(self._layout.directory).watermarks.synced < end:
            return None
        return OfTopics(self._layout, self._topics, end)

    def _notice(self, backlog: int, *, alive: bool) -> None:
        """Stop waiting for a daemon that is gone for good."""
        if alive:
            self._seen = time.monotonic()
        if time.monotonic() - self._seen < ABSENCE_S:
            return
        try:
            Lock(self._layout.lock, "draining").release()
        except SpoolBusy:
            self._seen = time.monotonic()
            return
        sentence = (
            f"the daemon ended while {backlog} messages were waiting; drain again to deliver without it"
        )
        raise NobodyListens(sentence, 0)

    def _notice_deaf(self, now: Snapshot) -> None:
        """Stop waiting for an intake that does not stop. Raises NobodyListens."""
        # One without room looks up only when there is some.
        if now.full or not now.workers or time.monotonic() - self._started < HOLD_S:
            return
        raise NobodyListens(
            "the daemon does not stop its intake: it may be of an earlier release, and wants to be restarted",
            0,
        )
