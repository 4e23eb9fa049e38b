"""The outbox: replies in order, and no client that costs the others anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest import outbox
from ingest.outbox import MOST_OF_ONE, Outbox

ROOM = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1
"""Datagrams that the queue of a client takes."""


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[socket.socket]:
    """A bound socket to send from."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "sender"))
        yield made


@pytest.fixture
def client(tmp_path: Path) -> Iterator[socket.socket]:
    """Somebody who is sent to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "client"))
        made.setblocking(False)
        yield made


@pytest.fixture
def box(sender: socket.socket) -> Iterator[Outbox]:
    """What is to be sent from there."""
    made = Outbox(sender)
    yield made
    made.close()


def numbered(number: int) -> bytes:
    """A reply that says which it is."""
    return b"%032d" % number


def read(client: socket.socket) -> list[int]:
    """What lies in its queue."""
    found = []
    while True:
        try:
            found.append(int(client.recv(64)))
        except BlockingIOError:
            return found


def test_what_finds_no_room_comes_later(sender: socket.socket, box: Outbox, client: socket.socket) -> None:
    """In order, none twice, as soon as the client reads; it comes from the sender's address."""
    count = 5 * ROOM
    for number in range(count):
        box.send(client.getsockname(), numbered(number))
    assert len(box) == count - ROOM
    assert client.recvfrom(64, socket.MSG_PEEK)[1] == sender.getsockname()
    found: list[int] = []
    end = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end
        found += read(client)
        time.sleep(box.due() or 0)
        box.retry()
    assert found == list(range(count))
    assert (len(box), box.due(), box.sent, box.dropped) == (0, None, count, 0)


def test_a_deaf_client(
    box: Outbox, client: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is bounded, and costs another client nothing; it is tried ever less often."""
    for number in range(MOST_OF_ONE + ROOM + 10):
        box.send(client.getsockname(), numbered(number))
    assert (len(box), box.dropped, box.sent) == (MOST_OF_ONE, 10, ROOM)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "other"))
        other.setblocking(False)
        box.send(other.getsockname(), numbered(7))
        assert read(other) == [7]
    now, pauses = time.monotonic(), list[float]()
    for _ in range(8):
        now += 1
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        box.retry()
        pauses.append(box.due() or 0)
    assert pauses[-1] > 20 * pauses[0] > 0


def test_given_up(
    sender: socket.socket, box: Outbox, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing for GIVE_UP_S is forgotten, and what waited for it is counted."""
    monkeypatch.setattr(outbox, "GIVE_UP_S", 0.0)
    for number in range(ROOM + 5):
        box.send(client.getsockname(), numbered(number))
    time.sleep(box.due() or 0)
    box.retry()
    assert (len(box), box.dropped) == (0, 5)


def test_nobody_there(sender: socket.socket, box: Outbox, client: socket.socket, tmp_path: Path) -> None:
    """A client that is gone, one that never was, and one that is connected get nothing; it is counted."""
    for number in range(ROOM + 5):
        box.send(client.getsockname(), numbered(number))
    gone = client.getsockname()
    client.close()
    time.sleep(box.due() or 0)
    box.retry()
    assert (len(box), box.dropped) == (0, 5)
    box.send(gone, numbered(0))
    box.send(str(tmp_path / "never"), numbered(0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connected:
        connected.bind(b"")
        connected.connect(sender.getsockname())
        connected.setblocking(False)
        for number in range(3 * ROOM):
            box.send(connected.getsockname(), numbered(number))
        assert read(connected) == []
    assert box.dropped == 5 + 2 + 3 * ROOM
