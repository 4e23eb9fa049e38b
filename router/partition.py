"""The choice of a partition: pure functions of the message and of what is known of its topic.

| name            | choice |
|-----------------|--------|
| `any`           | one available partition for the messages read together, then the next: large batches |
| `round_robin`   | the next available partition for every message |
| `partition_key` | the partition key, unsigned, modulo the topic's partitions |
| `murmur2`       | of the record's key, as Java's client: (murmur2 & 0x7fffffff) modulo the partitions |
| `crc32`         | of the record's key, as librdkafka's `consistent`: crc32 modulo the partitions |
| `module:name`   | a function of the user's: (keys, partition_keys, partitions) -> partition by row; modulo |

A topic that has none of its own: PartitionKey messages go by `partition_key`, others by the default
partitioner, which is `murmur2` unless it is set. A message without the key that its partitioner needs goes
by `any`. The only partition of a topic is chosen whether it is available or not, so that its messages stay
in order. A partitioner that hashes a key uses all partitions of the topic,
available or not: the same key, the same partition. The router finds messages for which a user's function
raises, or returns no whole number, by halving the batch, and refuses them.

A message that names its partition goes there, whatever the partitioner. A null key is none; an empty key that
is not null is one for `murmur2`, as for Java's client, and none for `crc32`, as for librdkafka's
`consistent_random`.

Sources: Kafka's Utils.murmur2 (seed 0x9747b28c), and CRC-32 as of IEEE 802.3.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from router import BadPartitioner
from router.timing import QUIET_S
from spool.format.batch import (
    KEY_AT,
    KEY_BYTES,
    KEYED,
    NULL_KEY,
    NUMBER,
    NUMBERED,
    SEQUENCE,
    TOPIC,
    TRAITS,
    Batch,
    Narrow,
    Topics,
    Wide,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, load_u8, load_u32
from spool.throttle import Throttle
from spool.words import counted

if TYPE_CHECKING:  # it brings the marks along
    from router.outcomes.acks import SegmentBits

_log = logging.getLogger("bruce.router")

DEFAULT = "murmur2"
"""As Kafka's client for Java: a key is where other producers put it, and where consumers join by it."""
REFUSED, ABSENT = -2, -3
"""In place of a flat number: the topic's function gave no partition; it has none of the message's number."""

Custom = Callable[[list[bytes | None], npt.NDArray[np.int32], int], npt.NDArray[np.int32]]


_REASONS = {
    "partition_key": "its partition key, unsigned, modulo {count}",
    "murmur2": "murmur2 of its key, modulo {count}, as Java's client",
    "crc32": "crc32 of its key, modulo {count}, as librdkafka's",
    "round_robin": "any of {count}, in turns",
    "any": "any of {count}",
}


class Mode(IntEnum):
    """Partitioners by number, for the kernel."""

    DEFAULT = 0
    ANY = 1
    ROUND_ROBIN = 2
    PARTITION_KEY = 3
    MURMUR2 = 4
    CRC32 = 5
    CUSTOM = 6


RUN_BITS = 10
"""`settle` sends 1,024 messages of `any`, by their numbers, to one partition before it takes the next."""
_ROUND_ROBIN, _PARTITION_KEY, _MURMUR2, _CRC32, _CUSTOM = range(2, 7)
_ABSENT = ABSENT


def _crc_table() -> npt.NDArray[np.uint32]:
    """The 256 remainders of CRC-32, by the polynomial 0xEDB88320 (reflected)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1).astype(np.uint32)
    return table


CRC_TABLE = _crc_table()

MOST_SAID = 200
"""Characters of what a user's function says."""


class _Refusal(NamedTuple):
    """The last time that a topic's function refused messages."""

    sentence: str
    at: float


class Partitioners:
    """The partitioner of every topic, and how far their rotations are."""

    def __init__(self, names: Mapping[str, str], default: str = DEFAULT) -> None:
        """`names`: by topic. `default`, no function: of AnyPartition messages of other topics.

        Raises BadPartitioner.
        """
        self._default = int(_NAMES[default])
        self._chosen = {topic.encode(): _parse(topic, name) for topic, name in names.items()}
        self._modes = np.zeros(0, np.int32)
        self._rotation = np.zeros(0, np.int64)
        self._refusals: dict[str, _Refusal] = {}
        """By topic."""
        self._throttle = Throttle(QUIET_S)

    def sentence(self) -> str:
        """Which function has refused messages lately, and why; empty when none has."""
        late = time.monotonic() - QUIET_S
        return next((refusal.sentence for refusal in self._refusals.values() if refusal.at > late), "")

    def assign(
        self,
        batch: Batch,
        wanted: npt.NDArray[np.bool_],
        partitions_of: npt.NDArray[np.int32],
        flats: npt.NDArray[np.int32],
        available: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32]:
        """The flat partition of each row; -1 for rows not wanted, and where there is none to go to.

        REFUSED where the user's function fails, ABSENT where there is no partition of the message's number.

        `partitions_of` int32[topics], `flats` int32[topics, partitions] as dispatch numbers them;
        `available` bool by flat number: where messages that may go anywhere may go.
        """
        self._learn(batch.topics)
        flat = np.full(len(batch), -1, np.int32)
        assign(
            batch.data_at,
            wanted,
            batch.topic,
            batch.traits,
            batch.number,
            batch.key_at,
            batch.key_bytes,
            self._modes,
            self._default,
            self._rotation,
            partitions_of,
            flats,
            available,
            CRC_TABLE,
            flat,
        )
        for name, (_, function) in self._chosen.items():
            topic = batch.topics.find(name) if function else -1
            if function is None or not 0 <= topic < len(partitions_of) or not partitions_of[topic]:
                continue
            rows = np.flatnonzero(wanted & (batch.topic == topic) & ~batch.numbered)
            chosen, error = _halve(function, batch, rows, int(partitions_of[topic]))
            flat[rows] = np.where(chosen < 0, REFUSED, flats[topic, chosen])
            if error:
                self._note(name.decode(), function, int((chosen < 0).sum()), error)
        return flat

    def place(
        self,
        batch: Batch,
        bits: SegmentBits | None,
        partitions_of: npt.NDArray[np.int32],
        flats: npt.NDArray[np.int32],
        available: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32] | None:
        """Assign the rows that are open by `bits`, in one compiled loop, and set their bits in `taken`.

        None, and nothing changes, if one finds no partition to go to, or goes by a function of the user's; or
        without bits.
        """
        if bits is None:
            return None
        self._learn(batch.topics)
        flat = np.empty(len(batch), np.int32)
        placed = place(
            batch.data_at,
            batch.wide,
            batch.narrow,
            self._modes,
            self._default,
            self._rotation,
            partitions_of,
            flats,
            available,
            CRC_TABLE,
            bits.info.first_sequence,
            bits.resolved,
            bits.taken,
            flat,
        )
        return flat if placed else None

    def choice(self, topics: Topics) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
        """`modes`, `rotation` and `default`, as `place` takes them, for topics that are known by now."""
        self._learn(topics)
        return self._modes, self._rotation, self._default

    def settle(
        self,
        batch: Batch,
        wanted: npt.NDArray[np.bool_],
        partitions_of: npt.NDArray[np.int32],
        flats: npt.NDArray[np.int32],
        available: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32]:
        """The same, by the message alone: nothing rotates, so that the same question has the same answer.

        A message that may go anywhere goes by its sequence number: `any` in runs, `round_robin` in turns.
        Raises BadPartitioner where a user's function fails.
        """
        free = wanted & self.free(batch)
        flat = self.assign(batch, wanted & ~free, partitions_of, flats, available)
        if (flat == REFUSED).any():
            raise BadPartitioner(self.sentence())
        in_turns = self._modes_of(batch) == Mode.ROUND_ROBIN
        turn = np.where(in_turns, batch.sequence, batch.sequence >> RUN_BITS)
        for topic in np.unique(batch.topic[free]).tolist():
            count = int(partitions_of[topic]) if topic < len(partitions_of) else 0
            places = flats[topic, :count]
            places = places[available[places]]
            if len(places):
                rows = free & (batch.topic == topic)
                flat[rows] = places[turn[rows] % len(places)]
        return flat

    def _note(self, topic: str, function: Custom, count: int, error: str) -> None:
        """Remember that a function refused messages of a topic, and log it now and then."""
        name = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
        words = f"the partitioner {name} of topic {topic} gives no partition for some messages ({error})"
        if self._throttle.due(topic):
            _log.error("%s; they are given up: %d in this batch", words, count)
        self._refusals[topic] = _Refusal(f"{words}: mend it; they are given up", time.monotonic())

    def free(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows may go to any partition of their topic."""
        mode = self._modes_of(batch)
        bound = batch.numbered | (mode == Mode.CUSTOM)
        bound |= (mode == Mode.PARTITION_KEY) & batch.keyed
        bound |= (mode == Mode.MURMUR2) & (batch.traits & NULL_KEY == 0)
        bound |= (mode == Mode.CRC32) & (batch.key_bytes > 0)
        return np.asarray(~bound)

    def _modes_of(self, batch: Batch) -> npt.NDArray[np.int32]:
        """The Mode of each row, never DEFAULT."""
        self._learn(batch.topics)
        mode = self._modes[batch.topic]
        unset = np.where(batch.keyed, Mode.PARTITION_KEY, self._default).astype(np.int32)
        return np.where(mode == Mode.DEFAULT, unset, mode)

    def _learn(self, topics: Topics) -> None:
        """Number the partitioners of topics that are new."""
        known = len(self._modes)
        if known < len(topics.names):
            modes = [self._chosen.get(name, (Mode.DEFAULT, None))[0] for name in topics.names[known:]]
            self._modes = np.concatenate([self._modes, np.array(modes, np.int32)])
            self._rotation = np.concatenate([self._rotation, np.zeros(len(modes), np.int64)])


_NAMES = {mode.name.lower(): mode for mode in Mode if mode not in (Mode.DEFAULT, Mode.CUSTOM)}


def _parse(topic: str, name: str) -> tuple[Mode, Custom | None]:
    where = f'[topics."{topic}"] partitioner'
    if name in _NAMES:
        return _NAMES[name], None
    module, colon, attribute = name.partition(":")
    if not colon:
        raise BadPartitioner(f"{where}: {name!r} is none of {', '.join(_NAMES)}")
    try:
        function: Custom = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadPartitioner(f"{where}: cannot load {name}: {error}") from error
    if not callable(function):
        raise BadPartitioner(f"{where}: {name} is no function")
    return Mode.CUSTOM, function


def _halve(
    function: Custom, batch: Batch, rows: npt.NDArray[np.int64], count: int
) -> tuple[npt.NDArray[np.int64], str]:
    """The choices of a user's function for rows, -1 where it fails; and how it failed first, if it did."""
    if len(rows) == 0:
        return np.empty(0, np.int64), ""
    try:
        keys = [batch.key(row) for row in rows.tolist()]
        partition_keys = np.where(batch.keyed[rows], batch.number[rows], np.int32(0))
        chosen = np.asarray(function(keys, partition_keys, count))
        if chosen.shape != rows.shape or chosen.dtype.kind not in "iu":
            raise TypeError(f"{chosen.dtype} of shape {chosen.shape} for {counted(len(rows), 'message')}")  # noqa: TRY301
    except (Exception, SystemExit) as error:  # noqa: BLE001  (it is the user's, and may raise anything)
        if len(rows) == 1:
            return np.array([-1]), f"{type(error).__name__}: {error}"[:MOST_SAID]
        half = len(rows) // 2
        parts = [_halve(function, batch, part, count) for part in (rows[:half], rows[half:])]
        return np.concatenate([found for found, _ in parts]), parts[0][1] or parts[1][1]
    return chosen.astype(np.int64) % count, ""


@subkernel
def murmur2(at: Address, length: int) -> int:
    """Kafka's 32-bit murmur2 of `length` bytes at address `at`."""
    mask = 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    for i in range(length // 4):
        k = (load_u32(at + 4 * i) * 0x5BD1E995) & mask
        k = ((k ^ (k >> 24)) * 0x5BD1E995) & mask
        h = ((h * 0x5BD1E995) & mask) ^ k
    rest = at + (length & ~3)
    left = length & 3
    if left == 3:
        h ^= load_u8(rest + 2) << 16
    if left >= 2:
        h ^= load_u8(rest + 1) << 8
    if left >= 1:
        h = ((h ^ load_u8(rest)) * 0x5BD1E995) & mask
    h = ((h ^ (h >> 13)) * 0x5BD1E995) & mask
    return h ^ (h >> 15)


@subkernel
def crc32(at: Address, length: int, table: npt.NDArray[np.uint32]) -> int:
    """CRC-32 of `length` bytes at address `at`. `table`: CRC_TABLE, uint32[256]."""
    value: Any = 0xFFFFFFFF
    for i in range(length):
        value = np.int64(table[(value ^ load_u8(at + i)) & 0xFF]) ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@subkernel
def _next_available(
    topic: int,
    count: int,
    after: int,
    flats: npt.NDArray[np.int32],
    available: npt.NDArray[np.bool_],
) -> int:
    """The number of the first available partition behind `after`, in a ring; -1 when there is none.

    `flats` int32[topics, partitions]; `available` bool by flat number.
    """
    for step in range(1, count + 1):
        partition = (after + step) % count
        if available[flats[topic, partition]]:
            return partition
    return -1


@kernel
def assign(
    base: Address,
    wanted: npt.NDArray[np.bool_],
    topics: npt.NDArray[np.int32],
    traits: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int32],
    key_at: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.int32],
    modes: npt.NDArray[np.int32],
    default: int,
    rotation: npt.NDArray[np.int64],
    partitions_of: npt.NDArray[np.int32],
    flats: npt.NDArray[np.int32],
    available: npt.NDArray[np.bool_],
    crc_table: npt.NDArray[np.uint32],
    flat: npt.NDArray[np.int32],
) -> None:
    """Fill `flat` int32[messages] for the wanted rows; `rotation` int64[topics] moves on.

    `base`: the address that the offsets `key_at` count from. `wanted` bool[messages]; `topics` to
    `key_bytes`: columns of a Batch; `modes` int32[topics], a Mode each; `crc_table` uint32[256]. All else is
    as in Partitioners.assign.
    """
    run = np.full(len(modes), -2, np.int64)
    for row in range(len(flat)):
        topic = topics[row]
        if not wanted[row] or topic >= len(partitions_of) or partitions_of[topic] == 0:
            continue
        count: Any = np.int64(partitions_of[topic])
        if traits[row] & NUMBERED:
            flat[row] = flats[topic, numbers[row]] if 0 <= numbers[row] < count else _ABSENT
            continue
        mode, keyed = modes[topic], traits[row] & KEYED
        if mode == 0:
            mode = _PARTITION_KEY if keyed else default
        if mode == _CUSTOM:
            continue
        if count == 1:
            # There is no choice: it waits behind those that wait there.
            flat[row] = flats[topic, 0]
            continue
        partition: Any = np.int64(-1)
        if mode == _PARTITION_KEY and keyed:
            partition = (np.int64(numbers[row]) & 0xFFFFFFFF) % count
        elif mode == _MURMUR2 and not traits[row] & NULL_KEY:
            partition = (murmur2(Address(base + key_at[row]), int(key_bytes[row])) & 0x7FFFFFFF) % count
        elif mode == _CRC32 and key_bytes[row] > 0:
            partition = crc32(Address(base + key_at[row]), int(key_bytes[row]), crc_table) % count
        elif mode == _ROUND_ROBIN:
            partition = _next_available(topic, count, rotation[topic], flats, available)
            rotation[topic] = max(partition, np.int64(0))
        else:
            if run[topic] == -2:
                run[topic] = _next_available(topic, count, rotation[topic], flats, available)
                rotation[topic] = max(run[topic], np.int64(0))
            partition = run[topic]
        if partition >= 0:
            flat[row] = flats[topic, partition]


@kernel
def place(
    base: Address,
    wide: Wide,
    narrow: Narrow,
    modes: npt.NDArray[np.int32],
    default: int,
    rotation: npt.NDArray[np.int64],
    partitions_of: npt.NDArray[np.int32],
    flats: npt.NDArray[np.int32],
    available: npt.NDArray[np.bool_],
    crc_table: npt.NDArray[np.uint32],
    first: int,
    resolved: npt.NDArray[np.uint8],
    taken: npt.NDArray[np.uint8],
    flat: npt.NDArray[np.int32],
) -> bool:
    """Fill `flat` for the rows whose bit is set in neither bitmap, and set it in `taken`; -1 for others.

    `base`, `wide` and `narrow` are a Batch's. Both bitmaps begin with message `first`. False, and nothing but
    `flat` changes, if one of these rows finds no partition. See Partitioners.place.
    """
    flat[:] = -1
    sequences = wide[SEQUENCE]
    moved, wanted = rotation.copy(), np.empty(len(flat), np.bool_)
    for row in range(len(flat)):
        at = sequences[row] - first
        wanted[row] = ((resolved[at >> 3] | taken[at >> 3]) >> (at & 7)) & 1 == 0
    assign(
        base,
        wanted,
        narrow[TOPIC],
        narrow[TRAITS],
        narrow[NUMBER],
        wide[KEY_AT],
        narrow[KEY_BYTES],
        modes,
        default,
        moved,
        partitions_of,
        flats,
        available,
        crc_table,
        flat,
    )
    for row in range(len(flat)):
        if wanted[row] and flat[row] < 0:
            return False
    rotation[:] = moved
    for row in range(len(flat)):
        if wanted[row]:
            at = sequences[row] - first
            taken[at >> 3] |= np.uint8(1 << (at & 7))
    return True


class Choice(NamedTuple):
    """The partition of a message, and why."""

    partition: int | None
    """None: to any that is there, or it is not known how many there are."""
    partitions: int | None
    """How many its topic had, as the marks know it."""
    reason: str


def explain(
    batch: Batch,
    row: int,
    partitioners: Mapping[str, str],
    history: Sequence[tuple[int, int]],
    default: str = DEFAULT,
) -> Choice:
    """Choose again for one row. Raises BadPartitioner.

    `partitioners` by topic and `default`: as configured. `history` of its topic: (from sequence, partitions),
    in order.
    """
    counts = [count for first, count in history if first <= int(batch.sequence[row])]
    if not counts:
        return Choice(None, None, "nothing says how many partitions its topic has: none was delivered yet")
    count, topic = counts[-1], int(batch.topic[row])
    if batch.numbered[row]:
        number = int(batch.number[row])
        if 0 <= number < count:
            return Choice(number, count, "its sender names it")
        return Choice(None, count, f"its sender names partition {number}, and its topic has {count}")
    name = batch.topics.names[topic].decode("utf-8", "replace")
    chosen = partitioners.get(name) or ("partition_key" if batch.keyed[row] else default)
    partitions = Partitioners(partitioners, default)
    wanted = np.arange(len(batch)) == row
    if partitions.free(batch)[row]:
        if count == 1:
            return Choice(0, count, "its topic has one partition")
        chosen = chosen if chosen == "round_robin" else "any"
        return Choice(None, count, _REASONS[chosen].format(count=count))
    flats = np.tile(np.arange(count, dtype=np.int32), (len(batch.topics.names), 1))
    counts_of = np.full(len(batch.topics.names), count, np.int32)
    flat = partitions.assign(batch, wanted, counts_of, flats, np.ones(count, np.bool_))
    if flat[row] == REFUSED:
        return Choice(None, count, partitions.sentence())
    reason = _REASONS.get(chosen, f"{chosen} chose it among {{count}}").format(count=count)
    return Choice(int(flat[row]), count, reason)
