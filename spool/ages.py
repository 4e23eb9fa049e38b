"""How long ago segments were delivered, on a clock of the spool's own.

    ages := one line, "clock SECONDS"; a line a segment, "SEQUENCE SECONDS"; the xxh3 of these lines

The clock runs while the keeper does, and stands still meanwhile: neither a wall clock that is set ten years
forth or back nor a day without bruce makes a segment older. A lost file makes all of them new.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from spool.digest import digest
from spool.disk import read_text, write_file
from spool.errors import NotAFile

log = logging.getLogger("bruce.keeper")

MOST_BYTES = 16 << 20
"""Of the file: a line for each of some hundred thousand segments."""
SAVE_S = 60.0
"""A keeper that is killed forgets so much of the clock, at most."""


class Ages:
    """The ages of delivered segments."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._base, self._since = _read(path)
        self._started = self._saved_at = clock()

    def now(self) -> float:
        """Seconds on the spool's clock."""
        return self._base + self._clock() - self._started

    def note(self, sent: Iterable[int]) -> dict[int, float]:
        """Age in seconds by first sequence; a segment that is new here is delivered now."""
        now = self.now()
        self._since = {first: min(self._since.get(first, now), now) for first in sent}
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()
        return {first: now - since for first, since in self._since.items()}

    def save(self) -> None:
        """Write them down; without room they are young again after a restart, and nothing is lost."""
        self._saved_at = self._clock()
        lines = [f"clock {self.now():.0f}", *(f"{first} {since:.0f}" for first, since in self._since.items())]
        text = "".join(f"{line}\n" for line in lines)
        try:
            write_file(self._path, f"{text}{digest(text.encode()):016x}\n".encode())
        except OSError as error:
            log.debug("%s cannot be written: %s", self._path, error.strerror)


def _read(path: Path) -> tuple[float, dict[int, float]]:
    """(clock, delivered at, by first sequence); a clock that begins when there is none, or it is damaged."""
    try:
        *lines, check = read_text(path, MOST_BYTES).splitlines(keepends=True)
    except (FileNotFoundError, NotAFile, ValueError):
        return 0.0, {}
    if check != f"{digest(''.join(lines).encode()):016x}\n":
        return 0.0, {}
    (_, clock), *rows = (line.split() for line in lines)
    return float(clock), {int(first): float(since) for first, since in rows}
