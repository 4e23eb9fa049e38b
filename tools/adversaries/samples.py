"""Memory and descriptors of every process of a daemon, and how long a sync lets messages wait."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from spool.shared.state import Field
from tools.bruce_process import Bruce

PAUSE_S = 0.02
EVERY = 20
"""Reads of the shared state for each read of memory."""


@dataclass
class Peak:
    """The highest values of one phase."""

    pss_mib: dict[str, float] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    sync_s: float = 0.0
    """Longest time for which messages were written and the synced end did not move."""


class Sampler(threading.Thread):
    """Samples a daemon until it is stopped; `peak` is that of the present phase."""

    def __init__(self, bruce: Bruce, tell: Callable[[np.ndarray], None]) -> None:
        """`tell` gets the words of the shared state, at each sample."""
        super().__init__(name="sampler", daemon=True)
        self.peak = Peak()
        self._tell = tell
        self._bruce, self._over = bruce, threading.Event()
        self._synced, self._since = -1, time.monotonic()

    def begin(self) -> Peak:
        """Begin a phase; its peak."""
        self.peak = Peak()
        return self.peak

    def run(self) -> None:
        number = 0
        while not self._over.wait(PAUSE_S):
            self._look_at_sync()
            if number % EVERY == 0:
                self._look_at_memory()
            number += 1

    def _look_at_sync(self) -> None:
        shared, now = self._bruce.shared(), time.monotonic()
        if shared is None or not self._bruce.pid:
            self._since = now
            return
        self._tell(shared)
        written, synced = int(shared[Field.WRITTEN_SEQUENCE]), int(shared[Field.SYNCED_SEQUENCE])
        if synced != self._synced or written <= synced:
            self._synced, self._since = synced, now
        self.peak.sync_s = max(self.peak.sync_s, now - self._since)

    def _look_at_memory(self) -> None:
        for name, pid in processes(self._bruce).items():
            with contextlib.suppress(OSError, StopIteration):
                peak = self.peak
                peak.pss_mib[name] = max(peak.pss_mib.get(name, 0.0), pss_mib(pid))
                peak.descriptors[name] = max(
                    peak.descriptors.get(name, 0), len(os.listdir(f"/proc/{pid}/fd"))
                )

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        if self.is_alive():
            self.join()


def processes(bruce: Bruce) -> dict[str, int]:
    """{role: pid} of a daemon's processes; children that the shared state does not name are numbered."""
    found = bruce.workers()
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{bruce.pid}/task/{bruce.pid}/children").read_text().split()
        others = sorted({int(child) for child in children} - set(found.values()))
        found |= {f"helper {number}": pid for number, pid in enumerate(others, start=1)}
    return found


def pss_mib(pid: int) -> float:
    """Its share of the memory that it maps."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024
