"""Why a message goes to its partition, in words: the choice made again, for one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from router.partition import REFUSED, Partitioners
from spool.record import Batch

_REASONS = {
    "partition_key": "its partition key, unsigned, modulo {count}",
    "murmur2": "murmur2 of its key, modulo {count}, as Java's client",
    "crc32": "crc32 of its key, modulo {count}, as librdkafka's",
    "round_robin": "any of {count}, in turns",
    "any": "any of {count}",
}


class Choice(NamedTuple):
    """Where a message goes."""

    partition: int | None
    """None: to any that is there, or it is not known how many there are."""
    partitions: int | None
    """How many its topic had, as the marks know it."""
    reason: str


def explain(
    batch: Batch, row: int, partitioners: Mapping[str, str], history: Sequence[tuple[int, int]]
) -> Choice:
    """Choose again for one row. Raises BadPartitioner.

    `partitioners`: by topic, as configured. `history` of its topic: (from sequence, partitions), in order.
    """
    counts = [count for first, count in history if first <= int(batch.sequence[row])]
    if not counts:
        return Choice(None, None, "nothing says how many partitions its topic has: none was delivered yet")
    count, topic = counts[-1], int(batch.topic[row])
    name = batch.topics.names[topic].decode("utf-8", "replace")
    chosen = partitioners.get(name) or ("partition_key" if batch.keyed[row] else "any")
    partitions = Partitioners(partitioners)
    wanted = np.arange(len(batch)) == row
    if partitions.free(batch)[row]:
        chosen = chosen if chosen == "round_robin" else "any"
        return Choice(None, count, _REASONS[chosen].format(count=count))
    flats = np.tile(np.arange(count, dtype=np.int32), (len(batch.topics.names), 1))
    counts_of = np.full(len(batch.topics.names), count, np.int32)
    flat = partitions.assign(batch, wanted, counts_of, flats, np.ones(count, np.bool_))
    if flat[row] == REFUSED:
        return Choice(None, count, partitions.sentence())
    reason = _REASONS.get(chosen, f"{chosen} chose it among {{count}}").format(count=count)
    return Choice(int(flat[row]), count, reason)
