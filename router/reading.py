"""Who reads next: the live reader, as far as there is room, and behind it the one that catches up.

A broker that moves slowly slows the reading down, until so much is to be read behind it that the topics which
fill its window are set aside (`router.shares`). One that does not move at all holds back its own partitions
only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dispatch.brokers import State
from router.catch_up import CatchUp, CatchUps
from router.ends import Kafka, Log
from router.passage import Passage
from router.shares import BEHIND_BYTES, floods
from router.unknown import UnknownTopics

LOOK_AHEAD_BATCHES = 4
"""Batches of the live path at a time while topics are set aside and there is no room for others."""
CATCH_UP_BATCHES = 2
"""Batches of a catch-up for each one of the live path: it must gain on it."""


class Reading:
    """The turns of both readers."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        unknown: UnknownTopics,
        passage: Passage,
        passes: CatchUps,
        commit: Callable[[], int],
    ) -> None:
        """`commit` writes the marks, and waits for them: it is called where counts must be in them first."""
        self._live, self._again, self._committed = log.live, log.again, log.committed
        self._pool, self._room = kafka.pool, kafka.room
        self._unknown, self._commit = unknown, commit
        self._passage, self._passes = passage, passes
        self._aside: set[int] = set()
        """Topics, by number."""

    def step(self, floor: int) -> bool:
        """Batches of the live path, then of the catch-up, as far as there is room; `floor`: of the marks."""
        may_read = self._may_read(None)
        if not may_read and self._behind() > BEHIND_BYTES:
            self._set_aside()
        looks_ahead = not may_read and bool(self._aside) and self._moving()
        moved = False
        for _ in range(LOOK_AHEAD_BATCHES if looks_ahead else 1):
            if not (may_read or looks_ahead) or not self._read_on():
                break
            moved = True
        return self._go_over_again(floor) or moved

    def _may_read(self, catch_up: CatchUp | None) -> bool:
        """Whether there is a place for what is read; before the first metadata, for nothing.

        Partitions that are caught up get nothing on the live path, and so do not slow it down.
        """
        if len(self._pool.brokers.rows) == 0:
            return not self._unknown.waiting
        partitions = self._room.free()
        if catch_up:
            partitions = catch_up.ready | (partitions & self._passes.swept(catch_up))
        return self._room.may_read(partitions)

    def _read_on(self) -> bool:
        """One batch of the live path, or a segment that it passes over; False when nothing is committed."""
        if self._passage.growth.reach(self._live):
            self._commit()
        self._aside = {topic for topic in self._aside if self._passes.waits(topic, self._passage.loose)}
        if self._aside:
            names = {self._live.topics.names[topic] for topic in self._aside}
            # One at a time: there may be thousands.
            if self._live.pass_over(names):
                return True
        return self._passage.route(self._live, None)

    def _behind(self) -> int:
        """Bytes from the live path to what was committed last; of other segments, a number above any."""
        number, position = self._live.position
        last, end = self._committed()
        return end - position if number == last else max(0, last - number) << 40

    def _moving(self) -> bool:
        """Whether Kafka takes anything at all."""
        return bool((self._pool.brokers.rows["state"] == State.HEALTHY).any())

    def _set_aside(self) -> None:
        """Hold the topics that fill the brokers without room, so that the reading need not wait for them."""
        partitions, place = self._pool.partitions, self._live.sequence
        for topic in floods(self._pool, self._room.roomy(), self._room.free()).tolist():
            flats = partitions.flats[topic, : partitions.partitions_of[topic]]
            partitions.hold(flats, np.full(len(flats), place))
            self._passage.loose[topic] = min(place, self._passage.loose.get(topic, place))
            self._aside.add(topic)
            self._passes.fruitless = False

    def _go_over_again(self, floor: int) -> bool:
        """A few batches of the catch-up that is under way, or the start of one; False when none is due."""
        passes, passage = self._passes, self._passage
        catch_up = passes.current or self._begin(floor)
        if catch_up is None:
            return False
        moved = False
        for _ in range(CATCH_UP_BATCHES):
            if passes.is_over(catch_up):
                break
            if passes.turn_is_over(catch_up, passage.placeable(passes.sendable())):
                passes.break_off(catch_up, passage.loose)
                return True
            passes.join(catch_up)
            if not (self._may_read(catch_up) and passage.route(self._again, catch_up)):
                break
            moved = True
            catch_up.batches += 1
            passes.rest(catch_up, passage.loose)
        if passes.is_over(catch_up):
            passes.finish(catch_up, passage.moved)
            return True
        return moved

    def _begin(self, floor: int) -> CatchUp | None:
        if self._passes.fruitless:
            return None
        passage = self._passage
        placeable = passage.placeable(self._passes.sendable())
        return self._passes.begin(floor, passage.loose, placeable, passage.moved)
