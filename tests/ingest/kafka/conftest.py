"""The fixtures of the Kafka worker's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ingest.kafka.door import Door


@pytest.fixture
def door(memory: Path) -> Iterator[Door]:
    """A Kafka worker and what it needs."""
    made = Door(memory)
    yield made
    made.close()
