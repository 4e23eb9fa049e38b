"""The figures of page, metrics and API: a report, and the rates at this moment.

The shape of /api/v1/flow:

    {"version": 1, "taken": TIME, "release": TEXT, "started": null or TIME,
     "stages": [{"stage", "cpu_seconds", "busy"}],
     "inputs": [{"input", "messages_per_second"}], "out_per_second",
     "latency": {"median", "p99"},
     "topics": [{"topic", "in_per_second", "out_per_second", "backlog"}],
     "brokers": [{"id", "out_per_second"}]}

and of /api/v1/history:

    {"version": 1, "step_seconds": 5, "points": [[TIME in s, received, delivered, discarded, backlog]]}

`release` is that of bruce, `started` when the daemon was. `inputs` are those that are open, and others
that have had messages. Rates are messages a second since the look before; an unknown rate is null. `busy` is
the share of one processor that a stage took. `latency` is the time from reception to acknowledgement, in
seconds, of messages that were acknowledged in the last minute; null when none were. A point's rates are those
of the `step_seconds` before it, its backlog is in messages; there is an hour of them at most. A topic that is
not UTF-8 is in base64 under `topic_base64`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

from spool.shared.histogram import Histogram
from status.report import MOST_TOPICS, Complaint, Report, named

VERSION = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A process or thread on the way of a message."""

    stage: str
    """datagram, stream, ack, keeper, router, broker-N, status."""
    cpu_seconds: float
    """Since it was started."""
    busy: float | None
    """Share of a processor, of late."""


@dataclass(frozen=True, slots=True)
class Latency:
    """From reception to acknowledgement, in seconds, of late; None when nothing was acknowledged."""

    median: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the shared state, since that was made."""

    sizes: Histogram
    """Of messages that were stored, in bytes."""
    latency: Histogram
    """From reception to acknowledgement, in seconds."""
    handed_over: int
    """Messages given to the producer."""
    metadata_ns: int
    """When Kafka's metadata came last, ns since the epoch; 0: never yet."""
    metadata_changed_ns: int
    metadata_answers: int = 0
    """How often they came, since the page was made."""
    metadata_failures: int = 0


@dataclass(frozen=True, slots=True)
class TopicFlow:
    """A topic at this moment."""

    topic: bytes
    in_per_second: float | None
    out_per_second: float | None
    backlog: int


class Point(NamedTuple):
    """A moment of the last hour."""

    time: float
    """Seconds since the epoch."""
    received: float
    """Messages a second, as are the next two."""
    delivered: float
    discarded: float
    backlog: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One look."""

    report: Report
    unhealthy: list[Complaint]
    stages: list[Stage]
    inputs: dict[str, float | None]
    """Messages a second, by input."""
    out_per_second: float | None
    topics: list[TopicFlow]
    brokers: dict[int, float | None]
    """Messages acknowledged a second, by broker."""
    points: list[Point]
    step_s: float
    """Between two points, in seconds."""
    reasons: tuple[str, ...]
    """All for which messages can be discarded, whether some were or not."""
    started: str | None = None
    """When the daemon was, as 2026-11-21T17:00:00Z."""
    latency: Latency = Latency(None, None)
    counted: Counted | None = None
    """None without a daemon."""
    received_by_topic: Mapping[bytes, int] = field(default_factory=dict)
    """Messages stored since the first look, of at most MOST_TOPICS topics and OTHERS."""
    delivered_by_topic: Mapping[bytes, int] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        """As `brucectl status --json` prints it."""
        return self.report.as_json(self.unhealthy)

    def witness(self) -> dict[str, Any] | None:
        """The verdict of the witness, as status.witness has it; None where none is configured."""
        view = self.report.witness
        return view.as_json(self.report.taken) if view else None

    def flow(self) -> dict[str, Any]:
        """This moment."""
        return {
            "version": VERSION,
            "taken": self.report.taken,
            "release": release(),
            "started": self.started,
            "stages": [asdict(stage) for stage in self.stages],
            "inputs": [{"input": name, "messages_per_second": rate} for name, rate in self.inputs.items()],
            "out_per_second": self.out_per_second,
            "latency": asdict(self.latency),
            "topics": [
                {
                    **named(flow.topic),
                    "in_per_second": flow.in_per_second,
                    "out_per_second": flow.out_per_second,
                    "backlog": flow.backlog,
                }
                for flow in self.topics[:MOST_TOPICS]
            ],
            "brokers": [{"id": number, "out_per_second": rate} for number, rate in self.brokers.items()],
        }

    def history(self, after: float = 0.0) -> dict[str, Any]:
        """The last hour, or its points after a time in seconds since the epoch."""
        points = [[round(p.time, 1), *p[1:]] for p in self.points if p.time > after]
        return {"version": VERSION, "step_seconds": self.step_s, "points": points}


@functools.cache
def release() -> str:
    """The release of bruce that runs."""
    return version("bruce-spool")
