"""The fixtures that the tests of the router share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.router.bench import Bench

# No example may be called slow: the machine may have other work.
settings.register_profile("bruce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bruce")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A spool with segments of 8 KiB, and a Kafka with topics `a` and `b`."""
    made = Bench()
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()
