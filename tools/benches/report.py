"""Figures: how they are shown, and where they are kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_WHOLE_FROM = 1000
_COLUMNS = ("figure", "measured", "unit", "baseline", "ratio", "required", "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. With a baseline, the ratio to it counts."""

    name: str
    values: Sequence[float]
    """One of each repetition; the median counts."""
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    """The limit of the ratio, or of the figure itself without a baseline."""
    baseline: Sequence[float] = ()
    remark: str = ""

    @property
    def value(self) -> float:
        return float(statistics.median(self.values))

    @property
    def ratio(self) -> float | None:
        """Median to median, in one run."""
        return self.value / float(statistics.median(self.baseline)) if self.baseline else None

    @property
    def met(self) -> bool | None:
        """Whether it is within its limit; None without one."""
        counts = self.value if self.ratio is None else self.ratio
        if self.at_least is not None:
            return counts >= self.at_least
        return None if self.at_most is None else counts <= self.at_most

    @property
    def required(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def row(self) -> tuple[str, ...]:
        """The cells of _COLUMNS."""
        base = _number(statistics.median(self.baseline)) if self.baseline else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return (self.name, _number(self.value), self.unit, base, ratio, self.required, verdict)


@dataclass(slots=True)
class Results:
    """The file that benches write to, by name of the bench."""

    path: Path
    found: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, figures: Iterable[Figure], options: dict[str, Any]) -> None:
        """Keep the figures of one bench, in place of those of its last run."""
        if self.path.exists():
            self.found = json.loads(self.path.read_text())
        self.found[name] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": {"processors": os.cpu_count(), "kernel": platform.release()},
            "options": {key: str(value) for key, value in options.items()},
            "figures": [
                {**asdict(f), "value": f.value, "ratio": f.ratio, "required": f.required, "met": f.met}
                for f in figures
            ],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=2, default=float) + "\n")


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print one table, and the remarks under it."""
    rows = [_COLUMNS, *(figure.row() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    print(f"\n{title}")
    for row in rows:
        cells = [
            c.ljust(w) if i in (0, 2) else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
    for figure in figures:
        if figure.remark:
            print(f"  {figure.name}: {figure.remark}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"
