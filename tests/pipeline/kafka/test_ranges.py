"""Ranges of offsets: an option of a source, and a plan of what Kafka holds."""

from __future__ import annotations

from contextlib import closing

import pytest

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable
from pipeline.errors import BadOption
from pipeline.kafka.ranges import Range, partitions_of, plan_ranges, read_ranges, show_ranges


def test_ranges_are_an_option() -> None:
    """They are read as they were written; anything else is refused in one sentence."""
    ranges = [Range("a,b", 3, 0, 1 << 40), Range("t", 0, 5, 6)]
    assert read_ranges(show_ranges(ranges)) == ranges
    for text in ("true", "[1]", '[["t", 0, 1]]', '[["t", 0, 1, "x"]]', "{"):
        with pytest.raises(BadOption, match="is no list of"):
            read_ranges(text)


def test_topics() -> None:
    """Kafka's own are left out, and not a user's that begins as they do."""
    names = "__transaction_state", "__audit", "orders"
    with EmbeddedKafka(brokers=1, topics=[(name, 1) for name in names]) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        with closing(open_consumer(properties)) as consumer:
            assert partitions_of(consumer, properties) == {"__audit": [0], "orders": [0]}


def test_nobody_answers() -> None:
    """A Kafka that is away, or a property that librdkafka does not know, is one sentence."""
    why = r"no broker can be reached \(127\.0\.0\.1:1: .*Connection refused\): start Kafka"
    with pytest.raises(Unreachable, match=rf"Kafka at 127\.0\.0\.1:1 does not answer: {why}"):
        plan_ranges({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.3)
    with pytest.raises(BadProperty, match=r"no\.such\.property"):
        plan_ranges({"no.such.property": "1"})
