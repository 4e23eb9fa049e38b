"""Which offsets of Kafka to read: taken once, on the driver, so that the job has an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition
from pyspark.sql.datasource import InputPartition

from dispatch.consumer import Listener, open_consumer
from dispatch.errors import Unreachable

TIMEOUT_S = 15.0
RANGE_OFFSETS = 1_000_000
"""Offsets of one input partition, at most: also a topic of one partition is read by several tasks."""


@dataclass(frozen=True)
class Range(InputPartition):
    """One input partition: the offsets [start, end) of a topic partition."""

    topic: str
    partition: int
    start: int
    end: int


def list_topics(properties: Mapping[str, str]) -> dict[str, list[int]]:
    """The partitions of every topic that is not Kafka's own. Raises Unreachable."""
    with closing(open_consumer(properties)) as consumer:
        return _list_topics(consumer, properties)


def plan_ranges(
    properties: Mapping[str, str], topics: Iterable[str] | None = None, most: int | None = RANGE_OFFSETS
) -> list[Range]:
    """Everything that these topics hold now, of all topics by default; `most`: offsets of one range.

    Raises Unreachable.
    """
    with closing(open_consumer(properties)) as consumer:
        known = _list_topics(consumer, properties)
        chosen = sorted(known if topics is None else known.keys() & set(topics))
        whole = [_whole(consumer, topic, partition) for topic in chosen for partition in known[topic]]
    if most is None:
        return [one for one in whole if one.start < one.end]
    return [
        Range(r.topic, r.partition, at, min(at + most, r.end))
        for r in whole
        for at in range(r.start, r.end, most)
    ]


def count_dropped(properties: Mapping[str, str], topics: Iterable[str]) -> dict[str, int]:
    """Offsets that Kafka had and has no more, by topic, where there are any. Raises Unreachable."""
    dropped: Counter[str] = Counter()
    with closing(open_consumer(properties)) as consumer:
        known = _list_topics(consumer, properties)
        for topic in sorted(known.keys() & set(topics)):
            dropped[topic] = sum(_whole(consumer, topic, partition).start for partition in known[topic])
    return {topic: count for topic, count in dropped.items() if count}


def _whole(consumer: Listener, topic: str, partition: int) -> Range:
    """All that a partition holds now."""
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
    except KafkaException as error:
        raise Unreachable(
            error.args[0].code(),
            f"Kafka does not tell the offsets of {topic} [{partition}]: {consumer.why(error)}",
        ) from error
    return Range(topic, partition, start, end)


def _list_topics(consumer: Listener, properties: Mapping[str, str]) -> dict[str, list[int]]:
    try:
        found = consumer.list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as error:
        servers = properties.get("bootstrap.servers", "no address")
        raise Unreachable(
            error.args[0].code(), f"Kafka at {servers} does not answer: {consumer.why(error)}"
        ) from error
    return {name: sorted(topic.partitions) for name, topic in found.items() if not name.startswith("__")}
