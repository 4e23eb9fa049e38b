"""What `brucectl top` shows: a look each second, and what happened between looks, as rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from cli.report import take_report
from spool.backlog import Arrivals, Backlog, Counts
from spool.layout import Layout
from spool.options import SpoolOptions
from status.report import Report

Name = TypeVar("Name")
KEPT = 120
"""Rates of one thing that are kept: two minutes."""


class Order(StrEnum):
    """What comes first."""

    RATE = "rate"
    BACKLOG = "backlog"
    NAME = "name"


@dataclass(slots=True)
class Flow:
    """Messages a second, the newest last."""

    into: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    out: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def newest(self) -> tuple[float, float]:
        """Into the spool, and out of it."""
        return (self.into[-1] if self.into else 0.0), (self.out[-1] if self.out else 0.0)


@dataclass(frozen=True, slots=True)
class Look:
    """One look. Counts are totals, `arrived` what came in since the look before, by topic."""

    at: float
    """In seconds, on a clock that no one sets."""
    report: Report
    arrived: Counts


class Watcher:
    """Looks at one spool again and again. A context manager."""

    def __init__(
        self, directory: Path, options: SpoolOptions | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._options, self._clock = directory, options, clock
        layout = Layout(directory)
        self._backlog, self._arrivals = Backlog(layout), Arrivals(layout)

    def look(self) -> Look:
        """Look. Raises NoSpool, BadSpool, OSError."""
        report, end = take_report(self._directory, self._backlog, self._options)
        return Look(self._clock(), report, self._arrivals.count(end))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._backlog.close()
        self._arrivals.close()


class Top:
    """What is known after some looks."""

    def __init__(self) -> None:
        self.order = Order.RATE
        self.paused = False
        self.last: Look | None = None
        self.all = Flow()
        self.topics: dict[bytes, Flow] = {}
        self.brokers: dict[int, Flow] = {}

    def add(self, look: Look) -> None:
        """Take in another look."""
        before, self.last = self.last, look
        if before is None:
            return
        seconds = max(look.at - before.at, 1e-3)
        old, new = before.report.snapshot, look.report.snapshot
        self.all.into.append((new.received - old.received) / seconds)
        self.all.out.append(max(0, new.delivered - old.delivered) / seconds)
        acked = {broker.id: broker.acknowledged for broker in old.brokers}
        done = {broker.id: broker.acknowledged - acked.get(broker.id, 0) for broker in new.brokers}
        _grow(self.brokers, {}, done, seconds)
        _grow(self.topics, look.arrived, _gone(before.report, look), seconds)

    def backlog(self) -> dict[bytes, int]:
        """Messages that wait, by topic."""
        return dict(self.last.report.topics) if self.last else {}

    def sorted_topics(self) -> list[bytes]:
        """All that anything is known of, in the order that was asked for."""
        waiting = self.backlog()

        def key(name: bytes) -> tuple[float, bytes]:
            if self.order is Order.NAME:
                return 0.0, name
            rate = max(self.topics[name].newest) if name in self.topics else 0.0
            return -(rate if self.order is Order.RATE else waiting.get(name, 0)), name

        return sorted({*waiting, *self.topics}, key=key)


def _grow(flows: dict[Name, Flow], into: Mapping[Name, int], out: Mapping[Name, int], seconds: float) -> None:
    """Add to each flow what came and went in so many seconds; those of which nothing is left to show go."""
    for name in set(flows) | set(into) | set(out):
        flow = flows.setdefault(name, Flow())
        flow.into.append(into.get(name, 0) / seconds)
        # A worker that was started again counts anew.
        flow.out.append(max(0, out.get(name, 0)) / seconds)
        if not any(flow.into) and not any(flow.out):
            del flows[name]


def _gone(before: Report, look: Look) -> dict[bytes, int]:
    """By topic, what was delivered or discarded between two looks; nothing while that is not known."""
    if before.topics_estimated or look.report.topics_estimated:
        return {}
    old, new = dict(before.topics), dict(look.report.topics)
    return {
        name: old.get(name, 0) + look.arrived[name] - new.get(name, 0) for name in {*old, *new, *look.arrived}
    }
