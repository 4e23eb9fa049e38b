"""Where in Kafka one message is: its record, found by the header `bruce-id`, near its timestamp."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from dispatch.codes import Code
from dispatch.consumer import open_consumer
from dispatch.errors import Unreachable
from dispatch.handover import HEADER_NAME

TIMEOUT_S = 15.0
"""For each question to the brokers, at most."""
_BATCH = 1000
_POLL_S = 1.0


class Wanted(NamedTuple):
    """A message as its record would be known."""

    topic: str
    stamp: bytes
    """The header's value, 24 bytes."""
    from_ms: int
    """No record of it has an earlier timestamp, ms since the epoch."""


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int
    timestamp_ms: int


def find_records(
    properties: Mapping[str, str], wanted: Wanted, first: int | None = None, seconds: float = 60.0
) -> list[Place]:
    """All records of a message, in Kafka's order, partition by partition; [] when there is none.

    `first`: the partition to look at before the others. A record whose sender's clock was wrong is found
    only if its timestamp is not before `from_ms`. Raises BadProperty, Unreachable, which is also what is
    raised when `seconds` are over before all was read.
    """
    deadline = time.monotonic() + seconds
    with closing(open_consumer(properties)) as consumer:
        try:
            starts = _starts(consumer, wanted, min(seconds, TIMEOUT_S))
            starts.sort(key=lambda start: start.partition != first)
            return [place for start in starts for place in _search(consumer, start, wanted, deadline)]
        except KafkaException as error:
            code, why = error.args[0].code(), consumer.why(error)
            raise Unreachable(code, f"Kafka cannot be searched: {why}") from error


def _starts(consumer: Consumer, wanted: Wanted, timeout_s: float) -> list[TopicPartition]:
    """Of each partition the first offset whose record is not older; without those that have none."""
    found = consumer.list_topics(wanted.topic, timeout=timeout_s).topics[wanted.topic]
    asked = [TopicPartition(wanted.topic, number, wanted.from_ms) for number in sorted(found.partitions)]
    if not asked:
        return []
    return [at for at in consumer.offsets_for_times(asked, timeout=timeout_s) if at.offset != OFFSET_END]


def _search(consumer: Consumer, start: TopicPartition, wanted: Wanted, deadline: float) -> Iterable[Place]:
    _, end = consumer.get_watermark_offsets(start, timeout=TIMEOUT_S)
    consumer.assign([start])
    offset = start.offset
    while offset < end:
        if time.monotonic() > deadline:
            raise Unreachable(
                int(Code.TIMED_OUT),
                f"the search of {wanted.topic} [{start.partition}] was not over in time: "
                f"it came to offset {offset} of {end}",
            )
        for message in consumer.consume(_BATCH, _POLL_S):
            if (error := message.error()) is None:
                offset = _offset(message) + 1
                if _is_wanted(message.headers(), wanted.stamp):
                    yield Place(start.partition, offset - 1, message.timestamp()[1])
            elif error.name() == "_PARTITION_EOF":
                offset = end
            elif not (error.retriable() or error.code() < 0):
                raise KafkaException(error)


def _offset(message: Any) -> int:
    return int(message.offset())


def _is_wanted(headers: Any, stamp: bytes) -> bool:
    return any(name.encode() == HEADER_NAME and value == stamp for name, value in headers or ())
