"""The file of connection buffers: whose it is, and how the runs in it become one burst after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest.access import NO_ID, TCP_GID
from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffer import TCP, UNIX, waits
from ingest.buffers.connection_buffers import (
    MAGIC,
    MOST_RUNS,
    ConnectionBuffers,
    buffers_path,
    holds_anything,
    make_bells,
    read_connection_buffers,
    remove_unused,
)
from ingest.buffers.messages import new_messages
from ingest.errors import BadStaging
from spool.format.segment_format import MOST_COLUMNS_BYTES, ROW_BYTES
from spool.format.wire import Reason
from tests.ingest.stream_clients import LIMIT, SPOOL, Killed, Streams
from tests.ingest.streams.test_stream_worker import messages

ROOM = 1 << 20
EACH_BYTES = ROW_BYTES + MOST_COLUMNS_BYTES
"""Of a message in a body, beside its own bytes, at most."""
LATER = 1 << 62
"""The burst of runs that are in none."""


@pytest.fixture
def buffers(memory: Path) -> Iterator[ConnectionBuffers]:
    """A new file of them."""
    bells = make_bells()
    made = ConnectionBuffers(memory / "lines", SPOOL, LIMIT, bells, room=ROOM)
    yield made
    made.close()
    for bell in (bells.offered, bells.taken):
        os.close(bell)


def offer(buffers: ConnectionBuffers, number: int, count: int = 1, length: int = 100) -> None:
    """Have a buffer in use offer a run of messages; their bytes are all zeros."""
    buffers.use(number)
    if not connection_buffer.kind_of(buffers.head(number)):
        connection_buffer.open_buffer(buffers.head(number), UNIX, 0, 0, 0)
    connection_buffer.offer(buffers.head(number), 0, length, count, 0, 0)


def head_of(path: Path) -> bytes:
    """The first bytes of the file, which is long."""
    with path.open("rb") as file:
        return file.read(48)


def test_a_file_for_another_limit(memory: Path) -> None:
    """Before it is mapped it goes, unless it holds something; a process that maps it finds it as it is."""
    streams = Streams(memory)
    sender = streams.connect()
    sender.sendall(messages(1)[0][:9])
    streams.settle()
    remove_unused(streams.buffers_path, 2 * LIMIT)
    again = ConnectionBuffers(streams.buffers_path, SPOOL, 2 * LIMIT, streams.bells, room=1 << 20)
    assert (again.limit, again.used) == (LIMIT, 1)
    again.close()
    sender.close()
    streams.settle()
    remove_unused(streams.buffers_path, LIMIT)
    assert streams.buffers_path.exists()
    remove_unused(streams.buffers_path, 2 * LIMIT)
    assert not streams.buffers_path.exists()
    streams.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"brucexxx" + data[8:],
        lambda data: data[:8] + b"\2" + data[9:],
        lambda data: data[:16] + bytes([1]) * 16 + data[32:],
        lambda data: data[:32] + (1 << 40).to_bytes(8, "little") + data[40:],
        lambda data: data[:32] + (LIMIT + 8192).to_bytes(8, "little") + data[40:],
    ],
    ids=["another file", "another layout", "another spool", "no limit", "another size"],
)
def test_a_file_that_is_not_ours(buffers: ConnectionBuffers, spoil: Callable[[bytes], bytes]) -> None:
    """Nothing in it is believed, and it stays for people to look at."""
    head = head_of(buffers.path)
    with buffers.path.open("r+b") as file:
        file.write(spoil(head))
    with pytest.raises(BadStaging, match=f"{buffers.path} holds no streams of this spool; move it away"):
        ConnectionBuffers(buffers.path, SPOOL, LIMIT, buffers.bells, room=ROOM)
    assert head_of(buffers.path) == spoil(head)


def test_a_file_takes_no_memory_for_connections_to_come(buffers: ConnectionBuffers) -> None:
    """The sides of all buffers are holes, until bytes are received; what is given back is a hole again."""
    head = buffers.path.stat().st_blocks
    assert head * 512 < buffers.path.stat().st_size // 100
    assert buffers.reserve(3, 1, 0, LIMIT)
    assert buffers.path.stat().st_blocks * 512 >= head * 512 + LIMIT
    buffers.give_back(3, 1, 0)
    assert buffers.path.stat().st_blocks == head


def noted(buffers: ConnectionBuffers) -> list[int]:
    """The numbers of messages in the runs that the noted burst is made of."""
    return sorted(count for burst, count in read_connection_buffers(buffers.path) if burst < LATER)


def test_each_connection_has_its_turn(buffers: ConnectionBuffers) -> None:
    """A burst begins behind the last run of the one before, though the first buffers offer again at once."""
    for number in range(5):
        offer(buffers, number, count=number + 1, length=400_000)
    seen = list[int]()
    for burst in range(1, 6):
        assert buffers.gather(burst) == 2
        seen += (mine := noted(buffers))
        buffers.settle()
        for count in mine:
            offer(buffers, count - 1, count=count, length=400_000)
    assert seen == [1, 2, 3, 4, 1, 5, 2, 3, 4, 5]


def test_one_run_goes_however_long_it_is(buffers: ConnectionBuffers) -> None:
    """Alone; others come along with the room for their rows, and are MOST_RUNS at most."""
    offer(buffers, 0, count=7, length=2 * ROOM)
    offer(buffers, 1, count=1, length=0)
    assert (buffers.gather(1), noted(buffers)) == (1, [7])
    buffers.settle()
    for number, length in ((2, ROOM // 2), (3, ROOM // 2 - 21 * EACH_BYTES)):
        offer(buffers, number, count=10, length=length)
    assert (buffers.gather(2), noted(buffers)) == (3, [1, 10, 10])
    buffers.settle()
    offer(buffers, 2, count=10, length=ROOM // 2)
    offer(buffers, 3, count=11, length=ROOM // 2 - 20 * EACH_BYTES)
    assert (buffers.gather(3), noted(buffers)) == (1, [10])
    buffers.settle()
    for number in range(MOST_RUNS + 1):
        offer(buffers, number)
    assert buffers.gather(4) == MOST_RUNS


def test_the_bell_rings_while_the_burst_is_noted(
    buffers: ConnectionBuffers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at that instant, the ingest worker has a successor that takes the runs again, and rings."""
    offer(buffers, 0)
    buffers.gather(7)
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd_write", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            buffers.settle()
    assert (buffers.noted, waits(buffers.head(0))) == (7, False)
    buffers.settle()
    assert (buffers.noted, os.eventfd_read(buffers.bells.taken)) == (0, 1)


def test_a_look_tells_the_noted_burst_from_later_ones(buffers: ConnectionBuffers) -> None:
    """Without mapping the file: a stored burst does not count, and runs that are in none do."""
    assert (read_connection_buffers(buffers.path), holds_anything(buffers.path)) == ([], False)
    offer(buffers, 0, count=2, length=900_000)
    offer(buffers, 1, count=3, length=900_000)
    assert sorted(read_connection_buffers(buffers.path)) == [(LATER, 2), (LATER, 3)]
    buffers.gather(7)
    assert sorted(read_connection_buffers(buffers.path)) == [(7, 2), (LATER, 3)]
    buffers.settle()
    assert read_connection_buffers(buffers.path) == [(LATER, 3)]
    assert holds_anything(buffers.path)


@pytest.mark.parametrize("data", [None, b"", MAGIC], ids=["none", "empty", "short"])
def test_a_look_at_no_such_file(memory: Path, data: bytes | None) -> None:
    """It finds nothing, and is no error: there may have been no streams."""
    path = buffers_path(memory / "staging")
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o600)
    assert (read_connection_buffers(path), holds_anything(path)) == ([], False)


def test_another_file_is_not_removed(memory: Path) -> None:
    """Nothing is read from one of its name that is long enough; it holds something, and is kept."""
    path = buffers_path(memory / "staging")
    path.write_bytes(bytes(range(256)) * (8 << 10))
    path.chmod(0o600)
    assert read_connection_buffers(path) == []
    remove_unused(path, LIMIT)
    assert path.exists()


def test_messages_are_of_those_that_connected(buffers: ConnectionBuffers) -> None:
    """By uid, pid and group of a UNIX stream; nothing is known of a TCP client but that it is one."""
    for number, kind in enumerate((UNIX, TCP)):
        buffers.use(number)
        known = (1001, 4711, 0) if kind == UNIX else (NO_ID, 0, NO_ID)
        connection_buffer.open_buffer(buffers.head(number), kind, *known)
        connection_buffer.offer(buffers.head(number), 0, 0, 0, 5, int(Reason.UNCLEAN))
    assert buffers.gather(1) == 2
    made = new_messages()
    assert buffers.list_messages(made) == 2
    assert made[:2]["refused"].tolist() == [int(Reason.UNCLEAN)] * 2
    assert made[:2]["length"].tolist() == [5, 5]
    assert [(int(one["uid"]), int(one["gid"])) for one in made[:2]] == [(1001, 0), (NO_ID, TCP_GID)]
