"""The loop from the log to the brokers and back.

Two readers go over the log. The *live* one hands over everything once, in order. What cannot go then is
not queued: its partition is held from there on, and the *catch-up* reader comes by again when the broker
has room, sends what is still open, and lets the partition rejoin the live path where the two meet. Bits in
`router.acks` say what is open, so that nothing is sent twice and nothing is passed over.

What keeps a message from being passed over: everything below the live reader's place that is neither
resolved nor in flight is *covered*. Its partition is held from it or from before it; or it may go anywhere
and its topic is *loose* from it or before; or it waits for its topic. `_cover` sees to that after each batch.

Who waits for whom: a broker that moves slowly slows the reading down, one that does not move at all holds
back its own partitions only. A topic that Kafka does not know waits by itself, for a grace time. When it
becomes known its partitions are held, so that its old messages go before its new ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dispatch.partitions import NOT_HELD
from dispatch.pool import Outcomes
from dispatch.retry import Action, decide
from router.acks import UNROUTED, Acks
from router.brokers import BrokerView, lowest_without_leader, view_brokers
from router.catch_up import CatchUp
from router.ends import Kafka, Log
from router.failures import Failures
from router.growth import Growth
from router.partition import Partitioners
from router.renewal import Renewal
from router.room import Mask
from router.unknown import UnknownTopics
from spool.reader import Reader
from spool.record import Batch
from spool.wire import Reason

_log = logging.getLogger("bruce.router")

OBSERVE_S = 0.1
ASK_S = 1.0
"""Between two questions for the leaders of partitions that are held because theirs is away."""
CATCH_UP_BATCHES = 2
"""Batches of a catch-up for each one of the live path: it must gain on it."""


class Router:
    """Routes one spool into one cluster. For one thread; `step` never waits."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        acks: Acks,
        partitioners: Partitioners,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at the floor."""
        self._live, self._again, self._committed = log
        self._client, self._pool, self._room, self._metadata = kafka
        self._acks, self._partitioners = acks, partitioners
        self._catch_up: CatchUp | None = None
        self._loose: dict[int, int] = {}
        """Topic -> lowest sequence of a message that may go anywhere and found no place."""
        self._given_up: list[int] = []
        """Sequences from which on messages of topics that were given up are to be discarded."""
        self._fruitless = False
        """The last catch-up sent nothing, and nothing has changed since."""
        self._failures, self._growth = Failures(clock=clock), Growth()
        self._renewal = Renewal(self._client, self._pool, clock=clock)
        self._unknown = UnknownTopics(clock=clock)
        self._clock, self._observed_at, self._asked_at = clock, 0.0, 0.0
        self._live.seek(acks.floor)

    @property
    def frontier(self) -> int:
        """Everything below was handed over, is covered, or is resolved."""
        return self._live.sequence

    def step(self) -> bool:
        """Do what can be done without waiting; False when there was nothing."""
        self._take_cluster()
        moved = self.settle() > 0
        if self._client.fatal:
            lost = self._renewal.attempt(self.in_flight())
            if lost:
                self._fail(lost)
                self._fruitless = False
        else:
            self._observe()
            moved |= self._go_over_again()
            moved |= self._may_read(None) and self._route(self._live, None)
        if self._acks.due():
            self._write_down()
        return moved

    def settle(self) -> int:
        """Write down what became known; how many messages that were."""
        outcomes = self._pool.collect()
        count = len(outcomes.sequence)
        if count == 0:
            return 0
        self._fruitless = False
        good = outcomes.code == 0
        self._acks.resolve(outcomes.sequence[good])
        if not good.all():
            self._fail(outcomes)
        return count

    def _fail(self, outcomes: Outcomes) -> None:
        """Give back what is to be sent again, discard what Kafka will never take."""
        bad = outcomes.code != 0
        verdict = self._failures.judge(outcomes.sequence[bad], outcomes.code[bad], outcomes.flat[bad])
        for reason, rows in verdict.discard.items():
            numbers = self._pool.partitions.rows["topic"][rows.flat].tolist()
            topics = [self._live.topics.names[number] for number in numbers]
            self._discard(rows.sequence, Reason(reason), topics)
        self._acks.give_back(verdict.again.sequence)
        self._pool.partitions.hold(verdict.again.flat, verdict.again.sequence)
        if self._catch_up:
            self._catch_up.ready[verdict.again.flat] = False
        if verdict.refresh:
            self._metadata.want([])

    def _discard(self, sequence: npt.NDArray[np.int64], reason: Reason, topics: list[bytes]) -> None:
        count = self._acks.discard(sequence, reason, topics)
        if count:
            name = topics[0].decode(errors="replace")
            _log.error(
                "%d messages from %d on discarded: %s %s", count, sequence[0], reason.name.lower(), name
            )
        if self._catch_up:
            self._catch_up.moved += count

    def _take_cluster(self) -> None:
        cluster = self._metadata.take()
        if cluster is None:
            return
        partitions, topics = self._pool.partitions, self._live.topics
        before = partitions.partitions_of.copy()
        self._pool.set_cluster(cluster)
        self._growth.note(before, partitions.partitions_of, self._live.sequence, topics.names)
        for learnt in self._unknown.learn(cluster, topics):
            if learnt.known:
                flats = partitions.flats[learnt.topic, : partitions.partitions_of[learnt.topic]]
                partitions.hold(flats, np.full(len(flats), learnt.first))
            else:
                self._given_up.append(learnt.first)
        if self._catch_up:
            added = partitions.count - len(self._catch_up.ready)
            self._catch_up.ready = np.pad(self._catch_up.ready, (0, added))
        self._fruitless = False

    def _observe(self) -> None:
        now = self._clock()
        if now - self._observed_at >= OBSERVE_S:
            self._observed_at = now
            self._fruitless = False
            self._pool.observe()
            if self._unknown.waiting:
                self._metadata.want([self._live.topics.names[t] for t in self._unknown.waiting])
            elif now - self._asked_at >= ASK_S and self._room.orphaned():
                # The timer of the metadata is too slow for messages that wait for a leader.
                self._asked_at = now
                self._metadata.want([])

    def _may_read(self, catch_up: CatchUp | None) -> bool:
        """Whether there is a place for what is read; before the first metadata, for nothing.

        Partitions that are caught up get nothing on the live path, and so do not slow it down.
        """
        if len(self._pool.brokers.rows) == 0:
            return not self._unknown.waiting
        partitions = self._room.free()
        if catch_up:
            partitions = catch_up.ready | (partitions & catch_up.sweeping)
        return self._room.may_read(partitions)

    # -- handing over ---------------------------------------------------------------------------------

    def _route(self, reader: Reader, catch_up: CatchUp | None) -> bool:
        """Read one batch and hand over what may go; False when nothing is committed."""
        reader.allow(*self._committed())
        batch = reader.next()
        for damage in reader.damage:
            lost = np.arange(damage.first, damage.end, dtype=np.int64)
            self._discard(lost, Reason.DAMAGED, [b""] * len(lost))
        reader.damage.clear()
        if batch is None:
            return False
        wanted = self._known(batch, self._acks.open(batch.sequence))
        if wanted.any():
            self._hand_over(batch, wanted, catch_up)
        return True

    def _known(self, batch: Batch, wanted: Mask) -> Mask:
        """The wanted rows whose topic has partitions; those of other topics wait, or are given up."""
        known = self._pool.partitions.partitions_of
        missing = wanted & (np.pad(known, (0, len(batch.topics.names)))[batch.topic] == 0)
        if not missing.any():
            return wanted
        for topic in np.unique(batch.topic[missing]).tolist():
            rows = missing & (batch.topic == topic)
            name = batch.topics.names[topic]
            if self._unknown.given_up(topic, name):
                self._discard(batch.sequence[rows], Reason.UNKNOWN_TOPIC, [name] * int(rows.sum()))
            elif self._unknown.wait(topic, int(batch.sequence[rows][0])):
                self._metadata.want([name])
        return wanted & ~missing

    def _hand_over(self, batch: Batch, wanted: Mask, catch_up: CatchUp | None) -> None:
        rows = self._pool.partitions.rows
        chosen = self._choose(batch, wanted, catch_up)
        flat, closed = chosen.copy(), []
        if catch_up:
            held = rows["held_from"][: self._pool.partitions.count] != NOT_HELD
            flat[(flat >= 0) & (held & ~catch_up.ready)[flat]] = -1
            closed = self._failures.group(batch.sequence, flat)
        before = rows["held_from"][flat]
        handed = self._pool.send(batch, flat, catching_up=catch_up is not None)
        after = rows["held_from"][flat]
        sent = (flat >= 0) & ((after == NOT_HELD) | (batch.sequence < after))
        # A held partition gets nothing on the live path, and nothing from before its place when catching up.
        sent &= (before == NOT_HELD) | (catch_up is not None and (batch.sequence >= before))
        self._acks.take(batch.sequence[sent])
        left = wanted & ~sent
        if left.any():
            self._cover(batch, left, chosen)
        if handed.error:
            # Librdkafka itself did not take a message.
            self._failures.decline(np.unique(flat[left & (flat >= 0)]))
            if decide(handed.error).action is Action.REFRESH:
                self._metadata.want([])
        if catch_up:
            catch_up.moved += int(sent.sum())
            catch_up.ready[chosen[left & (chosen >= 0)]] = False
            catch_up.ready[closed] = False

    def _choose(self, batch: Batch, wanted: Mask, catch_up: CatchUp | None) -> npt.NDArray[np.int32]:
        """The flat partition of each wanted row; -1 for others, and where there is none to go to."""
        partitions = self._pool.partitions
        available = self._room.available(catch_up.ready if catch_up else None)
        chosen = np.full(len(batch), -1, np.int32)
        for rows, counts in self._growth.parts(batch.sequence, wanted, partitions.partitions_of):
            flat = self._partitioners.assign(batch, rows, counts, partitions.flats, available)
            np.copyto(chosen, flat, where=rows)
        if catch_up:
            self._failures.single_out(batch.sequence, wanted, chosen)
        return chosen

    def _cover(self, batch: Batch, left: Mask, chosen: npt.NDArray[np.int32]) -> None:
        """See to it that each row that was left will be come by again."""
        partitions = self._pool.partitions
        placed = np.flatnonzero(left & (chosen >= 0))
        held_from = partitions.rows["held_from"][chosen[placed]]
        bare = placed[(held_from == NOT_HELD) | (held_from > batch.sequence[placed])]
        partitions.hold(chosen[bare], batch.sequence[bare])
        loose = left & self._partitioners.free(batch) & ~np.isin(chosen, self._failures.suspected())
        for topic in np.unique(batch.topic[loose]).tolist():
            first = int(batch.sequence[np.argmax(loose & (batch.topic == topic))])
            self._loose[topic] = min(first, self._loose.get(topic, first))

    # -- catching up ----------------------------------------------------------------------------------

    def _go_over_again(self) -> bool:
        """A few batches of the catch-up that is under way, or the start of one; False when none is due."""
        if self._catch_up is None:
            self._catch_up = self._begin()
        if self._catch_up is None:
            return False
        moved = False
        for _ in range(CATCH_UP_BATCHES):
            if self._is_over(self._catch_up):
                break
            self._join(self._catch_up)
            if not (self._may_read(self._catch_up) and self._route(self._again, self._catch_up)):
                break
            moved = True
        if self._is_over(self._catch_up):
            self._finish(self._catch_up)
            return True
        return moved

    def _begin(self) -> CatchUp | None:
        if self._fruitless:
            return None
        ready = self._sendable()
        loose = self._placeable(ready)
        starts = [*self._given_up, *(self._loose[topic] for topic in loose)]
        sweeping = bool(starts)
        held = self._pool.partitions.rows["held_from"]
        if ready.any():
            starts.append(int(held[: len(ready)][ready].min()))
        if not starts:
            return None
        start = max(min(starts), self._acks.floor)
        # What was sent of these partitions is known by its bits, not by where they are held.
        held[np.flatnonzero(ready)] = start
        for topic in loose:
            del self._loose[topic]
        self._given_up.clear()
        self._again.seek(start)
        return CatchUp(ready, sweeping)

    def _is_over(self, catch_up: CatchUp) -> bool:
        """It has met the live path, or has nobody left to send to."""
        met = self._again.sequence >= self._live.sequence
        return met or not (catch_up.sweeping or catch_up.ready.any())

    def _finish(self, catch_up: CatchUp) -> None:
        ready = np.flatnonzero(catch_up.ready).astype(np.int32)
        self._pool.partitions.release(ready)
        self._failures.forget(ready)
        self._fruitless = catch_up.moved == 0 and len(ready) == 0
        self._catch_up = None

    def _join(self, catch_up: CatchUp) -> None:
        """Partitions whose place is still ahead, and that can be sent to by now, take part."""
        held = self._pool.partitions.rows["held_from"]
        joining = self._sendable() & ~catch_up.ready
        joining &= held[: len(joining)] >= self._again.sequence
        held[np.flatnonzero(joining)] = self._again.sequence
        catch_up.ready |= joining

    def _sendable(self) -> Mask:
        """By flat number: held partitions whose broker has room again."""
        count = self._pool.partitions.count
        rows = self._pool.partitions.rows[:count]
        ready = (rows["held_from"] != NOT_HELD) & self._room.led()
        if ready.any():
            ready &= self._failures.patient(count, rows["messages"])
        return ready

    def _placeable(self, ready: Mask) -> list[int]:
        """The loose topics that have a partition to go to."""
        if not self._loose:
            return []
        rows = self._pool.partitions.rows[: len(ready)]
        topics = set(rows["topic"][self._room.available(ready)].tolist())
        return [topic for topic in self._loose if topic in topics]

    # -- writing down ---------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write marks and offsets, and wait until they are; the floor."""
        self._write_down()
        return self._acks.wait()

    def _write_down(self) -> None:
        """Begin to write marks and offsets."""
        # What was reported or refused is in flight no more, and no offset stands for it before it is settled.
        self.settle()
        offsets = {view.id: view.offset for view in self.brokers()}
        # What belongs to no broker keeps its place under a name of its own.
        unrouted = [self.frontier, *self._unknown.lowest(), *self._loose.values(), *self._given_up]
        if self._catch_up:
            unrouted.append(self._again.sequence)
        offsets[UNROUTED] = min(*unrouted, lowest_without_leader(self._pool))
        self._acks.write_down(offsets)
        self._growth.forget(self._acks.floor)

    def brokers(self) -> list[BrokerView]:
        """Every broker: its state, its offset and what is in flight."""
        return view_brokers(self._pool, self.frontier)

    def in_flight(self) -> int:
        """Messages handed over and not reported."""
        return int(self._pool.brokers.rows["messages"].sum()) if len(self._pool.brokers.rows) else 0

    def drained(self) -> Iterator[int]:
        """Stop reading; yields what is left in flight until nothing is."""
        while left := self.in_flight():
            self.settle()
            yield left
