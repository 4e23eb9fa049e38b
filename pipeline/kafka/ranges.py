"""Ranges of offsets: the records of Kafka that a job reads, chosen once, so that the job has an end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from dispatch.consumer import Listener, open_consumer
from dispatch.errors import Unreachable
from dispatch.record_consumer import INTERNAL_TOPICS
from pipeline.errors import BadOption

TIMEOUT_S = 15.0
RANGE_OFFSETS = 1_000_000
"""Offsets of one range, at most: several tasks read even a topic of one partition."""


class Range(NamedTuple):
    """The offsets [start, end) of a topic partition."""

    topic: str
    partition: int
    start: int
    end: int


def list_topics(properties: Mapping[str, str]) -> dict[str, list[int]]:
    """The partitions of every topic that is not Kafka's own. Raises Unreachable."""
    with closing(open_consumer(properties)) as consumer:
        return partitions_of(consumer, properties)


def plan_ranges(
    properties: Mapping[str, str],
    topics: Iterable[str] | None = None,
    most: int | None = RANGE_OFFSETS,
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Range]:
    """Everything that these topics hold now, by default all topics; `most`: offsets of one range.

    Raises Unreachable, also when Kafka does not tell its topics within `timeout_s`.
    """
    with closing(open_consumer(properties)) as consumer:
        known = partitions_of(consumer, properties, timeout_s)
        chosen = sorted(known if topics is None else known.keys() & set(topics))
        whole = [whole_range(consumer, topic, partition) for topic in chosen for partition in known[topic]]
    if most is None:
        return [one for one in whole if one.start < one.end]
    return [
        Range(r.topic, r.partition, at, min(at + most, r.end))
        for r in whole
        for at in range(r.start, r.end, most)
    ]


def whole_range(consumer: Listener, topic: str, partition: int) -> Range:
    """All that a partition holds now."""
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
    except KafkaException as error:
        raise Unreachable(
            error.args[0].code(),
            f"Kafka does not tell the offsets of {topic} [{partition}]: {consumer.why(error)}",
        ) from error
    return Range(topic, partition, start, end)


def partitions_of(
    consumer: Listener, properties: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> dict[str, list[int]]:
    """The partitions of every topic that is not Kafka's own. Raises Unreachable."""
    try:
        found = consumer.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        servers = properties.get("bootstrap.servers", "no address")
        raise Unreachable(
            error.args[0].code(), f"Kafka at {servers} does not answer: {consumer.why(error)}"
        ) from error
    return {name: sorted(topic.partitions) for name, topic in found.items() if name not in INTERNAL_TOPICS}


def show_ranges(ranges: Iterable[Range]) -> str:
    """Ranges as an option of a source."""
    return json.dumps([[one.topic, one.partition, one.start, one.end] for one in ranges])


def read_ranges(text: str) -> list[Range]:
    """The ranges of such an option. Raises BadOption."""
    try:
        return [
            Range(str(topic), int(at), int(start), int(end)) for topic, at, start, end in json.loads(text)
        ]
    except (ValueError, TypeError):
        raise BadOption(f"withheld = {text[:100]!r} is no list of [topic, partition, start, end]") from None
