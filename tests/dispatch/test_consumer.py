"""Searching Kafka for a record, when Kafka is not there; what is found, tests/real_kafka shows."""

from __future__ import annotations

import pytest

from dispatch.consumer import Wanted, find_records
from dispatch.errors import BadProperty, Unreachable


def test_nobody_to_ask(capfd: pytest.CaptureFixture[str]) -> None:
    """Kafka away, and a wrong property: one sentence each, and not a word of librdkafka's."""
    wanted = Wanted("t", bytes(24), 0)
    with pytest.raises(BadProperty, match="No such configuration property"):
        find_records({"bootstrap.servers": "127.0.0.1:1", "nonsense": "1"}, wanted)
    with pytest.raises(Unreachable, match="Kafka cannot be searched: no broker can be reached"):
        find_records({"bootstrap.servers": "127.0.0.1:1"}, wanted, seconds=1)
    assert capfd.readouterr().err == ""
