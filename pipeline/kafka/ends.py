"""The ends of partitions: what Kafka has dropped at their start, and what it withholds at their end.

Kafka drops the oldest records of a partition by retention, or because somebody has it delete them. It
withholds the records from the first of a transaction that is open on, whoever sent them, from consumers that
read what is committed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, TopicPartition

from dispatch.consumer import Listener, find_id, open_consumer, read_headers
from pipeline.kafka.ranges import RANGE_OFFSETS, TIMEOUT_S, Range, partitions_of, whole_range

_COMMITTED, _UNCOMMITTED = ({"isolation.level": f"read_{kind}"} for kind in ("committed", "uncommitted"))
_FIRST_ONLY = {"queued.min.messages": "1", "max.partition.fetch.bytes": "65536"}
_AT_ONCE = 100
"""Partitions whose first records are read together."""
_POLL_S = 0.2


class Start(NamedTuple):
    """A partition that has dropped records, and the first record that is left."""

    topic: str
    partition: int
    dropped: int
    """Offsets before that record."""
    timestamp_ms: int | None
    """None: there is no record left, or it did not come in time."""
    is_empty: bool = False
    spool: str = ""
    sequence: int = -1
    """The stamp of the record, if it has one."""


def find_starts(properties: Mapping[str, str], topics: Iterable[str]) -> list[Start]:
    """The partitions of these topics that have dropped records. Raises Unreachable, BadProperty."""
    with closing(open_consumer({**properties, **_FIRST_ONLY, **_UNCOMMITTED})) as consumer:
        begun = _begun(consumer, properties, topics)
        full = [one for one in begun if one.start < one.end]
        found = [
            Start(one.topic, one.partition, one.start, None, is_empty=True)
            for one in begun
            if one.start >= one.end
        ]
        for first in range(0, len(full), _AT_ONCE):
            found += _first_records(consumer, full[first : first + _AT_ONCE])
    return found


def count_dropped(properties: Mapping[str, str], topics: Iterable[str]) -> dict[str, int]:
    """Offsets that Kafka had and has no more, by topic, where there are any.

    Raises Unreachable, BadProperty.
    """
    with closing(open_consumer(properties)) as consumer:
        return offsets_of(_begun(consumer, properties, topics))


def offsets_of(starts: Iterable[Start | Range]) -> dict[str, int]:
    """The offsets that these partitions have dropped, by topic."""
    found: Counter[str] = Counter()
    for one in starts:
        found[one.topic] += one.start if isinstance(one, Range) else one.dropped
    return dict(found)


def _begun(consumer: Listener, properties: Mapping[str, str], topics: Iterable[str]) -> list[Range]:
    """The partitions that do not begin at offset 0."""
    known = partitions_of(consumer, properties)
    chosen = sorted(known.keys() & set(topics))
    ranges = (whole_range(consumer, topic, partition) for topic in chosen for partition in known[topic])
    return [one for one in ranges if one.start]


def _first_records(consumer: Listener, ranges: list[Range]) -> list[Start]:
    waiting = {(one.topic, one.partition): one for one in ranges}
    consumer.assign([TopicPartition(one.topic, one.partition, one.start) for one in ranges])
    found, deadline = [], time.monotonic() + TIMEOUT_S
    while waiting and time.monotonic() < deadline:
        for message in consumer.consume(_AT_ONCE, _POLL_S):
            error = message.error()
            if error and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                continue
            topic, partition = message.topic() or "", message.partition() or 0
            one = waiting.pop((topic, partition), None)
            if one is None:
                continue
            consumer.incremental_unassign([TopicPartition(topic, partition)])
            # At the end of a partition whose offsets hold no record that anybody may read.
            found.append(
                Start(topic, partition, one.start, None, is_empty=True) if error else _start_of(message, one)
            )
    consumer.unassign()
    return [*found, *(Start(one.topic, one.partition, one.start, None) for one in waiting.values())]


def _start_of(message: Message, one: Range) -> Start:
    headers = read_headers(message)
    at = find_id(headers)
    stamp = b"" if at is None else headers[at][1] or b""
    return Start(
        one.topic,
        one.partition,
        one.start,
        message.timestamp()[1],
        spool=stamp[:16].hex(),
        sequence=int.from_bytes(stamp[16:], "big") if stamp else -1,
    )


def plan_withheld(properties: Mapping[str, str], topics: Iterable[str] | None = None) -> list[Range]:
    """The offsets of these topics, by default all, that no consumer gets which reads what is committed.

    Raises Unreachable, BadProperty.
    """
    readable, all_ends = (_ends({**properties, **kind}, topics) for kind in (_COMMITTED, _UNCOMMITTED))
    return [
        Range(topic, partition, at, min(at + RANGE_OFFSETS, end))
        for (topic, partition), end in all_ends.items()
        for at in range(readable.get((topic, partition), end), end, RANGE_OFFSETS)
    ]


def uncommitted(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a consumer that gets those, too."""
    return {**properties, **_UNCOMMITTED}


def _ends(properties: Mapping[str, str], topics: Iterable[str] | None) -> dict[tuple[str, int], int]:
    with closing(open_consumer(properties)) as consumer:
        known = partitions_of(consumer, properties)
        chosen = sorted(known if topics is None else known.keys() & set(topics))
        return {
            (topic, partition): whole_range(consumer, topic, partition).end
            for topic in chosen
            for partition in known[topic]
        }
