"""The loop from the log to the brokers and back.

Two readers go over the log. The *live* one hands over everything once, in order. What cannot go then is
not queued: its partition is held from there on, and the *catch-up* reader comes by again when the broker
has room, sends what is still open, and lets the partition rejoin the live path where the two meet. Bits in
`router.acks` say what is open, so that nothing is sent twice and nothing is passed over.

Who waits for whom: a broker that moves slowly slows the reading down, one that does not move at all holds
back its own partitions only. A topic that Kafka does not know waits by itself, for a grace time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.brokers import State
from dispatch.client import KafkaClient
from dispatch.errors import DispatchError
from dispatch.flight import NOBODY
from dispatch.partitions import NOT_HELD
from dispatch.pool import Outcomes, Pool
from router.acks import UNROUTED, Acks
from router.failures import Failures
from router.metadata import Metadata
from router.partition import Partitioners
from router.unknown import UnknownTopics
from spool.reader import Reader
from spool.record import Batch
from spool.wire import Reason

log = logging.getLogger("bruce.router")

OBSERVE_S = 0.1
BATCH_ROOM = 8192
"""Messages that one step may hand over: so much room is waited for."""

Place = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker as `status` shows it."""

    id: int
    state: int
    offset: int
    in_flight: int


class Router:
    """Routes one spool into one cluster. For one thread; `step` never waits."""

    def __init__(  # noqa: PLR0913  (the one place where router, dispatch and spool meet)
        self,
        readers: tuple[Reader, Reader],
        pool: Pool,
        client: KafkaClient,
        acks: Acks,
        metadata: Metadata,
        partitioners: Partitioners,
        *,
        committed: Place,
        window_messages: int,
    ) -> None:
        """`readers`: live and catch-up. `committed`: the place up to which the log may be read."""
        self._live, self._again = readers
        self._pool, self._client, self._acks = pool, client, acks
        self._metadata, self._partitioners, self._committed = metadata, partitioners, committed
        self._room = max(1, min(BATCH_ROOM, window_messages // 2))
        self._ready: npt.NDArray[np.bool_] | None = None
        """By flat number, while a catch-up is under way: the partitions it may send to."""
        self._loose = NOT_HELD
        """Lowest sequence of a message that may go anywhere and found nowhere."""
        self._failures = Failures(pool.partitions)
        self._unknown = UnknownTopics()
        self._observed_at = 0.0
        self._live.seek(acks.floor)

    @property
    def frontier(self) -> int:
        """Everything below was handed over, is held, or is resolved."""
        return self._live.sequence

    def step(self) -> bool:
        """Do what can be done without waiting; False when there was nothing."""
        if self._client.fatal:
            raise DispatchError(f"the producer is finished: {self._client.fatal.text}")
        self._take_cluster()
        moved = self.settle() > 0
        self._observe()
        moved |= self._catch_up()
        moved |= self._may_read() and self._route(self._live, catching_up=False)
        if self._acks.due():
            self.commit()
        return moved

    def settle(self) -> int:
        """Write down what became known; how many messages that were."""
        outcomes = self._pool.collect()
        good = outcomes.code == 0
        self._acks.resolve(outcomes.sequence[good])
        if not good.all():
            self._fail(outcomes)
        return len(outcomes.sequence)

    def _fail(self, outcomes: Outcomes) -> None:
        """Give back what is to be sent again, discard what Kafka will never take."""
        bad = outcomes.code != 0
        verdict = self._failures.judge(outcomes.sequence[bad], outcomes.code[bad], outcomes.flat[bad])
        for reason, rows in verdict.discard.items():
            topics = [self._topic_of(flat) for flat in rows.flat.tolist()]
            self._acks.discard(rows.sequence, reason, topics)
        self._acks.give_back(verdict.again.sequence)
        self._pool.partitions.hold(verdict.again.flat, verdict.again.sequence)
        if self._ready is not None:
            self._ready[verdict.again.flat] = False
        if verdict.refresh:
            self._metadata.want([])

    def _topic_of(self, flat: int) -> bytes:
        return self._live.topics.names[int(self._pool.partitions.rows["topic"][flat])]

    def _take_cluster(self) -> None:
        cluster = self._metadata.take()
        if cluster is None:
            return
        self._pool.set_cluster(cluster)
        self._unknown.learn(cluster, self._live.topics)
        if self._ready is not None:
            self._ready = np.pad(self._ready, (0, self._pool.partitions.count - len(self._ready)))

    def _observe(self) -> None:
        now = time.monotonic()
        if now - self._observed_at >= OBSERVE_S:
            self._observed_at = now
            self._pool.observe()
            if self._unknown.waiting:
                self._metadata.want([self._live.topics.names[t] for t in self._unknown.waiting])

    # -- what may go where ----------------------------------------------------------------------------

    def _roomy(self) -> npt.NDArray[np.bool_]:
        """By broker index: open, with room for a batch."""
        brokers = self._pool.brokers.rows
        rooms = np.array([self._pool.room(int(b))[0] for b in brokers["id"]], np.int64)
        return (rooms >= self._room) & (brokers["state"] < State.BACKING_OFF)

    def _may_read(self) -> bool:
        """Whether the live path may go on: every broker that moves has room, or one of those that do not."""
        brokers = self._pool.brokers.rows
        if len(brokers) == 0:
            return not self._unknown.waiting
        roomy, healthy = self._roomy(), brokers["state"] == State.HEALTHY
        return bool(roomy[healthy].all() if healthy.any() else roomy.any())

    def _available(self, held_too: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
        """By flat number: where messages that may go anywhere may go. Healthy brokers, if there is one."""
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        brokers = self._pool.brokers.rows
        free = rows["held_from"] == NOT_HELD
        if held_too is not None:
            free |= held_too
        led = free & (rows["leader"] >= 0)
        if not led.any():
            return led
        states = brokers["state"][rows["leader"]]
        healthy = led & (states == State.HEALTHY)
        return healthy if healthy.any() else led & (states < State.BACKING_OFF)

    # -- handing over ---------------------------------------------------------------------------------

    def _route(self, reader: Reader, *, catching_up: bool) -> bool:
        """Read one batch and hand over what may go; False when nothing is committed."""
        reader.allow(*self._committed())
        batch = reader.next()
        for damage in reader.damage:
            lost = np.arange(damage.first, damage.end, dtype=np.int64)
            log.error("messages %d to %d cannot be read; discarded as damaged", damage.first, damage.end - 1)
            self._acks.discard(lost, Reason.DAMAGED, [b""] * len(lost))
        reader.damage.clear()
        if batch is None:
            return False
        wanted = self._known(batch, self._acks.open(batch.sequence))
        if wanted.any():
            self._hand_over(batch, wanted, catching_up=catching_up)
        return True

    def _known(self, batch: Batch, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The wanted rows whose topic has partitions; those of other topics wait, or are given up."""
        known = self._pool.partitions.partitions_of
        missing = wanted & (np.pad(known, (0, len(batch.topics.names)))[batch.topic] == 0)
        for topic in np.unique(batch.topic[missing]).tolist():
            rows = missing & (batch.topic == topic)
            name = batch.topics.names[topic]
            if self._unknown.given_up(topic):
                count = int(rows.sum())
                self._acks.discard(batch.sequence[rows], Reason.UNKNOWN_TOPIC, [name] * count)
            elif self._unknown.wait(topic, int(batch.sequence[rows][0])):
                self._metadata.want([name])
        return wanted & ~missing

    def _hand_over(self, batch: Batch, wanted: npt.NDArray[np.bool_], *, catching_up: bool) -> None:
        partitions = self._pool.partitions
        ready = self._ready if catching_up else None
        available = self._available(ready)
        flat = self._partitioners.assign(batch, wanted, partitions.partitions_of, partitions.flats, available)
        nowhere = wanted & (flat < 0)
        if nowhere.any():
            self._loose = _lower(self._loose, int(batch.sequence[nowhere][0]))
        if ready is not None:
            held = partitions.rows["held_from"][: partitions.count] != NOT_HELD
            flat[(flat >= 0) & (held & ~ready)[flat]] = -1
            self._failures.single_out(batch.sequence, flat)
        self._pool.send(batch, flat, catching_up=catching_up)
        start = partitions.rows["held_from"][flat]
        sent = (flat >= 0) & ((start == NOT_HELD) | (batch.sequence < start))
        self._acks.take(batch.sequence[sent])
        if ready is not None:
            stopped = np.unique(flat[(flat >= 0) & ~sent])
            ready[stopped] = False
            ready[self._failures.suspected()] = False

    # -- catching up ----------------------------------------------------------------------------------

    def _catch_up(self) -> bool:
        """One batch of the catch-up that is under way, or the beginning of one; False when none is due."""
        if self._ready is None and not self._begin_catch_up():
            return False
        if self._again.sequence < self._live.sequence:
            if self._may_read() and self._route(self._again, catching_up=True):
                return True
            if self._again.sequence < self._live.sequence:
                return False
        assert self._ready is not None
        self._pool.partitions.release(np.flatnonzero(self._ready))
        self._ready = None
        return True

    def _begin_catch_up(self) -> bool:
        starts = list(self._unknown.starts())
        ready = self._sendable()
        held = self._pool.partitions.rows["held_from"]
        if ready.any():
            starts.append(int(held[: len(ready)][ready].min()))
        if self._loose != NOT_HELD and self._available(ready).any():
            starts.append(self._loose)
        if not starts:
            return False
        start = max(min(starts), self._acks.floor)
        # What was sent of these partitions is known by its bits, not by where they are held.
        held[np.flatnonzero(ready)] = start
        self._ready, self._loose = ready, NOT_HELD
        self._unknown.begin()
        self._again.seek(start)
        return True

    def _sendable(self) -> npt.NDArray[np.bool_]:
        """By flat number: held partitions whose broker has room again."""
        count = self._pool.partitions.count
        rows = self._pool.partitions.rows[:count]
        ready = (rows["held_from"] != NOT_HELD) & (rows["leader"] >= 0)
        if ready.any():
            ready &= self._roomy()[rows["leader"]]
            ready &= self._failures.patient(count, rows["messages"])
        return ready

    # -- writing down ---------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write marks and offsets; the floor."""
        views = self.brokers()
        offsets = {view.id: view.offset for view in views}
        # What belongs to no broker keeps its place under a name of its own.
        unrouted = [self.frontier, *self._unknown.lowest()]
        if self._loose != NOT_HELD:
            unrouted.append(self._loose)
        if self._ready is not None:
            unrouted.append(self._again.sequence)
        offsets[UNROUTED] = min(unrouted)
        return self._acks.commit(offsets)

    def brokers(self) -> list[BrokerView]:
        """Every broker: its state, its offset and what is in flight."""
        partitions, brokers = self._pool.partitions, self._pool.brokers.rows
        count = partitions.count
        rows = partitions.rows[:count]
        lowest = np.minimum(
            self._pool.lowest_in_flight(),
            np.where(rows["held_from"] == NOT_HELD, NOBODY, rows["held_from"]),
        )
        return [
            BrokerView(
                int(broker["id"]),
                int(broker["state"]),
                int(min(self.frontier, lowest[rows["leader"] == index].min(initial=NOBODY))),
                int(broker["messages"]),
            )
            for index, broker in enumerate(brokers)
        ]

    def in_flight(self) -> int:
        """Messages handed over and not reported."""
        return int(self._pool.brokers.rows["messages"].sum()) if len(self._pool.brokers.rows) else 0

    def drained(self) -> Iterator[int]:
        """Stop reading; yields what is left in flight until nothing is."""
        while left := self.in_flight():
            self.settle()
            yield left


def _lower(held: int, sequence: int) -> int:
    return sequence if held == NOT_HELD else min(held, sequence)
