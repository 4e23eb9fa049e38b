"""A connection buffer: one store goes on from another, and no run changes before it is taken."""

from __future__ import annotations

import ctypes
import errno
import socket

import numpy as np
import pytest

from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffer import (
    CONNECTION_WORDS,
    FREE,
    HEAD,
    HEAD_BYTES,
    OFFERED,
    SIDE,
    TCP,
    UNIX,
    consumed,
    cut,
    filled,
    free_counted,
    is_ended,
    offer,
    open_buffer,
    open_counted,
    read_connections,
    receive,
    settle,
    stands_for,
    take,
    turn_over,
    waits,
)
from spool.format.segment_format import ROW_BYTES, body_room, largest_message
from spool.format.wire import Reason, encode
from spool.native.memory import Address, address_of, function_address, load_i64, store_i64

SEGMENT_BYTES, BAD = 256 << 10, 400
ROOM = 64
USER_LIMIT, UNCLEAN = int(Reason.USER_LIMIT), int(Reason.UNCLEAN)
LIBC = ctypes.CDLL(None)
RECVMMSG, ERRNO = function_address(LIBC.recvmmsg), function_address(LIBC["__errno_location"])


class Buffer:
    """A head and its two sides, in this process."""

    def __init__(self) -> None:
        self.memory = np.zeros(HEAD_BYTES, np.uint8)
        self.sides = np.zeros((2, ROOM), np.uint8)
        self.head = address_of(self.memory)
        open_buffer(self.head, UNIX, 1001, 4711, 7)

    def side(self, number: int) -> Address:
        """The address of a side."""
        return Address(address_of(self.sides) + number * ROOM)

    def receive(self, fd: int) -> int:
        """Receive into the present side."""
        side = self.side(connection_buffer.side_of(self.head))
        return receive(self.head, fd, side, ROOM, RECVMMSG, ERRNO)

    @property
    def state(self) -> tuple[int, int, bool]:
        """Bytes received, bytes that are done with, and whether a run waits: a successor finds these."""
        return filled(self.head), consumed(self.head), waits(self.head)


@pytest.fixture
def buffer() -> Buffer:
    """One in use, of a UNIX stream."""
    return Buffer()


def test_a_run_is_cut_to_the_room_of_a_frame() -> None:
    """Its messages have room in any case, with the end of the connection; one always goes."""
    whole = b"\0\0\0\5x" * BAD + encode(b"large", bytes(largest_message(SEGMENT_BYTES) - 100))
    data, room, found, begin = np.frombuffer(whole, np.uint8), body_room(SEGMENT_BYTES), list[int](), 0
    while begin < len(whole):
        until, count, reason, _ = cut(
            address_of(data), begin, len(whole), largest_message(SEGMENT_BYTES), UNIX, room
        )
        assert count == 1 or until - begin + (count + 1) * ROW_BYTES <= room
        assert (count > 0, reason) == (True, 0)
        found.append(count)
        begin = until
    assert sum(found) == BAD + 1


def test_bytes_are_received_behind_each_other(buffer: Buffer) -> None:
    """Those that came before stay, also when nothing comes, and at the end of the stream."""
    ours, theirs = socket.socketpair()
    with ours:
        assert buffer.receive(ours.fileno()) == -errno.EAGAIN
        with theirs:
            for part in (b"ab", b"cde"):
                theirs.send(part)
                assert buffer.receive(ours.fileno()) == len(part)
            assert buffer.receive(ours.fileno()) == -errno.EAGAIN
        assert buffer.receive(ours.fileno()) == 0
    assert buffer.state == (5, 0, False)
    assert buffer.sides[0].tobytes().rstrip(b"\0") == b"abcde"


def test_no_more_is_received_than_the_room(buffer: Buffer) -> None:
    """However much waits in the socket: the side behind this one is not ours to write into."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x" * 3 * ROOM)
        assert buffer.receive(ours.fileno()) == ROOM
    assert not buffer.sides[1].any()


def test_a_run_is_offered_by_its_number(buffer: Buffer) -> None:
    """Killed before that store, the worker leaves the run before, which says what was consumed."""
    offer(buffer.head, 0, 10, 1, 0, 0)
    assert buffer.state == (0, 0, True)
    take(buffer.head, 1)
    assert buffer.state == (0, 10, False)
    offer(buffer.head, 10, 30, 2, 5, UNCLEAN)
    assert (buffer.state, is_ended(buffer.head)) == ((0, 10, True), True)
    store_i64(buffer.head + OFFERED, 1)
    assert (buffer.state, is_ended(buffer.head)) == ((0, 10, False), False)


def test_a_late_take_is_of_its_own_run(buffer: Buffer) -> None:
    """A successor of the ingest worker may take a run again: what is known of one offered since stays."""
    offer(buffer.head, 0, 10, 1, 0, 0)
    take(buffer.head, 1)
    offer(buffer.head, 10, 20, 1, 0, 0)
    take(buffer.head, 1)
    assert waits(buffer.head)
    for number in (2, 1):
        take(buffer.head, number)
        assert buffer.state == (0, 20, False)


def test_the_rest_goes_to_the_front_of_the_other_side(buffer: Buffer) -> None:
    """By one store: before it, the buffer is as it was; behind it, nothing of the new side is consumed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"whole message and the begin")
        buffer.receive(ours.fileno())
        offer(buffer.head, 0, 18, 1, 0, 0)
        take(buffer.head, 1)
        before = buffer.state
        assert turn_over(buffer.head, buffer.side(0), buffer.side(1)) == 9
        assert (buffer.state, load_i64(buffer.head + SIDE)) == ((9, 0, False), 1)
        theirs.send(b"ning")
        buffer.receive(ours.fileno())
    assert buffer.sides[1].tobytes().rstrip(b"\0") == b"the beginning"
    store_i64(buffer.head + SIDE, 0)
    assert buffer.state == before


def test_turned_over_twice(buffer: Buffer) -> None:
    """Bytes that come to a side later are not consumed, whatever a run consumed of it before."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"whole message and the begin")
        buffer.receive(ours.fileno())
    offer(buffer.head, 0, 18, 1, 0, 0)
    take(buffer.head, 1)
    for side in (0, 1):
        assert turn_over(buffer.head, buffer.side(side), buffer.side(1 - side)) == 9
        assert buffer.state == (9, 0, False)
    assert buffer.sides[0, :9].tobytes() == b"the begin"


def test_python_reads_what_loops_write(buffer: Buffer) -> None:
    """Readers of the file have the head as a record: its fields are where the loops store them."""
    for first in (0, 10):
        offer(buffer.head, first, first + 10, 1, 5, UNCLEAN)
    take(buffer.head, 1)
    (head,) = buffer.memory.view(HEAD)
    assert [int(head[name]) for name in ("kind", "side", "offered", "taken")] == [UNIX, 0, 2, 0]
    # A group of 0 is one that is known.
    assert [int(head[name]) for name in ("uid", "pid", "gid")] == [1001, 4711, 7 + 1]
    assert head["run"][0].tolist() == (10, 20, 5, UNCLEAN, 1, 0)
    assert head["run"][1].tolist() == (0, 10, 5, UNCLEAN, 1, 0)


def test_connections_add_up_by_input_and_end() -> None:
    """One buffer may count for several that were refused; those open are accepted and not closed."""
    words, buffers = np.zeros(CONNECTION_WORDS, np.int64), [Buffer() for _ in range(3)]
    counts = address_of(words)
    for one, kind in zip(buffers, (UNIX, TCP, TCP), strict=True):
        open_counted(counts, one.head, kind, 0, 0, 0)
    offer(buffers[1].head, 0, 0, 3, 0, USER_LIMIT)
    take(buffers[1].head, 1)
    assert stands_for(buffers[1].head) == 4
    heads = [one.head for one in buffers]
    settle(words, heads)
    assert {name: one.accepted for name, one in read_connections(words).items()} == {
        "stream": 1,
        "tcp": 5,
        "kafka": 0,
    }
    free_counted(counts, heads[0])
    free_counted(counts, heads[1])
    assert connection_buffer.kind_of(heads[0]) == FREE
    settle(words, heads)
    found = read_connections(words)
    ended = {name: {how: n for how, n in one.closed.items() if n} for name, one in found.items()}
    assert ended == {"stream": {"clean": 1}, "tcp": {"user_limit": 4}, "kafka": {}}
    assert {name: one.accepted for name, one in found.items()} == {
        "stream": 1,
        "tcp": 5,
        "kafka": 0,
    }
