"""The brokers as the router sees them: which take more now, which partitions may be chosen, their offsets.

`Capacity` answers while messages are routed. `view_brokers` is the picture for `status`, with the offset of
each broker: a restart without marks would begin there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.tables import NO_SEQUENCE, State
from spool.native.kernel import kernel

if TYPE_CHECKING:  # they bring librdkafka along
    from dispatch.client import KafkaClient
    from dispatch.pool import Pool
    from router.cluster.metadata import Metadata

BATCH_MESSAGES = 8192
BATCH_BYTES = 1 << 20
"""So much room is waited for before a batch is handed over, or half of the window where that is less."""

UNROUTED = -1
"""The broker id under which the offset of messages routed to no broker is kept."""

_HEALTHY = int(State.HEALTHY)

Mask = npt.NDArray[np.bool_]


@kernel
def survey(
    partitions: npt.NDArray[Any], brokers: npt.NDArray[Any], messages: int, size: int, led: Mask
) -> bool:
    """Whether all brokers are healthy, with at most so many messages and bytes in flight.

    `partitions` dispatch.tables.PARTITION_ROW[count], `brokers` BROKER_ROW[n]. Sets `led` bool[count]: the
    partition has a leader.
    """
    for broker in brokers:
        full = broker.messages > messages or broker.bytes > size
        if broker.state != _HEALTHY or (full and broker.messages > 0):
            return False
    for flat in range(len(partitions)):
        led[flat] = partitions[flat].leader >= 0
    return True


class Capacity:
    """The room in a pool's windows. Masks are bool by broker index, or by flat number of a partition."""

    def __init__(self, pool: Pool, window_messages: int, window_bytes: int) -> None:
        self._pool = pool
        self._messages = window_messages - max(1, min(BATCH_MESSAGES, window_messages // 2))
        self._bytes = window_bytes - max(1, min(BATCH_BYTES, window_bytes // 2))

    def calm(self) -> Mask | None:
        """By partition, if nothing is held back anywhere: it has a leader. None if something is."""
        pool = self._pool
        if pool.closed or not pool.brokers.count or pool.partitions.any_held:
            return None
        led = np.empty(pool.partitions.count, np.bool_)
        is_calm = survey(pool.partitions.in_use, pool.brokers.rows, self._messages, self._bytes, led)
        return led if is_calm else None

    @property
    def room(self) -> tuple[int, int]:
        """Most messages and bytes in flight of a broker that `calm` has nothing against."""
        return self._messages, self._bytes

    def roomy(self) -> Mask:
        """By broker: open, with room for a batch. An empty window takes any message."""
        roomy = self._pool.brokers.with_room(self._messages, self._bytes)
        return np.zeros_like(roomy) if self._pool.closed else roomy

    def may_read(self, partitions: Mask) -> bool:
        """Whether the reading for these partitions may go on.

        Every broker of theirs that moves has room; where none of them moves, some broker has.
        """
        roomy = self.roomy()
        moving = self._pool.partitions.leading(partitions, len(roomy)) & self._pool.brokers.healthy()
        return bool(roomy[moving].all() if moving.any() else roomy.any())

    def free(self) -> Mask:
        """By partition: not held back."""
        return ~self._pool.partitions.is_held()

    def led(self) -> Mask:
        """By partition: it has a leader, which has room."""
        return self._pool.partitions.led_by(self.roomy())

    def orphaned(self) -> bool:
        """Whether a partition is held whose leader is unknown or does not move; it may have another."""
        partitions = self._pool.partitions
        if not partitions.any_held:
            return False
        return not partitions.led_by(self._pool.brokers.healthy())[partitions.is_held()].all()

    def available(self, ready: Mask | None) -> Mask:
        """By partition: where messages that may go anywhere may go.

        Not held, or ready to catch up; with room; on a healthy broker where the topic has such a partition.
        """
        partitions, free = self._pool.partitions, self.free()
        if ready is not None:
            free |= ready
        free &= self.led()
        if not free.any():
            return free
        healthy = free & partitions.led_by(self._pool.brokers.healthy())
        return healthy | (free & ~partitions.where_topic_has(healthy))


class Kafka(NamedTuple):
    """The cluster as the router sees it."""

    client: KafkaClient
    pool: Pool
    capacity: Capacity
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker as `status` shows it."""

    id: int
    state: int
    offset: int
    """The lowest sequence routed to it and not resolved."""
    in_flight: int
    acked: int
    """Messages that it has acknowledged since the worker was started."""


def lowest_by_broker(pool: Pool) -> npt.NDArray[np.int64]:
    """int64[brokers + 1] by index: the lowest sequence in flight or held back; NO_SEQUENCE without any.

    The last is that of partitions that belong to no broker.
    """
    partitions, lowest = pool.partitions, np.full(pool.brokers.count + 1, NO_SEQUENCE, np.int64)
    by_partition = pool.lowest_in_flight()
    if partitions.any_held:
        by_partition = np.minimum(by_partition, partitions.first_waiting())
    # The index of no broker is -1.
    np.minimum.at(lowest, partitions.in_use["leader"], by_partition)
    return lowest


def view_brokers(pool: Pool, read_position: int, lowest: npt.NDArray[np.int64]) -> list[BrokerView]:
    """Every broker, as of now; nothing below `read_position` is still to be read.

    `lowest`: as `lowest_by_broker` gives it.
    """
    rows, offsets = pool.brokers.rows, np.minimum(lowest[:-1], read_position)
    columns = rows["id"], rows["state"], offsets, rows["messages"], rows["acked"]
    return list(starmap(BrokerView, zip(*(column.tolist() for column in columns), strict=True)))
