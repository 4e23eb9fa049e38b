"""A daemon with a socket of each kind, and an embedded Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.bruce_client.doors import Doors
from tests.daemon import RunningBruce


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker with a topic of one partition."""
    with EmbeddedKafka(brokers=1, topics=[("orders", 1)]) as running:
        yield running


@pytest.fixture
def doors(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Doors]:
    """A running daemon, and how to come in."""
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=4 << 20)
    doors = Doors(bruce, kafka.bootstrap_servers)
    with bruce:
        doors.await_streams()
        yield doors
