"""Looks at one spool again and again: what happens between two looks, as rates.

`Watcher` takes a report for each look, and `Top` keeps the rates that `brucectl top` shows. `Looks` adds
what the status page and the metrics show: stage utilisation, latencies of the last minute, the history.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from cli.status.report import take_report
from spool.format.wire import Reason, reason_name
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.options import SpoolOptions
from spool.read.backlog import Arrivals, Backlog, Counts
from spool.shared.histogram import Histogram, read_latency, read_sizes
from spool.shared.runtime import find_shared_state
from spool.shared.state import STEP_S, Field, Sample, read_shared_state, samples
from spool.storage.ownership import believed
from spool.words import utc
from status.figures import Counted, Figures, Latency, Point, Stage, TopicFlow
from status.health import Limits, complaints
from status.report import MOST_TOPICS, OTHERS, Report, Snapshot, WorkerView
from status.witness import Witness

Name = TypeVar("Name")
KEPT = 120
"""Rates of one thing that are kept: two minutes."""
REASONS = tuple(reason_name(reason) for reason in Reason if reason)
_GAP = 2.5
"""Steps between two samples; if there are more, no process was counting."""
WINDOW_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_BROKER = "rdk:broker"
"""librdkafka calls the thread of broker 7 rdk:broker7, and those of no broker yet rdk:broker-1."""
STAGES = {
    "ingest": "datagram",
    **{name: name for name in ("stream", "kafka", "ack", "keeper", "status")},
}
"""Stages by role, for the workers whose process is one stage."""


class Order(StrEnum):
    """The order of topics."""

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
    discarded: Counts = field(default_factory=Counts)
    """After acceptance, by topic, of the spool's whole life."""


class Watcher:
    """Looks at one spool again and again. A context manager."""

    def __init__(
        self,
        directory: Path,
        options: SpoolOptions | None,
        witness: Witness | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._options, self._clock = directory, options, clock
        self._witness = witness
        layout = Layout(directory)
        self._backlog, self._arrivals = Backlog(layout), Arrivals(layout)

    def look(self) -> Look:
        """Look. Raises NoSpool, BadSpool, OSError."""
        report, waiting = take_report(self._directory, self._backlog, self._options, self._witness)
        arrived = self._arrivals.count(waiting.end)
        return Look(self._clock(), report, arrived, waiting.discarded)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._backlog.close()
        self._arrivals.close()


class Top:
    """The rates after some looks, for `brucectl top`."""

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
    """Add to each flow what came and went in `seconds`; remove flows that have nothing left to show."""
    for name in set(flows) | set(into) | set(out):
        flow = flows.setdefault(name, Flow())
        flow.into.append(into.get(name, 0) / seconds)
        # A worker that was restarted counts from 0.
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


class TopicTotals:
    """Messages by topic since the first look; counts only grow, and a topic keeps its row."""

    def __init__(self, most: int) -> None:
        """`most`: topics with a row of their own, those that come first; the others share a row."""
        self.received, self.delivered = Counts(), Counts()
        self._most, self._names = most, set[bytes]()
        self._arrived = Counts()
        """Since the last look that told the backlog exactly."""
        self._before: tuple[Counts, Counts] | None = None
        """Messages that waited at that look, and that had been discarded."""
        self._gone = Counts()

    def add(self, look: Look) -> None:
        """Take in another look."""
        for name, count in look.arrived.most_common():
            self.received[self._row(name)] += count
        self._arrived.update(look.arrived)
        if look.report.topics_estimated:
            return
        waiting, discarded = Counts(dict(look.report.topics)), look.discarded
        if self._before:
            gone = self._arrived.copy()
            for more, less in zip(self._before, (waiting, discarded), strict=True):
                gone.update(more)
                gone.subtract(less)
            self._add_gone(gone)
        self._before = waiting, discarded
        self._arrived.clear()

    def _add_gone(self, gone: Counts) -> None:
        for name, count in gone.items():
            if count:
                row = self._row(name)
                # For a moment it may fall: the log and the marks are read one after the other.
                self._gone[row] += count
                self.delivered[row] = max(self.delivered[row], self._gone[row])

    def _row(self, name: bytes) -> bytes:
        if name not in self._names and len(self._names) < self._most:
            self._names.add(name)
        return name if name in self._names else OTHERS


class Looks:
    """Looks at one spool again and again; what happens between two looks are rates."""

    def __init__(
        self,
        directory: Path,
        inputs: Iterable[str],
        witness: Witness | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inputs`: those that are open; they are shown before they have had a message."""
        self._directory, self._configured = directory, frozenset(inputs)
        self._watcher = Watcher(directory, None, witness)
        self._top, self._totals = Top(), TopicTotals(MOST_TOPICS)
        self._inputs, self._busy = Meter(clock), Meter(clock)
        self._recent = Recent(clock)

    def look(self) -> Figures:
        """Look. Raises NoSpool, BadSpool, OSError."""
        look = self._watcher.look()
        self._top.add(look)
        self._totals.add(look)
        report, top = look.report, self._top
        snapshot, waiting = report.snapshot, dict(report.topics)
        spent = cpu_seconds(snapshot.workers)
        busy = self._busy.rates(spent)
        shared = self._read_page()
        counted = None if shared is None else _counted(shared)
        return Figures(
            report=report,
            unhealthy=complaints(report, Limits()),
            stages=[Stage(name, round(spent[name], 2), _rounded(busy[name], 3)) for name in spent],
            inputs={name: _rounded(rate) for name, rate in self._inputs.rates(self._taken(snapshot)).items()},
            out_per_second=_out(top.all),
            topics=[_topic(top, name, waiting.get(name, 0)) for name in top.sorted_topics()],
            brokers={broker.id: _out(top.brokers.get(broker.id)) for broker in snapshot.brokers},
            points=[] if shared is None else _history(shared, snapshot),
            step_s=STEP_S,
            reasons=REASONS,
            started=None if shared is None else utc(int(shared[Field.STARTED_NS])),
            latency=self._recent.note(counted.latency) if counted else Latency(None, None),
            counted=counted,
            received_by_topic=dict(self._totals.received),
            delivered_by_topic=dict(self._totals.delivered),
        )

    def _taken(self, snapshot: Snapshot) -> Mapping[str, float]:
        """Messages by input, refused ones too; what comes to the second socket goes on through the first."""
        acks = snapshot.acknowledgements
        found = {one.input: one.stored + one.refused for one in snapshot.inputs}
        shown = {name: count for name, count in found.items() if count or name in self._configured}
        return shown | ({} if acks is None else {"ack": acks.taken})

    def _read_page(self) -> np.ndarray | None:
        spool, boot = read_identity(Layout(self._directory)), boot_id()
        return read_shared_state(find_shared_state(self._directory, spool, boot), believed(self._directory))


def _history(shared: np.ndarray, snapshot: Snapshot) -> list[Point]:
    found = samples(shared)
    if not found:
        return []
    # Messages received and delivered since the newest sample.
    came = snapshot.received - found[-1].received
    went = int(shared[Field.DELIVERED]) - found[-1].delivered
    return list(_points(found, snapshot.backlog - came + went))


def _counted(shared: np.ndarray) -> Counted:
    words = shared[Field.HANDED_OVER :][:5].tolist()
    sizes, latency = read_sizes(shared[Field.SIZES :]), read_latency(shared[Field.LATENCY :])
    return Counted(sizes, latency, *words)


class Meter:
    """Totals by name, and how fast they grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at, self._before = clock(), dict[str, float]()

    def rates(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """The growth a second since the last call; None for a name that is new, or whose total was reset."""
        now, before = self._clock(), self._before
        seconds = max(now - self._at, 1e-3)
        self._at, self._before = now, dict(totals)
        return {
            name: (total - before[name]) / seconds if before.get(name, total + 1) <= total else None
            for name, total in totals.items()
        }


def _rounded(rate: float | None, digits: int = 1) -> float | None:
    return None if rate is None else round(rate, digits)


def _out(flow: Flow | None) -> float | None:
    return round(flow.out[-1], 1) if flow and flow.out else None


def _topic(top: Top, name: bytes, backlog: int) -> TopicFlow:
    flow = top.topics.get(name, Flow())
    return TopicFlow(name, round(flow.into[-1], 1) if flow.into else None, _out(flow), backlog)


def _points(found: list[Sample], backlog: int) -> Iterator[Point]:
    """Rates between samples; the backlog is reckoned backwards, from that of the newest."""
    offset_s = time.time() - time.monotonic()
    newest = found[-1]
    for old, new in pairwise(found):
        seconds = (new.time_ns - old.time_ns) / 1e9
        if not 0 < seconds < _GAP * STEP_S:
            continue
        received, delivered, discarded = (
            round((b - a) / seconds, 1) for a, b in zip(old[1:4], new[1:4], strict=True)
        )
        since = newest.received - new.received - (newest.delivered - new.delivered)
        since -= newest.discarded - new.discarded
        yield Point(new.time_ns / 1e9 + offset_s, received, delivered, discarded, max(0, backlog - since))


class Recent:
    """The last minute of a histogram that only grows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks = deque[tuple[float, tuple[int, ...]]]()

    def note(self, histogram: Histogram) -> Latency:
        """Take in another look; the quantiles of what came in since the first look of the window."""
        now, looks = self._clock(), self._looks
        if looks and any(new < old for new, old in zip(histogram.counts, looks[-1][1], strict=True)):
            # A new page counts from 0.
            looks.clear()
        looks.append((now, histogram.counts))
        # One look from before the window's beginning stays: it is what the window begins with.
        while len(looks) > 1 and now - looks[1][0] >= WINDOW_S:
            looks.popleft()
        counts = [new - old for new, old in zip(histogram.counts, looks[0][1], strict=True)]
        return Latency(quantile(histogram.bounds, counts, 0.5), quantile(histogram.bounds, counts, 0.99))


def quantile(bounds: tuple[float, ...], counts: list[int], share: float) -> float | None:
    """As Prometheus' histogram_quantile has it: linear within a bucket, the last bound for what is beyond it.

    None without values.
    """
    rank = share * sum(counts)
    if rank == 0:
        return None
    below = 0
    for at, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = bounds[at - 1] if at else 0.0
            return low + (bounds[at] - low) * (rank - below) / count
        below += count
    return bounds[-1]


def cpu_seconds(workers: Iterable[WorkerView]) -> dict[str, float]:
    """Processor time by stage, since each was started; of those that live.

    The delivery worker is two kinds of stages: the router, which reads, routes and marks, and a thread for
    each broker, which sends.
    """
    found = {}
    for worker in workers:
        with suppress(OSError):
            if worker.role in STAGES:
                found[STAGES[worker.role]] = _spent(Path(f"/proc/{worker.pid}"))
            elif worker.role == "delivery":
                found |= dict(_delivery(worker.pid))
    return found


def _delivery(pid: int) -> Iterator[tuple[str, float]]:
    yield "router", _spent(Path(f"/proc/{pid}/task/{pid}"))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            number = (thread / "comm").read_text().strip().removeprefix(_BROKER)
            if number.isdecimal():
                yield f"broker-{number}", _spent(thread)


def _spent(directory: Path) -> float:
    """User and system time, in seconds, from the fields behind the name in stat."""
    fields = (directory / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
