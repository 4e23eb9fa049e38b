"""Brokers as `status` shows them, and their offsets: what a restart without marks would begin at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.flight import NOBODY
from dispatch.partitions import NOT_HELD
from dispatch.pool import Pool


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


def lowest(pool: Pool) -> npt.NDArray[np.int64]:
    """By flat number: the lowest sequence in flight or held back; NOBODY where there is none."""
    held = pool.partitions.rows["held_from"][: pool.partitions.count]
    return np.minimum(pool.lowest_in_flight(), np.where(held == NOT_HELD, NOBODY, held))


def lowest_without_leader(pool: Pool) -> int:
    """The lowest sequence of the partitions that belong to no broker; NOBODY without any."""
    leader = pool.partitions.rows["leader"][: pool.partitions.count]
    return int(lowest(pool)[leader < 0].min(initial=NOBODY))


def view_brokers(pool: Pool, frontier: int) -> list[BrokerView]:
    """Every broker, as of now; nothing below `frontier` is still to be read."""
    leader = pool.partitions.rows["leader"][: pool.partitions.count]
    unresolved = lowest(pool)
    return [
        BrokerView(
            int(broker["id"]),
            int(broker["state"]),
            int(min(frontier, unresolved[leader == index].min(initial=NOBODY))),
            int(broker["messages"]),
            int(broker["acked"]),
        )
        for index, broker in enumerate(pool.brokers.rows)
    ]
