"""The tables of a pool: its brokers, its topic partitions, and the messages in flight.

A *broker* gets the next index when it is first heard of, and keeps it, whatever becomes of it. Its row is its
window, and its state.

A *topic partition* gets the next free flat number when it is first heard of, and keeps it: rows in flight
refer to it. `flats[topic, partition]` leads there from a topic's number in `spool.format.batch.Topics`. Its
row says who leads it, how much is in flight, and from where it is held back.

A *message in flight* has one row, and the number of the row is what librdkafka gives back with the report.
Rows are taken from a stack of free numbers. librdkafka holds numbers, never addresses, so the rows may move
when the table grows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dispatch.timing import STALL_NS
from spool.native.kernel import kernel, subkernel

Mask = npt.NDArray[np.bool_]
Flats = npt.NDArray[np.int32]


class State(IntEnum):
    """How a broker is."""

    HEALTHY = 0
    """Reports come, or nothing is in flight."""
    STALLED = 1
    """Messages are in flight and no report came for STALL_NS, or its connection is down."""
    BACKING_OFF = 2
    """It failed; nothing is sent until the time is over."""


_HEALTHY, _STALLED, BACKING_OFF = int(State.HEALTHY), int(State.STALLED), int(State.BACKING_OFF)
"""For compiled loops."""


BROKER_ROW = np.dtype(
    (
        np.record,
        [
            ("id", np.int32),  # Kafka's number for the broker
            ("state", np.int32),  # State
            ("messages", np.int64),  # in flight
            ("bytes", np.int64),  # in flight: keys and values
            ("acked", np.int64),  # messages acknowledged since the start
            ("failed", np.int64),  # messages reported with an error since the start
            ("progress_ns", np.int64),  # monotonic time of the last report, or of the first message in flight
            ("until_ns", np.int64),  # monotonic time at which BACKING_OFF ends
        ],
    )
)


class BrokerTable:
    """All brokers heard of. Only grows."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, BROKER_ROW)
        """BROKER_ROW[count], by index. Replaced when it grows."""
        self.indexes: dict[int, int] = {}
        """Broker id -> index."""

    def index(self, broker: int) -> int:
        """The index of a broker id, which is added when it is new."""
        if broker not in self.indexes:
            self.rows = np.append(self.rows, np.zeros(1, BROKER_ROW))
            self.rows["id"][-1] = broker
            self.indexes[broker] = len(self.indexes)
        return self.indexes[broker]

    @property
    def count(self) -> int:
        """Brokers heard of."""
        return len(self.rows)

    def id(self, index: int) -> int:
        """Kafka's number for the broker with this index; -1 for NONE."""
        return int(self.rows["id"][index]) if index >= 0 else -1

    def healthy(self) -> Mask:
        """By index: state HEALTHY."""
        return np.asarray(self.rows["state"] == State.HEALTHY)

    def with_room(self, messages: int, size: int) -> Mask:
        """By index: not backing off, with at most so many messages and bytes in flight, or none at all."""
        rows = self.rows
        free = (rows["messages"] <= messages) & (rows["bytes"] <= size)
        return np.asarray((free | (rows["messages"] == 0)) & (rows["state"] < State.BACKING_OFF))

    def back_off(self, broker: int, until_ns: int) -> None:
        """Send nothing to a broker id until then (monotonic)."""
        row = self.rows[self.indexes[broker]]
        row.state, row.until_ns = State.BACKING_OFF, until_ns

    def observe(self, now_ns: int, down: set[int]) -> None:
        """Bring the states that follow from facts up to date. `down`: ids without a connection."""
        observe(self.rows, now_ns, np.fromiter(down, np.int64, len(down)))


@kernel
def observe(rows: npt.NDArray[Any], now_ns: int, down: npt.NDArray[np.int64]) -> None:
    """See BrokerTable.observe; `down` int64[n]."""
    for row in rows:
        if row.state == BACKING_OFF and row.until_ns > now_ns:
            continue
        stalled = row.messages > 0 and now_ns - row.progress_ns > STALL_NS
        for broker in down:
            stalled = stalled or row.id == broker
        row.state = _STALLED if stalled else _HEALTHY


NO_SEQUENCE = np.iinfo(np.int64).max
"""In place of the lowest sequence in flight, or that waits, of a partition that has none."""
NONE = -1
"""In place of a flat number, or of a broker's index."""
NOT_HELD = -1
"""In place of a sequence."""


PARTITION_ROW = np.dtype(
    (
        np.record,
        [
            ("handle", np.int64),  # rd_kafka_topic_t
            ("held_from", np.int64),  # the first sequence that waits, so that no later one goes; or NOT_HELD
            ("messages", np.int64),  # in flight
            ("bytes", np.int64),  # in flight: keys and values
            ("topic", np.int32),  # number in spool.format.batch.Topics
            ("partition", np.int32),
            ("leader", np.int32),  # broker index; NONE: nothing can be sent
            ("charged", np.int32),  # the broker whose window has what is in flight: the leader, or the last
        ],
    )
)
"""One row, so that a message touches one cache line; kernels read it without counting references."""
_EMPTY = (0, NOT_HELD, 0, 0, 0, 0, NONE, NONE)


class PartitionTable:
    """All partitions heard of. Only grows."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, PARTITION_ROW)
        """PARTITION_ROW[capacity], by flat number; the first `count` are in use. Replaced when it grows."""
        self.count = 0
        self.flats: npt.NDArray[np.int32] = np.full((0, 0), NONE, np.int32)
        """int32[topic number, partition id]: the flat number; NONE where there is no such partition."""
        self.partitions_of: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """int32[topic number]: how many partitions are known."""
        self._any_held: bool | None = False
        """None: to be looked for."""

    @property
    def in_use(self) -> npt.NDArray[Any]:
        """PARTITION_ROW[count], by flat number, to be read."""
        return self.rows[: self.count]

    # -- topics -----------------------------------------------------------------------------------------

    def number(self, flat: int) -> int:
        """Kafka's number for this partition of its topic."""
        return int(self.rows["partition"][flat])

    def of_topic(self, topic: int) -> npt.NDArray[np.int32]:
        """int32[partitions]: the flat numbers of a topic's partitions."""
        return self.flats[topic, : self.partitions_of[topic]]

    def ever_of_topic(self, topic: int) -> npt.NDArray[np.int64]:
        """int64[n]: the same, with those that the topic has no more; empty for a topic that is not known."""
        return np.flatnonzero(self._column("topic") == topic)

    def flats_of(self, topics: Flats, partitions: Flats) -> Flats:
        """int32[n]: the flat numbers of known partitions, by topic and by Kafka's number in it."""
        return self.flats[topics, partitions]

    def count_of(self, topic: int) -> int:
        """How many partitions of a topic are known; 0 for a topic that is not."""
        return int(self.partitions_of[topic]) if topic < len(self.partitions_of) else 0

    def counts_of(self, topics: Flats) -> npt.NDArray[np.int32]:
        """int32[n]: the same of each of these."""
        beyond = int(topics.max(initial=-1)) + 1 - len(self.partitions_of)
        counts = np.pad(self.partitions_of, (0, beyond)) if beyond > 0 else self.partitions_of
        return counts[topics]

    def topics_of(self, flats: Flats) -> npt.NDArray[np.int32]:
        """int32[n]: the topics of these partitions, by number."""
        return np.asarray(self.rows["topic"][flats])

    def topics_where(self, which: Mask) -> set[int]:
        """The topics, by number, of the partitions that are chosen: bool by flat number."""
        return set(self._column("topic", len(which))[which].tolist())

    def are_of(self, topics: Collection[int], count: int) -> Mask:
        """bool[count] by flat number: a partition of one of these topics."""
        return np.isin(self._column("topic", count), list(topics))

    def where_topic(self, topics: Mask, count: int) -> Mask:
        """bool[count] by flat number: a partition of a topic that is chosen, bool by its number."""
        return topics[self._column("topic", count)]

    def where_topic_has(self, which: Mask) -> Mask:
        """bool[count] by flat number: its topic has one of the partitions that are chosen, bool[count]."""
        topics = self._column("topic")
        return np.asarray((np.bincount(topics, weights=which) > 0)[topics])

    # -- leaders ----------------------------------------------------------------------------------------

    def leader_of(self, flat: int) -> int:
        """The index of the broker that leads a partition; NONE without one."""
        return int(self.rows["leader"][flat])

    def led_by(self, brokers: Mask) -> Mask:
        """bool[count] by flat number: led by one of the brokers that are chosen, bool by index."""
        leaders = self._column("leader")
        led = leaders >= 0
        if led.any():
            led &= brokers[leaders]
        return np.asarray(led)

    def of_leader(self, broker: int) -> Mask:
        """bool[count] by flat number: led by the broker with this index; NONE: led by none."""
        return np.asarray(self._column("leader") == broker)

    def leading(self, which: Mask, count: int) -> Mask:
        """bool[count] by broker index: it leads a partition that is chosen, bool by flat number."""
        leaders = self._column("leader", len(which))[which]
        leads = np.zeros(count, np.bool_)
        leads[leaders[leaders >= 0]] = True
        return leads

    # -- what is held -----------------------------------------------------------------------------------

    @property
    def any_held(self) -> bool:
        """Whether any partition is held back. Most often none is, which is known without a look."""
        if self._any_held is None:
            self._any_held = bool(self.is_held().any())
        return self._any_held

    def note_held(self) -> None:
        """Others than this table have held partitions back in `rows`, or released them."""
        self._any_held = None

    def is_held(self) -> Mask:
        """bool[count] by flat number: held back."""
        return np.asarray(self._column("held_from") != NOT_HELD)

    def held_from_of(self, flats: Flats | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[n]: the first sequence that waits in each of these; NOT_HELD. For NONE, any number."""
        return np.asarray(self.rows["held_from"][flats])

    def held_by_topic(self, which: Mask) -> dict[int, int]:
        """Topic -> the first sequence that waits in the partitions chosen: bool[count], all held."""
        topics, held_from = self._column("topic")[which], self._column("held_from")[which]
        return {topic: int(held_from[topics == topic].min()) for topic in np.unique(topics).tolist()}

    def first_waiting(self) -> npt.NDArray[np.int64]:
        """int64[count] by flat number: the first sequence that waits; NO_SEQUENCE where none does."""
        held_from = self._column("held_from")
        return np.where(held_from == NOT_HELD, NO_SEQUENCE, held_from)

    def _column(self, name: str, count: int | None = None) -> npt.NDArray[Any]:
        """A field of the rows in use, or of the first `count`."""
        return np.asarray(self.rows[name][: self.count if count is None else count])

    # -- changes ----------------------------------------------------------------------------------------

    def extend(self, topic: int, partitions: int, handle: int) -> npt.NDArray[np.int32]:
        """Make a topic known, or grow it. Returns the flat numbers of all that it ever had, in order."""
        self._make_room(topic, partitions)
        known = int(np.count_nonzero(self.flats[topic] != NONE))
        if partitions > known:
            first, self.count = self.count, self.count + partitions - known
            self.flats[topic, known:partitions] = np.arange(first, self.count)
            self.rows["topic"][first : self.count] = topic
            self.rows["partition"][first : self.count] = np.arange(known, partitions)
        self.partitions_of[topic] = max(partitions, self.partitions_of[topic])
        flats = self.flats[topic, : max(known, partitions)]
        self.rows["handle"][flats] = handle
        return flats

    def widen(self, topic: int, partitions: int) -> None:
        """A known topic has so many, of some of which no answer tells at present: nothing goes there."""
        self.extend(topic, partitions, int(self.rows["handle"][self.flats[topic, 0]]))

    def shrink(self, topic: int, partitions: int) -> None:
        """A topic has fewer (deleted and created again). The rows of the others stay, for their messages."""
        self.partitions_of[topic] = partitions

    def exist(self, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these partitions their topic still has."""
        rows = self.rows[flats]
        return np.asarray(rows["partition"] < self.partitions_of[rows["topic"]])

    def hold(self, flats: npt.NDArray[np.int32], sequences: npt.NDArray[np.int64]) -> None:
        """Hold partitions back from these sequences on, or from earlier ones if they are held already."""
        self.note_held()
        held = self.rows["held_from"]
        for flat, sequence in zip(flats.tolist(), sequences.tolist(), strict=True):
            if held[flat] == NOT_HELD or sequence < held[flat]:
                held[flat] = sequence

    def hold_at(self, flats: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64] | int) -> None:
        """Hold partitions back from these sequences on, whatever they were held from before."""
        self.note_held()
        self.rows["held_from"][flats] = sequences

    def orphan(self, topic: int) -> None:
        """A topic is gone: none of its partitions has a leader."""
        if topic < len(self.partitions_of):
            self.rows["leader"][self.of_topic(topic)] = NONE

    def release(self, flats: npt.NDArray[np.int32] | Sequence[int] | int) -> None:
        """Let the live path send to partitions again."""
        self.note_held()
        self.rows["held_from"][flats] = NOT_HELD

    def held(self) -> npt.NDArray[np.int32]:
        """Flat numbers of the partitions that are held back."""
        return np.flatnonzero(self.is_held()).astype(np.int32)

    def _make_room(self, topic: int, partitions: int) -> None:
        rows, columns = self.flats.shape
        if topic >= rows or partitions > columns:
            grown = np.full((max(rows, 2 * topic, 16), max(columns, partitions)), NONE, np.int32)
            grown[:rows, :columns] = self.flats
            self.flats = grown
            self.partitions_of = np.pad(self.partitions_of, (0, len(grown) - rows))
        if self.count + partitions > len(self.rows):
            room = 2 * (self.count + partitions) - len(self.rows)
            self.rows = np.concatenate([self.rows, np.full(room, np.array(_EMPTY, PARTITION_ROW))])


@subkernel
def order_by_partition(
    flat: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], order: npt.NDArray[np.int32]
) -> int:
    """Sort rows by partition, keeping log order within each; returns how many have one.

    `flat` int32[n]: flat number by row, negative for rows to leave out. `starts` int64[partitions + 1]:
    scratch. `order` int32[n]: the row numbers.
    """
    starts[:] = 0
    for row in range(len(flat)):
        if flat[row] >= 0:
            starts[flat[row] + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    total = starts[-1]
    for row in range(len(flat)):
        number = flat[row]
        if number >= 0:
            order[starts[number]] = row
            starts[number] += 1
    return int(total)


_FREE = -1
_FIRST_ROOM = 1 << 14

FLIGHT_ROW = np.dtype(
    (
        np.record,
        [
            ("sequence", np.int64),
            ("flat_number", np.int32),  # of its partition; -1: the row is free
            ("bytes", np.int32),  # key and value
            ("received_ns", np.int64),  # since the epoch; 0: a record of our own
        ],
    )
)


class Flight:
    """The table of messages in flight."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.empty(0, FLIGHT_ROW)
        """FLIGHT_ROW[capacity]"""
        self.free: npt.NDArray[np.int32] = np.empty(0, np.int32)
        """int32[capacity]: free row numbers, a stack."""
        self.free_count: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """int64[1]: how many of `free` count."""
        self._grow(_FIRST_ROOM)

    @property
    def count(self) -> int:
        """Messages in flight."""
        return len(self.rows) - int(self.free_count[0])

    def make_room(self, messages: int) -> None:
        """Grow until so many can be added."""
        if self.free_count[0] < messages:
            self._grow(max(messages, len(self.rows)))

    def lowest(self, partitions: int) -> npt.NDArray[np.int64]:
        """int64[partitions] by flat number: the lowest sequence in flight; NO_SEQUENCE without any."""
        lowest = np.full(partitions, NO_SEQUENCE, np.int64)
        find_lowest(self.rows, self.count, lowest)
        return lowest

    def clear(self) -> npt.NDArray[Any]:
        """Forget everything; returns the ROWs that were in flight, in log order."""
        out = self.rows[self.rows["flat_number"] != _FREE]
        capacity = len(self.rows)
        self.rows, self.free_count[0] = self.rows[:0], 0
        self._grow(capacity)
        return out[np.argsort(out["sequence"])]

    def _grow(self, more: int) -> None:
        first, before = int(self.free_count[0]), len(self.rows)
        added = np.full(more, np.array((0, _FREE, 0, 0), FLIGHT_ROW))
        self.rows = np.concatenate([self.rows, added])
        # Low numbers on top: a table that is hardly used stays in the processor's cache.
        new = np.arange(before + more - 1, before - 1, -1, dtype=np.int32)
        self.free = np.concatenate([self.free[:first], new, np.empty(before - first, np.int32)])
        self.free_count[0] += more


@kernel
def find_lowest(flight: npt.NDArray[Any], count: int, lowest: npt.NDArray[np.int64]) -> None:
    """Lower `lowest` int64[partitions] to the lowest sequence in flight of each partition.

    `count`: of the rows in use. Most often those are among the first.
    """
    left = count
    for row in flight:
        if left == 0:
            return
        if row.flat_number >= 0:
            left -= 1
            lowest[row.flat_number] = min(lowest[row.flat_number], row.sequence)
