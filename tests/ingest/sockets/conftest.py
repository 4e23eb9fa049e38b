"""The holder of sockets that tests of this folder look at."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon import free_port
from tests.holder import Holder


@pytest.fixture
def holder(memory: Path) -> Iterator[Holder]:
    """A holder of sockets of every kind, not started."""
    (memory / "bruce.toml").write_text(
        f'[ingest]\ndatagram_socket = "{memory}/bruce.sock"\nack_socket = "{memory}/ack.sock"\n'
        f'stream_socket = "{memory}/stream.sock"\ntcp_port = {free_port()}\nsocket_mode = "0622"\n'
        f'[[input]]\ndatagram = "{memory}/own.sock"\nmode = "0660"\ngroup = "daemon"\n'
    )
    made = Holder(memory / "bruce.toml", memory / "bruce.sock", memory / "log")
    try:
        yield made
    finally:
        with suppress(AssertionError):
            made.end(signal.SIGKILL)
