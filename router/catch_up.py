"""The second reader: it comes by again for what the live one had to leave, from the first such message on.

A pass begins when a broker has room again for a partition that is held, or a place for messages that may go
anywhere; it ends where the two readers meet, or when nobody is left to send to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.partitions import NOT_HELD
from dispatch.pool import Pool
from router.failures import Failures
from router.room import Mask, Room
from spool.reader import Reader


@dataclass(slots=True)
class CatchUp:
    """One pass of the catch-up reader up to where the live one is."""

    ready: Mask
    """By flat number: the partitions it sends to, from where they are held."""
    sweeping: bool
    """It also looks for messages that no partition is held for, and so must go on to the end."""


class CatchUps:
    """The passes of the catch-up reader, one at a time."""

    def __init__(self, again: Reader, live: Reader, pool: Pool, room: Room, failures: Failures) -> None:
        """`again` is the reader of the passes, `live` the one that they meet."""
        self._again, self._live = again, live
        self._pool, self._room, self._failures = pool, room, failures
        self.current: CatchUp | None = None
        """The pass that is under way."""
        self.given_up: list[int] = []
        """Sequences from which on messages of topics that were given up are to be discarded."""
        self.fruitless = False
        """The last pass moved nothing, and nothing has changed since."""
        self._moved = 0

    @property
    def place(self) -> list[int]:
        """Sequences below which no pass has anything to do, under way or not."""
        return [*self.given_up, *([self._again.sequence] if self.current else [])]

    def begin(self, floor: int, loose: dict[int, int], placeable: list[int], moved: int) -> CatchUp | None:
        """Start a pass if there is reason to. Takes what is `placeable` out of `loose`.

        `moved`: how much was sent or discarded in all passes so far.
        """
        ready = self.sendable()
        starts = [*self.given_up, *(loose[topic] for topic in placeable)]
        sweeping = bool(starts)
        held = self._pool.partitions.rows["held_from"]
        if ready.any():
            starts.append(int(held[: len(ready)][ready].min()))
        if not starts:
            return None
        start = max(min(starts), floor)
        # What was sent of these partitions is known by its bits, not by where they are held.
        held[np.flatnonzero(ready)] = start
        for topic in placeable:
            del loose[topic]
        self.given_up.clear()
        self._again.seek(start)
        self._moved = moved
        self.current = CatchUp(ready, sweeping)
        return self.current

    def is_over(self, catch_up: CatchUp) -> bool:
        """It has met the live path, or has nobody left to send to."""
        met = self._again.sequence >= self._live.sequence
        return met or not (catch_up.sweeping or catch_up.ready.any())

    def finish(self, catch_up: CatchUp, moved: int) -> None:
        """Let the partitions that got this far rejoin the live path."""
        ready = np.flatnonzero(catch_up.ready).astype(np.int32)
        self._pool.partitions.release(ready)
        self._failures.forget(ready)
        self.fruitless = moved == self._moved and len(ready) == 0
        self.current = None

    def join(self, catch_up: CatchUp) -> None:
        """Partitions whose place is still ahead, and that can be sent to by now, take part."""
        held = self._pool.partitions.rows["held_from"]
        joining = self.sendable() & ~catch_up.ready
        joining &= held[: len(joining)] >= self._again.sequence
        held[np.flatnonzero(joining)] = self._again.sequence
        catch_up.ready |= joining

    def sendable(self) -> Mask:
        """By flat number: held partitions whose broker has room again."""
        count = self._pool.partitions.count
        rows = self._pool.partitions.rows[:count]
        ready = (rows["held_from"] != NOT_HELD) & self._room.led()
        if ready.any():
            # Of a partition with suspects, one group a transaction: a bad one would take a good one along.
            ready &= self._failures.patient(count, self._pool.unsettled())
        return ready

    def grow(self, partitions: int) -> None:
        """There are so many partitions now."""
        if self.current:
            self.current.ready = np.pad(self.current.ready, (0, partitions - len(self.current.ready)))

    def leave_out(self, flats: npt.NDArray[np.int32]) -> None:
        """These partitions take no further part in this pass."""
        if self.current:
            self.current.ready[flats] = False
