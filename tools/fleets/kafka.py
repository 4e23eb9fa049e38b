"""Topics, and the ends of their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

LOOK_S = 2.0
"""The timeout for the end of a partition whose broker may be away."""
Partition = tuple[str, int]
"""A topic, and one of its partitions."""


def connect(bootstrap: str) -> AdminClient:
    """A client for requests."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def ends(admin: AdminClient, places: Sequence[Partition]) -> dict[Partition, int]:
    """The offset after the last of each partition that answers."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets({TopicPartition(*place): latest for place in places}, request_timeout=LOOK_S)
    found = {}
    for partition, answer in asked.items():
        try:
            found[partition.topic, partition.partition] = answer.result(2 * LOOK_S).offset
        except Exception:  # noqa: BLE001, S112  (its broker is away, whatever librdkafka calls that)
            continue
    return found


def places_of(topics: Mapping[str, int]) -> list[Partition]:
    """Every partition of these."""
    return [(topic, partition) for topic, count in topics.items() for partition in range(count)]
