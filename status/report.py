"""What an operator asks of a bruce: the shape of `brucectl status --json`, which other tools rely on.

    {"version": 1, "taken": TIME, "healthy": true or false,
     "unhealthy": [{"condition", "sentence"}],
     "spool" ... "held": as in status.snapshot,
     "rates": {"minute", "quarter_hour": null or {"seconds", "received", "delivered", "discarded"}},
     "topics": [{"topic", "backlog"}], "topics_estimated": true or false,
     "oldest": null or {"sequence", "received", "age_seconds"},
     "room": null or {"capacity_bytes", "waiting_bytes", "hours_until_full"},
     "last_trouble": null or {"sentence", "seen"}}

Times are UTC. Rates are messages a second over the `seconds` that are known, null where no daemon has been
counting; a topic that is not UTF-8 stands in base64 under `topic_base64`. `topics` are those with a backlog,
in the order of it; when they are `topics_estimated`, their sum is exact and each of them is not. `oldest` is
the message that has waited longest. `capacity_bytes` is what undelivered messages may take by max_bytes and
min_free_bytes, null where neither the daemon nor the configuration tells these; `hours_until_full` is null
while they do not grow. `last_trouble` is why nothing could be sent when that was so last, in this run of the
host; `trouble` is why nothing can be sent now.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any

from status.snapshot import Snapshot

VERSION = 1


@dataclass(frozen=True, slots=True)
class RateView:
    """Messages a second."""

    seconds: float
    """Over how long."""
    received: float
    delivered: float
    discarded: float


@dataclass(frozen=True, slots=True)
class OldestView:
    """The message that has waited longest."""

    sequence: int
    received: str
    """As 2026-11-21T17:00:00Z."""
    age_seconds: float


@dataclass(frozen=True, slots=True)
class RoomView:
    """Room for what waits."""

    capacity_bytes: int
    waiting_bytes: int
    hours_until_full: float | None
    """At the present rate; None while it does not grow."""


@dataclass(frozen=True, slots=True)
class LastTrouble:
    """Why nothing could be sent, when that was so last."""

    sentence: str
    seen: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """A condition for which a spool is called unhealthy."""

    condition: str
    """One word for programs; see status.health."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """A snapshot and what follows from it."""

    taken: str
    snapshot: Snapshot
    minute: RateView | None
    quarter_hour: RateView | None
    topics: tuple[tuple[bytes, int], ...]
    """(topic, messages that wait), those with most first."""
    topics_estimated: bool
    oldest: OldestView | None
    room: RoomView | None
    last_trouble: LastTrouble | None
    marked: bool
    """False: there are marks, and they cannot be read."""

    def as_json(self, unhealthy: list[Complaint]) -> dict[str, Any]:
        """The documented shape."""
        return {
            "version": VERSION,
            "taken": self.taken,
            "healthy": not unhealthy,
            "unhealthy": [asdict(one) for one in unhealthy],
            **self.snapshot.as_json(),
            "rates": {"minute": _or_null(self.minute), "quarter_hour": _or_null(self.quarter_hour)},
            "topics": [{**named(topic), "backlog": count} for topic, count in self.topics],
            "topics_estimated": self.topics_estimated,
            "oldest": _or_null(self.oldest),
            "room": _or_null(self.room),
            "last_trouble": _or_null(self.last_trouble),
        }


def _or_null(view: RateView | OldestView | RoomView | LastTrouble | None) -> dict[str, Any] | None:
    return None if view is None else asdict(view)


def named(topic: bytes) -> dict[str, str]:
    """A topic under its name, or in base64 under another."""
    try:
        return {"topic": topic.decode("utf-8")}
    except UnicodeDecodeError:
        return {"topic_base64": base64.b64encode(topic).decode("ascii")}


def shown_name(topic: bytes) -> str:
    """A topic as a label can have it; bytes that are no UTF-8 are escaped."""
    return topic.decode("utf-8", "backslashreplace")
