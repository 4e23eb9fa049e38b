"""Memory and descriptors of each process of bruce over time, and when they count as flat.

Each role is judged by its process that lived longest, if it lived LEAST_LIFE_S at least: a line through the
last two thirds of its samples may rise, over that time, by a tenth of their median, or by 16 MiB of memory or
4 descriptors, whichever is more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bruce_process import Bruce

PAUSE_S = 2.0
LEAST_LIFE_S = 600.0
SHARE = 0.1
LEAST_RISE = {"memory_kib": 16 << 10, "descriptors": 4}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one process."""

    at_s: float
    role: str
    pid: int
    memory_kib: int
    """Resident anonymous memory: its own, without mapped files and shared memory."""
    descriptors: int


class Sampler(threading.Thread):
    """Samples the workers until it is stopped."""

    def __init__(self, bruce: Bruce) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self._bruce, self._begun, self._over = bruce, time.monotonic(), threading.Event()

    def run(self) -> None:
        while not self._over.wait(PAUSE_S):
            now = time.monotonic() - self._begun
            for role, pid in self._bruce.workers().items():
                try:
                    self.samples.append(Sample(now, role, pid, _memory_kib(pid), _descriptors(pid)))
                except (FileNotFoundError, ProcessLookupError, StopIteration):
                    continue

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()


def _memory_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def longest_lives(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """By role, the samples of the process that lived longest."""
    lives: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        lives.setdefault((sample.role, sample.pid), []).append(sample)
    best: dict[str, list[Sample]] = {}
    for (role, _), life in lives.items():
        if role not in best or _length(life) > _length(best[role]):
            best[role] = life
    return best


def _length(life: Sequence[Sample]) -> float:
    return life[-1].at_s - life[0].at_s


def judge_growth(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """A row for each role and measure: how far its line rises, and how far it may."""
    rows = []
    for role, life in sorted(longest_lives(samples).items()):
        late = [s for s in life if s.at_s >= life[0].at_s + _length(life) / 3]
        for measure, least in LEAST_RISE.items():
            values = np.array([getattr(sample, measure) for sample in late], float)
            rise = _rise(np.array([s.at_s for s in late]), values)
            limit = max(SHARE * float(np.median(values)), least)
            rows.append(
                {
                    "role": role,
                    "measure": measure,
                    "lived_s": round(_length(life)),
                    "median": float(np.median(values)),
                    "rise": round(rise, 1),
                    "limit": limit,
                    "judged": _length(life) >= LEAST_LIFE_S,
                    "flat": rise <= limit,
                }
            )
    return rows


def _rise(at: np.ndarray, values: np.ndarray) -> float:
    """How far the line through the values rises from the first to the last; 0 for too few."""
    if len(set(at.tolist())) <= 1:
        return 0.0
    return float(np.polyfit(at, values, 1)[0] * (at[-1] - at[0]))
