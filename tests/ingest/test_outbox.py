"""Replies that wait until their clients read, and reach their own users alone."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest import outbox
from ingest.outbox import MOST_REPLIES, MOST_REPLIES_OF_ONE, UNREAD_S, Outbox

ME = os.geteuid()
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
    """A client that replies are sent to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "client"))
        made.setblocking(False)
        yield made


@pytest.fixture
def box(sender: socket.socket) -> Iterator[Outbox]:
    """An outbox that sends from there."""
    made = Outbox(sender)
    yield made
    made.close()


def numbered(number: int) -> bytes:
    """A reply that says which it is."""
    return b"%032d" % number


def read(client: socket.socket) -> list[int]:
    """The numbers of the replies in its queue."""
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
        box.send(client.getsockname(), numbered(number), ME)
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
    """Replies waiting for it are bounded, and cost another client nothing; retries get ever rarer."""
    for number in range(MOST_REPLIES_OF_ONE + ROOM + 10):
        box.send(client.getsockname(), numbered(number), ME)
    assert (len(box), box.dropped, box.sent) == (MOST_REPLIES_OF_ONE, 10, ROOM)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "other"))
        other.setblocking(False)
        box.send(other.getsockname(), numbered(7), ME)
        assert read(other) == [7]
    now, pauses = time.monotonic(), list[float]()
    for _ in range(8):
        now += 1
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        box.retry()
        pauses.append(box.due() or 0)
    assert pauses[-1] > 20 * pauses[0] > 0


def test_a_client_that_reads_nothing(
    box: Outbox, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing for UNREAD_S is forgotten, and what waited for it is counted."""
    for number in range(ROOM + 5):
        box.send(client.getsockname(), numbered(number), ME)
    for after, left in ((UNREAD_S / 2, (5, 0)), (UNREAD_S, (0, 5))):
        now = time.monotonic() + after
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        box.retry()
        assert (len(box), box.dropped) == left


def test_nobody_there(sender: socket.socket, box: Outbox, client: socket.socket, tmp_path: Path) -> None:
    """A client that is gone, one that never was, and one that is connected get nothing; it is counted."""
    for number in range(ROOM + 5):
        box.send(client.getsockname(), numbered(number), ME)
    gone = client.getsockname()
    client.close()
    time.sleep(box.due() or 0)
    box.retry()
    assert (len(box), box.dropped) == (0, 5)
    box.send(gone, numbered(0), ME)
    box.send(str(tmp_path / "never"), numbered(0), ME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connected:
        connected.bind(b"")
        connected.connect(sender.getsockname())
        connected.setblocking(False)
        for number in range(3 * ROOM):
            box.send(connected.getsockname(), numbered(number), ME)
        assert read(connected) == []
    assert box.dropped == 5 + 2 + 3 * ROOM


def test_a_user_with_most(
    box: Outbox, client: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user whose clients read nothing takes all room there is: replies to another one wait, too."""
    monkeypatch.setattr(outbox, "_demand_owner", lambda _fd, _user: None)
    full = MOST_REPLIES // MOST_REPLIES_OF_ONE
    greedy = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(full + 1)]
    for n, one in enumerate(greedy):
        one.bind(str(tmp_path / f"greedy-{n}"))
        address = one.getsockname()
        for number in range(ROOM + (MOST_REPLIES_OF_ONE if n < full else 20)):
            box.send(address, numbered(number), 1)
    assert (len(box), box.dropped) == (MOST_REPLIES, 20)
    for number in range(ROOM + 5):
        box.send(client.getsockname(), numbered(number), 2)
    assert (len(box), box.dropped) == (MOST_REPLIES, 25)
    assert read(client) == list(range(ROOM))
    late = list[int]()
    for _ in range(500):
        box.retry()
        late += read(client)
        if len(late) == 5:
            break
        time.sleep(0.01)
    assert late == list(range(ROOM, ROOM + 5))
    for one in greedy:
        one.close()


def test_only_its_own_socket_answers_a_sender(box: Outbox, client: socket.socket, tmp_path: Path) -> None:
    """The kernel tells the path that a sender had bound: a link to another's socket may be there by now."""
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to(client.getsockname())
    folder.symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for path in (link, tmp_path / "file", tmp_path):
        box.send(str(path), numbered(1), ME)
    box.send(client.getsockname(), numbered(2), ME + 1)
    assert (read(client), box.dropped) == ([], 4)
    # Whichever folders lead to it, it is that user's.
    box.send(str(folder / "client"), numbered(3), ME)
    assert read(client) == [3]
