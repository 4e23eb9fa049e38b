"""Figures as bars and lines of text, an eighth of a character exact."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
_LEVELS = " ▁▂▃▄▅▆▇"
"""Of a line: none as high as the row, so that it does not touch the one above."""


def bars(values: npt.NDArray[np.int64], width: int = WIDTH) -> list[str]:
    """One bar each, the longest `width` characters long; what is not nothing shows."""
    most = max(int(values.max(initial=0)), 1)
    eighths = np.ceil(values * (8 * width / most)).astype(int).tolist()
    return [(_FULL * (n // 8) + _EIGHTHS[n % 8]).rstrip() for n in eighths]


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` values, a character each, by the highest of all; what is not nothing shows."""
    known, levels = list(values), len(_LEVELS) - 1
    most = max(known, default=0) or 1
    shown = known[-width:] if width > 0 else []
    # The highest may come out a little above itself.
    heights = (min(levels, math.ceil(max(value, 0) / most * levels)) for value in shown)
    return "".join(_LEVELS[height] for height in heights).rjust(width)
