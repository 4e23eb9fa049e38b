"""Each thing that keeps a message from being sent has an error of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bruce_client import (
    BadMessage,
    Client,
    ClientError,
    NobodyListens,
    NotPermitted,
    QueueFull,
    TooLarge,
    Unconfirmed,
)
from tests.bruce_client.doors import Doors


def test_what_makes_no_message_is_said(tmp_path: Path) -> None:
    """Each kind has its error, before anything is sent: no topic, numbers too large, too many bytes."""
    client = Client(tmp_path / "nobody")
    for arguments in (
        {"topic": ""},
        {"topic": "t" * 32_768},
        {"partition_key": 1 << 31},
        {"timestamp_ms": 1 << 63},
    ):
        with pytest.raises(BadMessage, match="no message for topic"):
            client.send(**{"topic": "t", "value": "", **arguments})  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match=r"takes 70029 bytes; a datagram has 65536: .*stream_socket"):
        client.send("t", bytes(70_000))
    client = Client(tmp_path / "nobody", stream=tmp_path / "nobody", stream_limit_bytes=100_000)
    with pytest.raises(TooLarge, match=r"the daemon's limit is 100004: raise .*max_stream_message_bytes"):
        client.send("t", bytes(100_000))
    with pytest.raises(ValueError, match="name a socket, or a stream"):
        Client(None)


def test_more_than_the_daemon_takes(doors: Doors) -> None:
    """A client configured with a larger limit: the daemon says why it ends the connection, and counts one."""
    for door in (doors.stream, ("127.0.0.1", doors.port)):
        client = Client(doors.datagrams, stream=door, stream_limit_bytes=8 << 20, timeout_s=60)
        with pytest.raises(TooLarge, match=r"refuses a message of 3145762 bytes: .*max_stream_message_bytes"):
            client.send("orders", bytes(3 << 20))
    doors.bruce.await_status(lambda s: s.received == s.discarded.get("too_long") == 2)


@pytest.mark.parametrize("error", [BadMessage, TooLarge, NotPermitted, NobodyListens, QueueFull, Unconfirmed])
def test_every_error_is_a_client_error(error: Callable[[], Exception]) -> None:
    """One `except` is enough."""
    assert isinstance(error(), ClientError)
