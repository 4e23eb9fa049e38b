"""Looks for whoever asks: one at a time, in a thread of its own, and its result for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from status.dory import DiscardReports
from status.errors import NothingToTell
from status.figures import Figures
from status.vital import Vital

Found = TypeVar("Found")

FRESH_S = 0.9
"""A look is good for that long: whoever asks each second gets a new one."""
DISCARDS_FRESH_S = 5.0
"""A list of discards reads the frames of the log that have some."""


class Source(Protocol):
    """Where the figures come from. Each call may wait for the disk."""

    def figures(self) -> Figures:
        """A look. Raises NothingToTell."""

    def discards(self) -> dict[str, Any]:
        """The document of `brucectl discards --json`. Raises NothingToTell."""

    def vital(self) -> Vital:
        """What can be told at once."""

    def refresh_metadata(self) -> None:
        """Have Kafka's metadata fetched soon. Raises NothingToTell."""


class Kept(Generic[Found]):
    """The newest result of a call that takes its time; nobody asks, nobody calls."""

    def __init__(self, take: Callable[[], Found], fresh_s: float) -> None:
        self._take, self._fresh_s = take, fresh_s
        self._thread = ThreadPoolExecutor(1)
        self._begun = 0.0
        self._result: asyncio.Future[Found] | None = None

    async def get(self) -> Found:
        """A result that is fresh. Raises what the call raises."""
        now = time.monotonic()
        result = self._result
        if result is None or (result.done() and now - self._begun >= self._fresh_s):
            loop = asyncio.get_running_loop()
            self._begun = now
            self._result = result = loop.run_in_executor(self._thread, self._take)
        # Who asked first may hang up; the others still want it.
        return await asyncio.shield(result)

    def forget(self) -> None:
        """Have the next who asks get a new one."""
        self._begun = -math.inf


class Desk:
    """All that is served."""

    def __init__(self, source: Source) -> None:
        self.figures = Kept(source.figures, FRESH_S)
        self.discards = Kept(source.discards, DISCARDS_FRESH_S)
        self.vital, self.refresh_metadata = source.vital, source.refresh_metadata
        self._reports = DiscardReports()

    async def begin(self) -> None:
        """Have the first discard report count from now on, and not from the first question."""
        # Who cannot be told now begins with who asks.
        with contextlib.suppress(NothingToTell):
            await self.report()
            self.discards.forget()

    async def report(self) -> dict[str, Any]:
        """Discards as Dory reported them. Raises NothingToTell."""
        return self._reports.take(await self.discards.get())
