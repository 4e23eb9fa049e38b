"""Whether bruce lives, and whether it takes messages in: what probes ask every few seconds.

Kafka being away is neither: to hold messages meanwhile is what bruce is for, and no restart would help.
"""

from __future__ import annotations

from dataclasses import dataclass

from status.snapshot import FullView, WorkerView

_INTAKE = ("ingest", "keeper")


@dataclass(frozen=True, slots=True)
class Vital:
    """What the shared page tells at one moment."""

    workers: list[WorkerView]
    full: list[FullView]
    started_ns: int
    """When the daemon was started, in ns since the epoch."""
    held: bool
    """Whether somebody has stopped the intake."""

    def ailments(self) -> list[str]:
        """Why it does not live: a sentence for each process that does not run."""
        if not self.workers:
            return ["no supervisor is running"]
        return [f"the {worker.role} worker is not running" for worker in self.workers if not worker.alive]

    def obstacles(self) -> list[str]:
        """Why it takes no messages in."""
        if not self.workers:
            return self.ailments()
        dead = [worker.role for worker in self.workers if worker.role in _INTAKE and not worker.alive]
        stopped = [f"the {role} worker is not running" for role in dead]
        # A quota is used up by one topic; the others are taken in.
        if self.held:
            stopped.append("brucectl drain --stop-intake holds the intake")
        return stopped + ["the spool is full" for view in self.full if view.topic is None]
