"""Where the status page gets its figures: those of `brucectl status` and `top`, and processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from cli.recent import Recent
from cli.stages import cpu_seconds
from cli.top import Flow, Top, Watcher
from spool.histogram import read_latency, read_sizes
from spool.history import STEP_S, Sample, samples
from spool.identity import read_identity
from spool.layout import Layout
from spool.own import believed
from spool.page import Field, read_page
from spool.recovery import boot_id
from spool.runtime import find_page
from spool.wire import Reason, reason_name
from status.figures import Counted, Figures, Latency, Point, Stage, TopicFlow
from status.health import Limits, complaints
from status.snapshot import Snapshot

REASONS = tuple(reason_name(reason) for reason in Reason if reason)
_GAP = 2.5
"""Steps between two samples beyond which nobody was counting."""


class Looks:
    """Looks at one spool again and again; what happens between two looks are rates."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._watcher = Watcher(directory, None)
        self._top = Top()
        self._inputs, self._busy = Meter(clock), Meter(clock)
        self._recent = Recent(clock)

    def look(self) -> Figures:
        """Look. Raises NoSpool, BadSpool, OSError."""
        look = self._watcher.look()
        self._top.add(look)
        report, top = look.report, self._top
        snapshot, waiting = report.snapshot, dict(report.topics)
        spent = cpu_seconds(snapshot.workers)
        busy = self._busy.rates(spent)
        page = self._read_page()
        counted = None if page is None else _counted(page)
        return Figures(
            report=report,
            unhealthy=complaints(report, Limits()),
            stages=[Stage(name, round(spent[name], 2), _rounded(busy[name], 3)) for name in spent],
            inputs={name: _rounded(rate) for name, rate in self._inputs.rates(_taken(snapshot)).items()},
            out_per_second=_out(top.all),
            topics=[_topic(top, name, waiting.get(name, 0)) for name in top.sorted_topics()],
            brokers={broker.id: _out(top.brokers.get(broker.id)) for broker in snapshot.brokers},
            points=[] if page is None else _history(page, snapshot),
            step_s=STEP_S,
            reasons=REASONS,
            latency=self._recent.note(counted.latency) if counted else Latency(None, None),
            counted=counted,
        )

    def _read_page(self) -> np.ndarray | None:
        spool, boot = read_identity(Layout(self._directory)), boot_id()
        return read_page(find_page(self._directory, spool, boot), believed(self._directory))


def _history(page: np.ndarray, snapshot: Snapshot) -> list[Point]:
    found = samples(page)
    if not found:
        return []
    # What came and went since the newest sample, but for discards.
    came = snapshot.received - found[-1].received
    went = int(page[Field.DELIVERED]) - found[-1].delivered
    return list(_points(found, snapshot.backlog - came + went))


def _counted(page: np.ndarray) -> Counted:
    words = page[Field.HANDED_OVER :][:5].tolist()
    sizes, latency = read_sizes(page[Field.SIZES :]), read_latency(page[Field.LATENCY :])
    return Counted(sizes, latency, *words)


class Meter:
    """Totals by name, and how fast they grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at, self._before = clock(), dict[str, float]()

    def rates(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """What was added a second since the last call; None for what is new, or counts anew."""
        now, before = self._clock(), self._before
        seconds = max(now - self._at, 1e-3)
        self._at, self._before = now, dict(totals)
        return {
            name: (total - before[name]) / seconds if before.get(name, total + 1) <= total else None
            for name, total in totals.items()
        }


def _taken(snapshot: Snapshot) -> Mapping[str, float]:
    """Messages by input, refused ones too; what comes to the second socket goes on through the first."""
    acks = snapshot.acknowledgements
    found = {one.input: one.stored + one.refused for one in snapshot.inputs}
    return found | ({} if acks is None else {"ack": acks.taken})


def _rounded(rate: float | None, digits: int = 1) -> float | None:
    return None if rate is None else round(rate, digits)


def _out(flow: Flow | None) -> float | None:
    return round(flow.out[-1], 1) if flow and flow.out else None


def _topic(top: Top, name: bytes, backlog: int) -> TopicFlow:
    flow = top.topics.get(name, Flow())
    return TopicFlow(name, round(flow.into[-1], 1) if flow.into else None, _out(flow), backlog)


def _points(found: list[Sample], backlog: int) -> Iterator[Point]:
    """Rates between samples; the backlog is told backwards, from that of the newest."""
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
