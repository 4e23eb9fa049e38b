"""The embedded Kafka: three brokers, and a topic `t` of six partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka

PARTITIONS = 6


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster of its own for each test."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running
