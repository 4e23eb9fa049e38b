"""Spools that jobs read, and a Kafka of two brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.pipeline.conftest import spool

__all__ = ["kafka", "spool"]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Topics of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("clicks", 3), ("views", 3)]) as running:
        yield running
