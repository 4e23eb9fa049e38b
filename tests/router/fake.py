"""A Kafka in memory with scripted faults, behind the interface of dispatch.pool; and a clock set by hand.

The pool's tables are the real ones. This module does the work of librdkafka and the brokers, message by
message: in each partition messages are in flight in order, and an outcome is for the first of them.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.client import NO_LEADER, Cluster
from dispatch.diagnosis import KafkaError
from dispatch.errors import Code
from dispatch.pool import HandedOver, Outcomes, Pool
from dispatch.records import LETTER_HEADERS, ROW, Letters
from dispatch.tables import NO_SEQUENCE, NONE, NOT_HELD, BrokerTable, PartitionTable, State
from spool.format.batch import Batch, Topics
from spool.format.wire import reason_name

POISON = b"poison"
"""In a value: the broker refuses the whole batch."""
HUGE = b"huge"
"""In a value: the client refuses the message by itself."""
BITTER = b"bitter"
"""In a value: the dead-letter topic refuses the whole batch."""
NO_ROOM = 1 << 30
"""The codes that dispatch.handover gives when it did not even try."""
FakePartition = tuple[bytes, int]
"""Topic and partition."""


class Letter(NamedTuple):
    """A dead letter, as Kafka gets it."""

    sequence: int
    """Of its message."""
    key: bytes | None
    value: bytes
    headers: dict[bytes, bytes]

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeKafka:
    """The cluster: it outlives every client."""

    leaders: dict[bytes, list[int]] = field(default_factory=dict)
    """By topic: the leader's broker id by partition, or NO_LEADER."""
    denied: dict[bytes, int] = field(default_factory=dict)
    """Topics it names with an error."""
    logs: dict[FakePartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The appended messages: sequences."""
    letters: list[Letter] = field(default_factory=list)
    """Dead letters that were appended, wherever."""
    down: set[int] = field(default_factory=set)
    full: bool = False
    """Librdkafka's own queue takes nothing."""

    def cluster(self) -> Cluster:
        """The metadata as of now."""
        brokers = {broker: f"host{broker}:9092" for broker in (1, 2, 3)}
        topics = {name: np.array(leaders, np.int32) for name, leaders in self.leaders.items()}
        return Cluster(brokers, topics, {n: c for n, c in self.denied.items() if n not in topics})


class FakeMetadata:
    """Answers at once, when asked to `refresh`."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka, self.pending, self.wanted = kafka, False, set[bytes]()
        self.listed = self.was_listed = self.deaf = False
        self.asked_at = math.inf
        """When the answers were asked for."""

    def want(self, topics: list[bytes]) -> None:
        self.wanted |= set(topics)
        self.pending = True

    def look_for(self, topics: list[bytes]) -> None:
        if topics:
            self.want(topics)

    def forget(self, topics: Collection[bytes]) -> None:
        self.wanted -= set(topics)

    def list_all(self) -> None:
        self.listed = self.was_listed = True

    def take_names(self) -> frozenset[bytes] | None:
        if self.deaf or not self.listed:
            return None
        self.listed = False
        return frozenset(self.kafka.leaders)

    def take(self) -> Cluster | None:
        if not self.pending:
            return None
        self.pending = False
        return replace(self.kafka.cluster(), asked_at=self.asked_at)


class FakeClient:
    """The part of a client that the router uses."""

    fatal: KafkaError | None = None

    hurries, lingers_by_choice = 0, False

    def hurry(self) -> None:
        """Send without lingering."""
        self.hurries += 1

    def finish(self) -> None:
        """The producer is finished: it takes nothing more."""
        self.fatal = KafkaError(0.0, "_FATAL", "out of order")


@dataclass
class InFlight:
    """One message handed over."""

    sequence: int
    flat: int
    size: int
    value: bytes
    letter: Letter | None = None
    """It is a dead letter."""
    doom: int = 0
    """The code with which it will fail, since a message before it did."""
    received_ns: int = 0

    def bad(self) -> bool:
        """Whether the broker refuses it, and its batch."""
        return (BITTER if self.letter else POISON) in self.value


class FakePool(Pool):
    """Pool without librdkafka."""

    def __init__(self, kafka: FakeKafka, topics: Topics, window: tuple[int, int] = (1000, 1 << 20)) -> None:
        self.kafka = kafka
        self.partitions, self.brokers = PartitionTable(), BrokerTable()
        self.queues: dict[int, list[InFlight]] = defaultdict(list)
        """In flight, by flat number, in order."""
        self.most = (0, 0)
        """Messages and bytes that one broker had in flight, at most."""
        self._topics, self._window = topics, window
        self._done: list[tuple[int, int, int, int]] = []
        """Sequence, code, flat number and reception of what came back."""
        self.offered: list[tuple[int, int]] = []
        """Sequence and flat number of each message that was taken, in order."""
        self.client, self.chance = FakeClient(), random.Random(0)
        self._client = FakeClientTopics()  # type: ignore[assignment]

    # -- what the router calls --------------------------------------------------------------------------

    def send(self, batch: Batch, flat: npt.NDArray[np.int32], *, catching_up: bool = False) -> HandedOver:
        """As dispatch.handover.hand_over, line by line."""
        sent = held = refusals = error = 0
        blocked = -1
        for row in np.argsort(flat, kind="stable").tolist():
            if flat[row] < 0:
                continue
            partition, sequence = self.partitions.rows[flat[row]], int(batch.sequence[row])
            start = int(partition.held_from)
            if catching_up and sequence < start:
                continue
            if flat[row] == blocked or (start >= 0 and not catching_up):
                held += 1
                continue
            message = InFlight(
                sequence,
                int(flat[row]),
                int(batch.key_bytes[row] + batch.value_bytes[row]),
                batch.value(row),
                received_ns=int(batch.received_ns[row]),
            )
            code = self._offer(int(partition.leader), message)
            if code == 0:
                self._charge(message)
                self.offered.append((sequence, message.flat))
                sent += 1
            elif code == Code.MSG_SIZE_TOO_LARGE:
                self._done.append((sequence, code, message.flat, message.received_ns))
                refusals += 1
            else:
                partition.held_from = sequence
                blocked = message.flat
                held += 1
                error = error if code == NO_ROOM else code
                continue
            if start >= 0:
                partition.held_from = sequence + 1
        self.partitions.note_held()
        return HandedOver(sent, held, refusals, error)

    def post(self, letters: Letters, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Dead letters, as dispatch.records.post."""
        batch, codes = letters.batch, []
        for row, flat, *why in zip(letters.rows.tolist(), flats.tolist(), *letters[2:], strict=True):
            texts = reason_name(why[0]).encode(), batch.topic_name(row), *(b"%d" % time for time in why[1:])
            headers = dict(zip(LETTER_HEADERS, texts, strict=True))
            letter = Letter(int(batch.sequence[row]), batch.key(row), batch.datagram(row), headers)
            codes.append(self._post(letter, flat))
        return np.array(codes, np.int32)

    def _post(self, letter: Letter, flat: int) -> int:
        if not self._may_send(int(self.partitions.rows["leader"][flat]), letter.size) or self.kafka.full:
            return int(Code.QUEUE_FULL)
        if HUGE in letter.value and BITTER in letter.value:
            return int(Code.MSG_SIZE_TOO_LARGE)
        self._charge(InFlight(letter.sequence, flat, letter.size, letter.value, letter))
        return 0

    def _offer(self, broker: int, message: InFlight) -> int:
        if not self._may_send(broker, message.size):
            return NO_ROOM
        if HUGE in message.value:
            return int(Code.MSG_SIZE_TOO_LARGE)
        return int(Code.QUEUE_FULL) if self.kafka.full else 0

    def _may_send(self, broker: int, size: int) -> bool:
        if self.client.fatal or broker < 0 or self.brokers.rows[broker].state >= State.BACKING_OFF:
            return False
        row = self.brokers.rows[broker]
        return bool(
            row.messages == 0 or (row.messages < self._window[0] and row.bytes + size <= self._window[1])
        )

    def _charge(self, message: InFlight) -> None:
        self.queues[message.flat].append(message)
        self._count(message.flat, 1, message.size)
        row = self.brokers.rows[self.partitions.rows["charged"][message.flat]]
        self.most = max(self.most[0], int(row.messages)), max(self.most[1], int(row.bytes))

    def _count(self, flat: int, messages: int, size: int) -> None:
        broker = int(self.partitions.rows["charged"][flat])
        self.partitions.rows["messages"][flat] += messages
        self.partitions.rows["bytes"][flat] += size
        self.brokers.rows["messages"][broker] += messages
        self.brokers.rows["bytes"][broker] += size

    def collect(self) -> Outcomes:
        done, self._done = self._done, []
        rows = [(sequence, code, flat, -1, received) for sequence, code, flat, received in done]
        return Outcomes(np.array(rows, ROW), more=False)

    def rebuild(self) -> Outcomes:
        assert self.client.fatal
        self.client.fatal = None
        self.die(self.chance)
        code = int(Code.PURGE_INFLIGHT)
        lost = [(m.sequence, code, m.flat, m.received_ns) for q in self.queues.values() for m in q]
        self.queues.clear()
        for table in (self.partitions.rows, self.brokers.rows):
            table["messages"] = table["bytes"] = 0
        self._done += sorted(lost)
        return self.collect()

    def observe(self) -> None:
        rows = self.brokers.rows
        running = rows["state"] < State.BACKING_OFF
        stalled = np.isin(rows["id"], list(self.kafka.down))
        rows["state"][running] = np.where(stalled[running], State.STALLED, State.HEALTHY)

    def unsettled(self) -> npt.NDArray[np.int64]:
        count = self.partitions.count
        done = np.array([flat for _, _, flat, _ in self._done], np.int64)
        return np.asarray(self.partitions.rows["messages"][:count] + np.bincount(done, minlength=count))

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        lowest = np.full(self.partitions.count, NO_SEQUENCE, np.int64)
        for flat, queue in self.queues.items():
            if queue:
                lowest[flat] = min(message.sequence for message in queue)
        return lowest

    # -- what Kafka does --------------------------------------------------------------------------------

    def place(self, flat: int) -> FakePartition:
        row = self.partitions.rows[flat]
        return self._topics.names[int(row.topic)], int(row.partition)

    def reachable(self, flat: int) -> bool:
        """Whether its leader would answer."""
        leader = int(self.partitions.rows["leader"][flat])
        return leader != NONE and int(self.brokers.rows["id"][leader]) not in self.kafka.down

    def answer(self, flat: int, count: int) -> int:
        """The leader takes the next `count` messages as one batch, or refuses it; how many that were.

        Behind a batch that was refused everything in flight fails, as with an idempotent producer.
        """
        queue = self.queues[flat]
        if not queue or not self.reachable(flat):
            return 0
        batch = [message for message in queue[:count] if message.doom == queue[0].doom]
        code = batch[0].doom
        if not code and any(message.bad() for message in batch):
            code = int(Code.INVALID_RECORD)
            self._doom(flat, int(Code.OUT_OF_ORDER_SEQUENCE))
        if not code:
            self._append(flat, batch)
        self._report(flat, len(batch), code)
        return len(batch)

    def fail(self, flat: int, count: int, code: int, *, appended: bool = False) -> None:
        """The next `count` messages fail, and all behind them; they may have been appended all the same."""
        batch = self.queues[flat][:count]
        if appended and self.reachable(flat) and not any(message.doom for message in batch):
            self._append(flat, batch)
        self._doom(flat, code)
        self._report(flat, len(batch), code)

    def _doom(self, flat: int, code: int) -> None:
        for message in self.queues[flat]:
            message.doom = message.doom or code

    def _append(self, flat: int, batch: list[InFlight]) -> None:
        self.kafka.letters += [message.letter for message in batch if message.letter]
        self.kafka.logs[self.place(flat)] += [m.sequence for m in batch if not m.letter]

    def _report(self, flat: int, count: int, code: int) -> None:
        for message in self.queues[flat][:count]:
            self._done.append((message.sequence, code, flat, message.received_ns))
            self._count(flat, -1, -message.size)
        del self.queues[flat][:count]

    def die(self, chance: random.Random) -> None:
        """The client is killed: of each partition, some of what is in flight arrived."""
        for flat, queue in self.queues.items():
            arrived = queue[: chance.randint(0, len(queue))]
            bad = [n for n, message in enumerate(arrived) if message.doom or message.bad()]
            if self.reachable(flat):
                self._append(flat, arrived[: min(bad, default=len(arrived))])


class FakeClientTopics:
    """Topic handles that are not used."""

    def topic_handle(self, name: bytes) -> int:
        return 1


def uncovered(pool: Pool, router: Any, sequences: npt.NDArray[np.int64]) -> list[int]:
    """Open sequences that neither a held partition, nor a loose or waiting topic would bring back.

    `sequences`: those below the read position that are neither resolved nor in flight.
    """
    held = pool.partitions.rows["held_from"][: pool.partitions.count]
    places = [*held[held != NOT_HELD].tolist(), *router._batches.loose.lowest(), *router._catch_ups._given_up]
    places += router._unknown.lowest() + router._rejects.lowest() + router._unreadable.lowest()
    if router._catch_ups.current and router._catch_ups.current.sweeping:
        places.append(router._catch_up_reader.sequence)
    return [s for s in sequences.tolist() if s < min(places, default=NO_SEQUENCE)]


NO_ONE = NO_LEADER
