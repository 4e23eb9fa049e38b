"""The fixtures for daemons on a forgetful disk: the disk, and a Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.forgetful.disk import ForgetfulDisk


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, one partition."""
    made = EmbeddedKafka(brokers=1, topics=[("t", 1)])
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    """An empty one."""
    with ForgetfulDisk(tmp_path / "disk") as made:
        yield made
