"""Cutting a process off, without brokers: which of its sockets, and what closes meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tools import kafka_cut
from tools.kafka_install import KafkaError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket of this process, at a port."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        try:
            kafka_cut.mend(os.getpid(), made.getsockname()[1])
        except KafkaError as error:
            pytest.skip(str(error))
        yield made


@pytest.mark.parametrize("then", ["closed", "another"])
def test_what_closes_meanwhile_is_no_obstacle(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """A connection that is gone since it was listed, or whose number is a file's by now, is passed by."""
    gone = os.dup2(0, 700)
    if then == "closed":
        os.close(gone)
    listed, read = os.listdir, os.readlink

    def readlink(path: str) -> str:
        return "socket:[1]" if path.endswith(f"/{gone}") else read(path)

    monkeypatch.setattr(os, "listdir", lambda path: {*listed(path), str(gone)})
    monkeypatch.setattr(os, "readlink", readlink)
    port = listener.getsockname()[1]
    assert kafka_cut.cut(os.getpid(), port) == 1
    assert kafka_cut.mend(os.getpid(), port) == 1
    if then == "another":
        os.close(gone)


def test_a_port_that_is_nobodys(listener: socket.socket) -> None:
    """It is said, and nothing is cut."""
    with pytest.raises(KafkaError, match=r"has no socket at port 1$"):
        kafka_cut.cut(os.getpid(), 1)
