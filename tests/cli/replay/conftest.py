"""A daemon whose messages are replayed again and again."""

from __future__ import annotations

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.conftest import PARTITIONS
from tests.daemon import RunningBruce

MESSAGES = 1200


@pytest.fixture
def stored(bruce: RunningBruce, kafka: EmbeddedKafka) -> RunningBruce:
    """A daemon that has delivered 1,200 messages to `t`, over several segments; and a topic `again`."""
    kafka.topic("again", PARTITIONS)
    bruce.send(encode(b"t", b"%d" % n + b" " * 600, partition_key=n % 5) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.delivered == MESSAGES)
    return bruce
