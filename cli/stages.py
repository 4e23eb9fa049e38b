"""How busy each stage of the way is: its processor time, by the process or thread that does the work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from status.snapshot import WorkerView

_TICKS = os.sysconf("SC_CLK_TCK")
_BROKER = "rdk:broker"
"""librdkafka calls the thread of broker 7 rdk:broker7, and those of no broker yet rdk:broker-1."""
STAGES = {"ingest": "datagram", "stream": "stream", "ack": "ack", "keeper": "keeper", "status": "status"}
"""By role, whose process is one stage."""


def cpu_seconds(workers: Iterable[WorkerView]) -> dict[str, float]:
    """Processor time by stage, since each was started; of those that live.

    The delivery worker is the router, and a thread a broker: what reading, routing and marking takes is told
    apart from what sending takes.
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
    """User and system time, in seconds, by what stands behind the name in stat."""
    fields = (directory / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
