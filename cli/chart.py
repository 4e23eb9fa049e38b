"""Figures as bars of text, an eighth of a character exact."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


def bars(values: npt.NDArray[np.int64], width: int = WIDTH) -> list[str]:
    """One bar each, the longest `width` characters long; what is not nothing shows."""
    most = max(int(values.max(initial=0)), 1)
    eighths = np.ceil(values * (8 * width / most)).astype(int).tolist()
    return [(_FULL * (n // 8) + _EIGHTHS[n % 8]).rstrip() for n in eighths]
