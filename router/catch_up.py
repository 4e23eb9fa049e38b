"""The catch-up reader: it goes again over what the live one had to leave, from the first such message on.

A pass begins when there is room again for a partition that is held, or a partition for messages that may go
anywhere; it ends where the two readers meet, or when no partition is left to send to. It serves the topic
that has waited longest for its turn, and all that are held near to where it is. When others wait elsewhere in
the log it ends after a turn, and goes on later from where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.tables import NOT_HELD
from router.cluster.brokers import Kafka, Mask
from router.context import Bounds, Log
from router.failures import Failures
from router.limits import Limits

GIVEN_UP = -1
"""The number of all topics that were given up, counted as one."""


@dataclass(slots=True)
class CatchUp:
    """One pass of the catch-up reader up to where the live one is."""

    ready: Mask
    """By flat number: the partitions it sends to, from where they are held."""
    places: npt.NDArray[np.int64]
    """By flat number: from where those that took part were held; NOT_HELD for others."""
    sweeping: dict[int, int]
    """Topics, or GIVEN_UP, that have messages for which no partition is held -> the first of these.

    It must go on to the end.
    """
    looked_for: dict[int, int]
    """`sweeping`, as it was at the start."""
    batches: int = 0
    """Read so far."""

    def note_batch(self) -> None:
        """Another batch was read."""
        self.batches += 1

    def leave_out(self, flats: npt.NDArray[np.int32] | list[int]) -> None:
        """These partitions take no further part."""
        self.ready[flats] = False

    def stop_sweeping(self, topics: set[int]) -> None:
        """Messages of these topics found no partition: the next pass for them begins there."""
        for topic in topics:
            self.sweeping.pop(topic, None)

    def grow(self, partitions: int) -> None:
        """There are so many partitions now; new ones take no part."""
        more = (0, partitions - len(self.ready))
        self.ready = np.pad(self.ready, more)
        self.places = np.pad(self.places, more, constant_values=NOT_HELD)


class LooseTopics:
    """Topics with messages that may go anywhere, and found no partition: a pass is to look for one."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        """Topic -> the lowest sequence of such a message."""

    def __bool__(self) -> bool:
        return bool(self._first)

    def __iter__(self) -> Iterator[int]:
        return iter(self._first)

    def __contains__(self, topic: int) -> bool:
        return topic in self._first

    def first(self, topic: int) -> int:
        """The lowest sequence of such a message of one of these topics."""
        return self._first[topic]

    def note(self, topic: int, sequence: int) -> None:
        """A topic has such messages, from this sequence on."""
        self._first[topic] = min(sequence, self._first.get(topic, sequence))

    def take(self, topic: int) -> int | None:
        """Forget a topic; the lowest sequence of its messages, None without any."""
        return self._first.pop(topic, None)

    def lowest(self) -> list[int]:
        """Sequences below which there are no such messages."""
        return list(self._first.values())


class CatchUps:
    """The passes of the catch-up reader, one at a time."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        failures: Failures,
        limits: Limits,
        loose: LooseTopics,
        bounds: Bounds,
    ) -> None:
        """`loose`: filled as batches are routed; passes take from it what they look for."""
        self._near, self._turn_batches = bounds.near, bounds.turn_batches
        self._reader, self._live = log.catch_up, log.live
        self._pool, self._capacity = kafka.pool, kafka.capacity
        self._failures, self._limits, self._loose = failures, limits, loose
        self.current: CatchUp | None = None
        """The pass that is under way."""
        self._given_up: list[int] = []
        """Sequences from which on messages of topics that were given up are to be discarded."""
        self._fruitless = False
        """The last pass moved nothing, and nothing has changed since."""
        self._moved = 0
        self._served: dict[int, int] = {}
        """Topic -> the pass in which it last took part."""
        self._passes = 0

    def note_change(self) -> None:
        """Something has changed: a pass may move something, even if the last one did not."""
        self._fruitless = False

    def lowest(self) -> list[int]:
        """Sequences below which no pass has anything to do, under way or not."""
        return [*self._given_up, *([self._reader.sequence] if self.current else [])]

    @property
    def wanted(self) -> bool:
        """Whether anything waits that a pass could send."""
        return bool(self.current or self._loose or self._given_up or self._pool.partitions.any_held)

    @property
    def swept_all(self) -> bool:
        """Whether nothing is left of what topics that were given up had."""
        return not self._given_up and not (self.current and GIVEN_UP in self.current.sweeping)

    def sweeping(self) -> set[int]:
        """The topics, by number, that the pass under way looks for, since they have no partition held."""
        return set(self.current.sweeping) - {GIVEN_UP} if self.current else set()

    def begin(self, low_watermark: int, moved: int) -> CatchUp | None:
        """Start a pass if there is reason to. It takes what it looks for out of the loose topics.

        `moved`: how much was sent or discarded in all passes so far.
        """
        if self._fruitless or not self.wanted:
            return None
        ready = self.sendable()
        placeable = {topic: self._loose.first(topic) for topic in self._placeable(ready)}
        places = self._places(ready, placeable)
        if not places:
            return None
        first = places[min(places, key=lambda topic: (self._served.get(topic, 0), places[topic]))]
        start = max(first, low_watermark)
        sweeping = {topic: at for topic, at in placeable.items() if first <= at < start + self._near}
        for topic in sweeping:
            self._loose.take(topic)
        if self._given_up and first <= min(self._given_up) < start + self._near:
            sweeping[GIVEN_UP] = min(self._given_up)
            self._given_up.clear()
        self._reader.seek(start)
        self._moved = moved
        none = np.zeros(len(ready), np.bool_)
        places_held = np.full(len(ready), NOT_HELD, np.int64)
        self.current = CatchUp(none, places_held, sweeping, dict(sweeping))
        self._passes += 1
        self._let_join(self.current, ready, first)
        return self.current

    def _placeable(self, ready: Mask) -> list[int]:
        """The loose topics that have a partition to go to, `ready` ones included."""
        if not self._loose:
            return []
        topics = self._pool.partitions.topics_where(self._capacity.available(ready))
        may_go = self._limits.worthwhile()
        return [topic for topic in self._loose if topic in topics and may_go[topic]]

    def _places(self, ready: Mask, loose: dict[int, int]) -> dict[int, int]:
        """Topic -> where a pass for it would begin."""
        places = dict(loose)
        for topic, held in self._pool.partitions.held_by_topic(ready).items():
            places[topic] = min(held, places.get(topic, held))
        if self._given_up:
            places[GIVEN_UP] = min(self._given_up)
        return places

    def is_over(self, catch_up: CatchUp) -> bool:
        """It has met the live path, or has no partition left to send to."""
        return self._met() or not (catch_up.sweeping or catch_up.ready.any())

    def _met(self) -> bool:
        return self._reader.sequence >= self._live.sequence

    def finish(self, catch_up: CatchUp, moved: int) -> None:
        """Let the partitions that got this far rejoin the live path."""
        ready = np.flatnonzero(catch_up.ready).astype(np.int32)
        self._pool.partitions.release(ready)
        self._failures.forget(ready)
        self._fruitless = moved == self._moved and len(ready) == 0
        self._leave(catch_up)

    def _leave(self, catch_up: CatchUp) -> None:
        reached = (catch_up.places != NOT_HELD) & (catch_up.places < self._reader.sequence)
        took_part = self._pool.partitions.topics_where(reached)
        found = [topic for topic, first in catch_up.looked_for.items() if first < self._reader.sequence]
        self._served.update(dict.fromkeys([*took_part, *found], self._passes))
        self.current = None

    def turn_is_over(self, catch_up: CatchUp) -> bool:
        """It has had its turn, and others wait that it does not reach soon."""
        if catch_up.batches < self._turn_batches:
            return False
        sendable = self.sendable()
        if self._given_up or not catch_up.sweeping.keys() >= set(self._placeable(sendable)):
            return True
        if self._looks_ahead(catch_up):
            return True
        ahead = (catch_up.places > self._reader.sequence) & ~self.swept(catch_up)
        return bool(((~catch_up.ready | ahead) & sendable).any())

    def _looks_ahead(self, catch_up: CatchUp) -> bool:
        """Whether it looks for a topic that could be sent to, and has not come to its first message yet."""
        later = {topic for topic, first in catch_up.sweeping.items() if first > self._reader.sequence}
        available = self._capacity.available(catch_up.ready)
        return GIVEN_UP in later or not later.isdisjoint(self._pool.partitions.topics_where(available))

    def swept(self, catch_up: CatchUp) -> Mask:
        """By flat number: partitions of topics whose messages that may go anywhere are looked for."""
        wanted = self._pool.partitions.are_of(catch_up.sweeping, len(catch_up.ready))
        return wanted | (GIVEN_UP in catch_up.sweeping)

    def break_off(self, catch_up: CatchUp) -> None:
        """End it here, before it is over."""
        self._set_aside(catch_up, np.ones(len(self._live.topics.names), np.bool_))
        if (first := catch_up.sweeping.get(GIVEN_UP)) is not None:
            self._given_up.append(max(first, self._reader.sequence))
        self._leave(catch_up)

    def rest(self, catch_up: CatchUp) -> None:
        """Topics of which nothing may go now take no further part."""
        self._set_aside(catch_up, self._limits.spent())

    def _set_aside(self, catch_up: CatchUp, topics: Mask) -> None:
        """These topics (bool by number) take no further part, and go on later from where the pass is."""
        resting = catch_up.ready & self._pool.partitions.where_topic(topics, len(catch_up.ready))
        place = self._reader.sequence
        # Nothing of them is open before the pass, nor before the place where they were held.
        self._pool.partitions.hold_at(np.flatnonzero(resting), np.maximum(catch_up.places[resting], place))
        catch_up.ready &= ~resting
        for topic in [topic for topic in catch_up.sweeping if topic != GIVEN_UP and topics[topic]]:
            self._loose.note(topic, max(catch_up.sweeping.pop(topic), place))

    def join(self, catch_up: CatchUp) -> None:
        """Partitions whose place is still ahead, and that can be sent to by now, take part."""
        self._let_join(catch_up, self.sendable() & ~catch_up.ready, self._reader.sequence)

    def _let_join(self, catch_up: CatchUp, joining: Mask, first: int) -> None:
        """Let those take part that are held from `first` on, and are near or looked for a place in."""
        flats = np.flatnonzero(joining)
        held = self._pool.partitions.held_from_of(flats)
        near = (held < self._reader.sequence + self._near) | self.swept(catch_up)[flats]
        joins = near & (held >= first)
        flats = flats[joins]
        catch_up.places[flats] = held[joins]
        # Messages that were sent of these partitions are known by their bits, not by where they are held.
        self._pool.partitions.hold_at(flats, self._reader.sequence)
        catch_up.ready[flats] = True

    def waits(self, topic: int) -> bool:
        """Whether every message of a topic, from where the live path is, is for a pass to send.

        Its partitions are held, and what may go anywhere is looked for.
        """
        partitions = self._pool.partitions
        swept = topic in self._loose or (self.current is not None and topic in self.current.sweeping)
        return swept and bool(partitions.is_held()[partitions.of_topic(topic)].all())

    def sendable(self) -> Mask:
        """By flat number: held partitions whose broker has room again, and whose topic may go on."""
        partitions = self._pool.partitions
        ready = partitions.is_held() & self._capacity.led()
        if ready.any():
            # Of a partition with candidates, one group a transaction: a bad one would take a good one along.
            ready &= self._failures.patient(partitions.count, self._pool.unsettled())
            ready &= partitions.where_topic(self._limits.worthwhile(), partitions.count)
        return ready

    def sweep(self, flats: npt.NDArray[np.int64]) -> None:
        """Hold these no longer: a pass reaches what they were held for, and finds another place or none."""
        held = self._pool.partitions.held_from_of(flats)
        chosen = flats[held != NOT_HELD].astype(np.int32)
        if len(chosen):
            self.come_by(int(held[held != NOT_HELD].min()))
            self._pool.partitions.release(chosen)
            self.leave_out(chosen)

    def come_by(self, start: int) -> None:
        """Have a pass begin there, and send or discard whatever is open."""
        self._given_up.append(start)
        self._fruitless = False

    def grow(self, partitions: int) -> None:
        """There are so many partitions now."""
        if self.current:
            self.current.grow(partitions)

    def leave_out(self, flats: npt.NDArray[np.int32]) -> None:
        """These partitions take no further part in this pass."""
        if self.current:
            self.current.leave_out(flats)
