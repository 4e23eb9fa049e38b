"""The fixtures that the tests of the router share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from dispatch.embedded import EmbeddedKafka
from tests.router.bench import Bench

# No example may be called slow: the machine may have other work.
settings.register_profile("bruce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bruce")

PARTITIONS = 6


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A spool with segments of 8 KiB, and a Kafka with topics `a` and `b`."""
    made = Bench()
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()


@pytest.fixture
def fine() -> Iterator[Bench]:
    """Readers that take a few messages at a time."""
    made = Bench(chunk_bytes=600)
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers; `t` has six partitions, broker p % 3 + 1 leads partition p; `u` has two."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS), ("u", 2)]) as running:
        for partition in range(PARTITIONS):
            running.leader("t", partition, partition % 3 + 1)
        yield running
