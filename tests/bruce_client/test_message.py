"""A message as the client encodes it arrives with every field."""

from __future__ import annotations

import time

from bruce_client import (
    Client,
)
from tests.bruce_client.doors import Doors


def test_every_field_arrives(doors: Doors) -> None:
    """Topic, key, value and time, as bytes or as text, of both kinds of message."""
    with Client(doors.datagrams, timeout_s=60) as client:
        client.send("orders", "grüße", key="k", timestamp_ms=1_700_000_000_123)
        before = time.time_ns() // 1_000_000
        client.send(b"orders", b"\xff\x00", key=b"\xfe", partition_key=7)
        client.send("orders", "")
    first, second, third = doors.records(3)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", "grüße".encode(), 1_700_000_000_123)
    assert (second.key(), second.value()) == (b"\xfe", b"\xff\x00")
    assert before <= second.timestamp()[1] <= time.time_ns() // 1_000_000
    assert (third.key(), third.value()) == (None, b"")
