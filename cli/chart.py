"""Figures as bars and lines of text, an eighth of a character exact."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
_LEVELS = " ▁▂▃▄▅▆▇█"


def bars(values: npt.NDArray[np.int64], width: int = WIDTH) -> list[str]:
    """One bar each, the longest `width` characters long; what is not nothing shows."""
    most = max(int(values.max(initial=0)), 1)
    eighths = np.ceil(values * (8 * width / most)).astype(int).tolist()
    return [(_FULL * (n // 8) + _EIGHTHS[n % 8]).rstrip() for n in eighths]


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` values, a character each, the highest a full one; what is not nothing shows."""
    shown = list(values)[-width:] if width > 0 else []
    most = max(shown, default=0) or 1
    return "".join(_LEVELS[-int(-max(value, 0) * 8 // most)] for value in shown).rjust(width)
