"""Single records with headers of their own: dead letters. Python runs for each, since they are few.

They go through the same producer and the same windows as all messages, and their reports come with all
others, under the sequence number of the message that they are about.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.librdkafka import COPY_MESSAGE, Vtype
from dispatch.partitions import PartitionTable
from dispatch.record import Argument, hand_over, place


class Letter(NamedTuple):
    """One record."""

    sequence: int
    """Of the message that it is about; its report comes under this number."""
    timestamp: int
    """Of the record: milliseconds since the epoch, above 0."""
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[bytes, bytes]]
    reason: int
    """Why the message is here, a spool.wire.Reason; with `topic`, its own, for the progress record."""
    topic: bytes

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value)


def produce(client: KafkaClient, partition: Any, number: int, letter: Letter) -> int:
    """Hand a letter to librdkafka, which copies it: 0, or its error code.

    `partition`: a dispatch.partitions.ROW; `number`: the row in flight that the report names.
    """
    arguments: list[Argument] = [
        (Vtype.RKT, int(partition.handle)),
        (Vtype.PARTITION, int(partition.partition)),
        (Vtype.MSGFLAGS, COPY_MESSAGE),
        (Vtype.VALUE, *place(letter.value)),
        (Vtype.KEY, *(place(letter.key) if letter.key else (0, 0))),
        (Vtype.TIMESTAMP, letter.timestamp),
        (Vtype.OPAQUE, number),
        *((Vtype.HEADER, place(name)[0], *place(value)) for name, value in letter.headers),
    ]
    return hand_over(client.library, client.handle, arguments)


def charge(
    row: Any, letter: Letter, flat: int, partitions: PartitionTable, brokers: npt.NDArray[Any]
) -> None:
    """Note in `row` (a dispatch.flight.ROW) that a letter is in flight."""
    row.sequence, row.flat_number, row.bytes, row.received_ns = letter.sequence, flat, letter.size, 0
    partition = partitions.rows[flat]
    broker = brokers[int(partition.charged)]
    if broker.messages == 0:
        broker.progress_ns = time.monotonic_ns()
    for load in (partition, broker):
        load.messages += 1
        load.bytes += letter.size
