"""What a drain tells, at its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drained:
    """What came of it."""

    drained: bool
    """Everything that this was to wait for is delivered, or discarded with a reason."""
    delivered: int
    """Messages, since it began."""
    discarded: int
    left: int
    """Of what this was to wait for."""
    backlog: int
    """All that is left in the spool, messages accepted meanwhile and those of other topics included."""
    seconds: float
    by_daemon: bool
    reachable: bool
    """At the end there was a broker that takes messages, or the time was over before one was asked."""
    trouble: str | None
    """At the end, why nothing could be sent."""
