"""A Kafka in memory, and a daemon that delivers to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce

PARTITIONS = 4


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Each test has its own cluster, with the topics `t` and `u` and the topic of transactions."""
    topics = [("t", PARTITIONS), ("u", PARTITIONS), ("bruce-progress", 1)]
    with EmbeddedKafka(brokers=3, topics=topics) as running:
        yield running


@pytest.fixture
def bruce(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[RunningBruce]:
    """A running daemon."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as running:
        yield running
