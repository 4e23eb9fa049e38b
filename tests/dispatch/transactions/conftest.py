"""The embedded Kafka, with a topic of messages and that of the records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.dispatch.transactions.deliverer import TOPIC


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One topic, and that of the records: an embedded Kafka makes none on demand."""
    with EmbeddedKafka(brokers=1, topics=[(TOPIC.decode(), 2), ("bruce-progress", 4)]) as running:
        yield running
