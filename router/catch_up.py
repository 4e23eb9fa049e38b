"""The second reader: it comes by again for what the live one had to leave, from the first such message on.

A pass begins when there is room again for a partition that is held, or a place for messages that may go
anywhere; it ends where the two readers meet, or when nobody is left to send to. It serves the topic that has
waited longest for its turn, and all that are held near to where it is. When others wait elsewhere in the log
it ends after a turn, and goes on later from where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.partitions import NOT_HELD
from dispatch.pool import Pool
from router.failures import Failures
from router.limits import Limits
from router.room import Mask, Room
from spool.reader import Reader

NEAR = 1 << 17
"""Messages. Partitions that are held no further ahead take part in a pass."""
TURN_BATCHES = 8
"""Batches of a pass, while others wait for theirs."""
GIVEN_UP = -1
"""Stands for the topics that were given up, as one, where topics have numbers."""


@dataclass(slots=True)
class CatchUp:
    """One pass of the catch-up reader up to where the live one is."""

    ready: Mask
    """By flat number: the partitions it sends to, from where they are held."""
    places: npt.NDArray[np.int64]
    """By flat number: from where those that took part were held; NOT_HELD for others."""
    sweeping: set[int]
    """Topics, or GIVEN_UP, that have messages for which no partition is held: it must go on to the end."""
    looked_for: frozenset[int]
    """`sweeping`, as it was at the start."""
    batches: int = 0
    """Read so far."""


class CatchUps:
    """The passes of the catch-up reader, one at a time."""

    def __init__(
        self, again: Reader, live: Reader, pool: Pool, room: Room, failures: Failures, limits: Limits
    ) -> None:
        """`again` is the reader of the passes, `live` the one that they meet."""
        self._again, self._live = again, live
        self._pool, self._room, self._failures, self._limits = pool, room, failures, limits
        self.current: CatchUp | None = None
        """The pass that is under way."""
        self.given_up: list[int] = []
        """Sequences from which on messages of topics that were given up are to be discarded."""
        self.fruitless = False
        """The last pass moved nothing, and nothing has changed since."""
        self._moved = 0
        self._served: dict[int, int] = {}
        """Topic -> the pass in which it last took part."""
        self._passes = 0

    @property
    def place(self) -> list[int]:
        """Sequences below which no pass has anything to do, under way or not."""
        return [*self.given_up, *([self._again.sequence] if self.current else [])]

    @property
    def swept_all(self) -> bool:
        """Whether nothing is left of what topics that were given up had."""
        return not self.given_up and not (self.current and GIVEN_UP in self.current.sweeping)

    def begin(self, floor: int, loose: dict[int, int], placeable: list[int], moved: int) -> CatchUp | None:
        """Start a pass if there is reason to. Takes what it sweeps out of `loose`, of what is `placeable`.

        `moved`: how much was sent or discarded in all passes so far.
        """
        ready = self.sendable()
        places = self._places(ready, {topic: loose[topic] for topic in placeable})
        if not places:
            return None
        first = places[min(places, key=lambda topic: (self._served.get(topic, 0), places[topic]))]
        start = max(first, floor)
        sweeping = {topic for topic in placeable if first <= loose[topic] < start + NEAR}
        for topic in sweeping:
            del loose[topic]
        if self.given_up and first <= min(self.given_up) < start + NEAR:
            sweeping.add(GIVEN_UP)
            self.given_up.clear()
        self._again.seek(start)
        self._moved = moved
        none = np.zeros(len(ready), np.bool_)
        places_held = np.full(len(ready), NOT_HELD, np.int64)
        self.current = CatchUp(none, places_held, sweeping, frozenset(sweeping))
        self._passes += 1
        self._let_join(self.current, ready, first)
        return self.current

    def _places(self, ready: Mask, loose: dict[int, int]) -> dict[int, int]:
        """Topic -> where a pass for it would begin."""
        rows = self._pool.partitions.rows[: len(ready)][ready]
        places = dict(loose)
        for topic in np.unique(rows["topic"]).tolist():
            held = int(rows["held_from"][rows["topic"] == topic].min())
            places[topic] = min(held, places.get(topic, held))
        if self.given_up:
            places[GIVEN_UP] = min(self.given_up)
        return places

    def is_over(self, catch_up: CatchUp) -> bool:
        """It has met the live path, or has nobody left to send to."""
        return self._met() or not (catch_up.sweeping or catch_up.ready.any())

    def _met(self) -> bool:
        return self._again.sequence >= self._live.sequence

    def finish(self, catch_up: CatchUp, moved: int) -> None:
        """Let the partitions that got this far rejoin the live path."""
        ready = np.flatnonzero(catch_up.ready).astype(np.int32)
        self._pool.partitions.release(ready)
        self._failures.forget(ready)
        self.fruitless = moved == self._moved and len(ready) == 0
        self._leave(catch_up)

    def _leave(self, catch_up: CatchUp) -> None:
        reached = (catch_up.places != NOT_HELD) & (catch_up.places < self._again.sequence)
        took_part = self._pool.partitions.rows["topic"][: len(reached)][reached]
        self._served.update(
            dict.fromkeys([*np.unique(took_part).tolist(), *catch_up.looked_for], self._passes)
        )
        self.current = None

    def turn_is_over(self, catch_up: CatchUp, placeable: list[int]) -> bool:
        """It has had its turn, and others wait that it does not come by soon."""
        if catch_up.batches < TURN_BATCHES:
            return False
        if self.given_up or not catch_up.sweeping.issuperset(placeable):
            return True
        ahead = (catch_up.places > self._again.sequence) & ~self.swept(catch_up)
        return bool(((~catch_up.ready | ahead) & self.sendable()).any())

    def swept(self, catch_up: CatchUp) -> Mask:
        """By flat number: partitions of topics whose messages that may go anywhere are looked for."""
        topics = self._pool.partitions.rows["topic"][: len(catch_up.ready)]
        return np.isin(topics, list(catch_up.sweeping)) | (GIVEN_UP in catch_up.sweeping)

    def break_off(self, catch_up: CatchUp, loose: dict[int, int]) -> None:
        """End it here, before it is over."""
        self._set_aside(catch_up, np.ones(len(self._live.topics.names), np.bool_), loose)
        if GIVEN_UP in catch_up.sweeping:
            self.given_up.append(self._again.sequence)
        self._leave(catch_up)

    def rest(self, catch_up: CatchUp, loose: dict[int, int]) -> None:
        """Topics of which nothing may go now take no further part."""
        self._set_aside(catch_up, self._limits.spent(), loose)

    def _set_aside(self, catch_up: CatchUp, topics: Mask, loose: dict[int, int]) -> None:
        """These topics (bool by number) take no further part, and go on later from where the pass is."""
        resting = catch_up.ready & topics[self._pool.partitions.rows["topic"][: len(catch_up.ready)]]
        place, held = self._again.sequence, self._pool.partitions.rows["held_from"]
        # Nothing of them is open before the pass, nor before the place where they were held.
        held[np.flatnonzero(resting)] = np.maximum(catch_up.places[resting], place)
        catch_up.ready &= ~resting
        for topic in [topic for topic in catch_up.sweeping if topic != GIVEN_UP and topics[topic]]:
            loose[topic] = min(place, loose.get(topic, place))
            catch_up.sweeping.discard(topic)

    def join(self, catch_up: CatchUp) -> None:
        """Partitions whose place is still ahead, and that can be sent to by now, take part."""
        self._let_join(catch_up, self.sendable() & ~catch_up.ready, self._again.sequence)

    def _let_join(self, catch_up: CatchUp, joining: Mask, first: int) -> None:
        """Let those take part that are held from `first` on, and are near or looked for a place in."""
        held = self._pool.partitions.rows["held_from"][: len(joining)]
        near = (held < self._again.sequence + NEAR) | self.swept(catch_up)
        joining = joining & (held >= first) & near
        catch_up.places[joining] = held[joining]
        # What was sent of these partitions is known by its bits, not by where they are held.
        held[joining] = self._again.sequence
        catch_up.ready |= joining

    def waits(self, topic: int, loose: dict[int, int]) -> bool:
        """Whether every message of a topic, from where the live path is, is for a pass to send.

        Its partitions are held, and what may go anywhere is looked for.
        """
        partitions = self._pool.partitions
        flats = partitions.flats[topic, : partitions.partitions_of[topic]]
        swept = topic in loose or (self.current is not None and topic in self.current.sweeping)
        return swept and bool((partitions.rows["held_from"][flats] != NOT_HELD).all())

    def sendable(self) -> Mask:
        """By flat number: held partitions whose broker has room again, and whose topic may go on."""
        count = self._pool.partitions.count
        rows = self._pool.partitions.rows[:count]
        ready = (rows["held_from"] != NOT_HELD) & self._room.led()
        if ready.any():
            # Of a partition with suspects, one group a transaction: a bad one would take a good one along.
            ready &= self._failures.patient(count, self._pool.unsettled())
            ready &= self._limits.worthwhile()[rows["topic"]]
        return ready

    def sweep(self, flats: npt.NDArray[np.int64]) -> None:
        """Hold these no longer: a pass comes by what they were held for, and finds another place or none."""
        held = self._pool.partitions.rows["held_from"]
        chosen = flats[held[flats] != NOT_HELD].astype(np.int32)
        if len(chosen):
            self.come_by(int(held[chosen].min()))
            self._pool.partitions.release(chosen)
            self.leave_out(chosen)

    def come_by(self, start: int) -> None:
        """Have a pass begin there, and send or discard whatever is open."""
        self.given_up.append(start)
        self.fruitless = False

    def grow(self, partitions: int) -> None:
        """There are so many partitions now."""
        if self.current:
            more = (0, partitions - len(self.current.ready))
            self.current.ready = np.pad(self.current.ready, more)
            self.current.places = np.pad(self.current.places, more, constant_values=NOT_HELD)

    def leave_out(self, flats: npt.NDArray[np.int32]) -> None:
        """These partitions take no further part in this pass."""
        if self.current:
            self.current.ready[flats] = False
