"""Connections: requests out of bytes, who may send, who is late, and the memory that users share."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.kafka.clients import (
    IDLE_S,
    MOST_ANSWERS,
    MOST_REQUEST_BYTES,
    QUIET_S,
    RATE_BYTES,
    RECEIVE_BYTES,
    SMALL_BYTES,
    UNREAD_BYTES,
    Client,
    Memory,
    Options,
    Reply,
)
from ingest.kafka.errors import BadRequest
from ingest.kafka.protocol import Where

WHERE = Where("127.0.0.1", 9092)


class Pair:
    """A client, and its program's end of the connection."""

    def __init__(self) -> None:
        ours, self.program = socket.socketpair()
        ours.setblocking(False)
        self.program.setblocking(False)
        self.client = Client(ours, WHERE, Options())

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self.program.close()

    def drain(self) -> bytes:
        """All that the program can read."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while part := self.program.recv(1 << 20):
                found += part
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection."""
    made = Pair()
    yield made
    made.close()


def made() -> Client:
    """A client without a connection."""
    return Client(socket.socket(), WHERE, Options())


@pytest.fixture
def client() -> Iterator[Client]:
    """A client without a connection, which begins with nothing."""
    one = made()
    yield one
    one.close()


def framed(body: bytes) -> bytes:
    """A request as it comes."""
    return struct.pack(">i", len(body)) + body


def frames(client: Client) -> list[bytes]:
    """The requests that are there whole."""
    found = []
    while (frame := client.next_frame()) is not None:
        found.append(bytes(frame))
    return found


def test_several_in_one(pair: Pair) -> None:
    """Several requests that come together are taken one after the other, and the rest waits."""
    pair.program.send(framed(b"one") + framed(b"two") + framed(b"three")[:-1])
    assert pair.client.receive()
    assert frames(pair.client) == [b"one", b"two"]
    assert pair.client.missing == 1
    pair.program.send(b"e")
    assert pair.client.receive()
    assert frames(pair.client) == [b"three"]
    assert (pair.client.missing, pair.client.is_idle) == (0, True)


def test_byte_by_byte(pair: Pair) -> None:
    """A request that comes byte by byte is taken with its last one."""
    whole = framed(b"request")
    for number, byte in enumerate(whole, 1):
        assert pair.client.next_frame() is None
        pair.program.send(bytes([byte]))
        assert pair.client.receive()
        assert pair.client.missing == (0 if number < 4 else len(whole) - number)
    assert frames(pair.client) == [b"request"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), st.lists(st.integers(0, 500)))
def test_any_parts(bodies: list[bytes], cuts: list[int]) -> None:
    """Requests are the same in whatever parts they come."""
    with contextlib.closing(Pair()) as pair:
        data, found = b"".join(map(framed, bodies)), list[bytes]()
        ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
        for begin, end in pairwise(ends):
            pair.program.sendall(data[begin:end])
            # The rest of a request that has begun; all that is behind it.
            for _ in range(2):
                assert pair.client.receive()
                found += frames(pair.client)
        assert found == bodies


def test_a_request_that_has_begun_comes_alone(pair: Pair) -> None:
    """The kernel keeps those behind it for the next call, so that a large request is not copied."""
    first, second = framed(b"first"), framed(b"second")
    pair.program.sendall(first[:6])
    assert pair.client.receive()
    pair.program.sendall(first[6:] + second)
    assert pair.client.receive()
    inbox = pair.client.inbox
    frame = pair.client.next_frame()
    assert frame == b"first"
    assert frame.obj is inbox
    assert pair.client.receive()
    assert frames(pair.client) == [b"second"]


def test_a_frame_is_kept(client: Client) -> None:
    """A request stays as it is when others come."""
    client.inbox += framed(b"first")
    frame = client.next_frame()
    client.inbox += framed(b"other")
    assert frame == b"first"
    assert frames(client) == [b"other"]


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), MOST_REQUEST_BYTES + 1, (1 << 31) - 1])
def test_hostile_size(client: Client, size: int) -> None:
    """A size that no request has is refused as soon as it is there."""
    client.inbox += struct.pack(">i", size)
    assert 0 <= client.missing <= MOST_REQUEST_BYTES
    with pytest.raises(BadRequest, match=f"a request of {size} bytes: expected 1 to {MOST_REQUEST_BYTES}"):
        client.next_frame()


def test_largest(client: Client) -> None:
    """A request may have as many bytes as the limit."""
    client.inbox += struct.pack(">i", MOST_REQUEST_BYTES)
    assert client.missing == MOST_REQUEST_BYTES
    assert client.next_frame() is None
    client.inbox += bytes(MOST_REQUEST_BYTES)
    frame = client.next_frame()
    assert frame is not None
    assert len(frame) == MOST_REQUEST_BYTES


@pytest.mark.parametrize("version", range(5))
def test_tls(client: Client, version: int) -> None:
    """A client that speaks TLS is named as one."""
    client.inbox += b"\x16\x03" + bytes([version]) + b"\x02\x00\x01\x00"
    with pytest.raises(BadRequest, match=r"TLS.*PLAINTEXT"):
        client.next_frame()


def test_receive(pair: Pair) -> None:
    """A receive takes a bounded part, says when the end has come, and when nothing has, goes on."""
    assert pair.client.receive()
    assert pair.client.came == 0
    before = time.monotonic()
    pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * RECEIVE_BYTES)
    pair.program.send(bytes(2 * RECEIVE_BYTES))
    assert pair.client.receive()
    assert 0 < len(pair.client.inbox) <= RECEIVE_BYTES
    assert before <= pair.client.came <= time.monotonic()
    while pair.client.inbox:
        pair.client.inbox.clear()
        assert pair.client.receive()
    pair.program.close()
    assert not pair.client.receive()


def test_begun(pair: Pair) -> None:
    """A request has begun with its first byte, and the next one when the one before is taken."""
    assert pair.client.begun == 0
    pair.program.send(framed(b"one")[:2])
    pair.client.receive()
    begun = pair.client.begun
    assert begun == pair.client.came > 0
    pair.program.send(framed(b"one")[2:] + b"\0")
    pair.client.receive()
    assert pair.client.begun == begun < pair.client.came
    assert frames(pair.client) == [b"one"]
    assert pair.client.begun >= pair.client.came
    pair.program.send(b"\0\0\1x")
    pair.client.receive()
    assert frames(pair.client) == [b"x"]
    assert pair.client.begun == 0


def test_send(pair: Pair) -> None:
    """The kernel takes a part of much; the rest waits, and comes in order."""
    data = b"".join(struct.pack(">i", number) for number in range(1 << 19))
    pair.client.outbox += data
    found = b""
    while pair.client.outbox:
        assert pair.client.send()
        part = pair.drain()
        assert part
        found += part
    assert found + pair.drain() == data
    assert pair.client.came > 0


def test_send_to_no_one(pair: Pair) -> None:
    """A program that is gone is noticed when it is sent to."""
    pair.program.close()
    pair.client.outbox += b"answer"
    assert not pair.client.send()


def test_send_nothing(pair: Pair) -> None:
    """Nothing to send is no sign of life."""
    assert pair.client.send()
    assert (pair.client.came, pair.drain()) == (0, b"")


def test_close(pair: Pair) -> None:
    """The program sees the end, also when it closed before, and when it is closed twice."""
    pair.client.close()
    assert pair.program.recv(1) == b""
    pair.client.close()


def test_may_send(client: Client) -> None:
    """A client is read from unless it is over, is answered alone, or waits for memory or for us."""
    assert client.may_send
    for name in ("is_over", "sends_no_more", "starved"):
        setattr(client, name, True)
        assert not client.may_send
        setattr(client, name, False)
    client.storing = Reply()
    assert not client.may_send
    client.storing = None
    assert client.may_send


def test_may_send_unanswered(client: Client) -> None:
    """A client with many answers on their way is not read from, nor one that does not read them."""
    for _ in range(MOST_ANSWERS - 1):
        client.owe(Reply())
    client.outbox += bytes(UNREAD_BYTES - 1)
    assert client.may_send
    client.owe(Reply())
    assert not client.may_send
    client.take_reply()
    client.outbox += b"x"
    assert not client.may_send
    del client.outbox[0]
    assert client.may_send
    for _ in range(MOST_ANSWERS - 1):
        client.take_reply()
    client.owe(Reply(b"x"))
    assert not client.may_send
    client.take_reply()
    assert client.may_send


def test_is_idle(client: Client) -> None:
    """A client is idle when no request has begun, and none waits for its answer."""
    assert client.is_idle
    for box in (client.inbox, client.outbox):
        box.append(1)
        assert not client.is_idle
        box.clear()
    client.owe(Reply())
    assert not client.is_idle
    client.take_reply()
    client.storing = Reply()
    assert not client.is_idle
    client.storing = None
    assert client.is_idle


def test_late_when_idle(client: Client) -> None:
    """A client is closed when nothing has come for long, and not while it waits for an answer."""
    client.came = 1000
    assert client.is_late(1000 + IDLE_S) == ""
    assert client.is_late(1001 + IDLE_S) == "idle"
    client.owe(Reply())
    assert client.is_late(1001 + 10 * IDLE_S) == ""


def test_late_to_read(client: Client) -> None:
    """A client that reads no answer is closed."""
    client.came = 1000
    client.outbox += b"answer"
    assert client.is_late(1000 + QUIET_S) == ""
    assert "has not read" in client.is_late(1001 + QUIET_S)
    client.outbox.clear()
    assert client.is_late(1001 + QUIET_S) == ""


def test_late_to_send(client: Client) -> None:
    """A request that has begun has to come, at a slow rate at least, from a client that is read from."""
    client.came = client.begun = 1000
    client.inbox += b"\0"
    assert client.is_late(1000 + QUIET_S) == ""
    assert "rest of a request" in client.is_late(1001 + QUIET_S)
    client.inbox += bytes(10 * RATE_BYTES)
    assert client.is_late(1009 + QUIET_S) == ""
    # The last byte has just come, and changes nothing.
    client.came = 1011 + QUIET_S
    assert "rest of a request" in client.is_late(1011 + QUIET_S)
    client.starved = True
    assert client.is_late(1011 + QUIET_S) == ""
    client.starved = False
    client.storing = Reply()
    assert client.is_late(1011 + QUIET_S) == ""


def users(*uids: int) -> list[Client]:
    """Clients of these users."""
    found = []
    for uid in uids:
        one = made()
        one.close()
        one.uid = uid
        found.append(one)
    return found


def test_half_of_the_memory() -> None:
    """A user alone may have half of the memory, and no more."""
    memory, (one, two, other) = Memory(1000), users(1, 1, 2)
    assert memory.grant(one, 400)
    assert memory.grant(two, 100)
    assert not memory.grant(two, 101)
    assert (one.granted, two.granted) == (400, 100)
    # Half of it is given away: another user may have a quarter.
    assert memory.grant(other, 250)
    assert not memory.grant(other, 251)


def test_a_quarter_of_the_memory() -> None:
    """Of four users each has a quarter when all is given away, and none has more than there is."""
    memory, clients = Memory(1000), users(1, 2, 3, 4, 5)
    assert [memory.grant(one, 250) for one in clients] == [True] * 4 + [False]
    assert memory.grant(clients[0], 249)
    assert not memory.grant(clients[4], 2)
    assert memory.grant(clients[4], 1)


def test_memory_is_given_back() -> None:
    """Memory that is given back may be had again, and clients that had none give nothing back."""
    memory, (one, two, other) = Memory(1000), users(1, 1, 2)
    for _ in range(5):
        assert memory.grant(one, 500)
        assert not memory.grant(two, 1)
        assert memory.grant(other, 0)
        assert memory.grant(one, 100)
        assert memory.grant(two, 400)
        assert memory.grant(one, 0)
        assert memory.grant(two, 0)
        assert memory.grant(two, 0)
    assert (one.granted, two.granted, other.granted) == (0, 0, 0)
    assert memory._of == {}


def test_those_that_wait_hold_no_more_than_they_sent() -> None:
    """Each of a user's clients had a request, and begins a larger one: they get memory one by one."""
    most = 64 * SMALL_BYTES
    memory, clients = Memory(most), users(*[1] * 7)
    larger = struct.pack(">i", 12 * SMALL_BYTES)
    for one in clients:
        one.held = 4 * SMALL_BYTES
        memory.serve(one)
        assert not one.starved
    for one in clients:
        one.held, one.inbox = 0, bytearray(larger)
        memory.serve(one)
    assert sum(one.starved for one in clients) > 0
    served = 0
    while waiting := [one for one in clients if not one.starved and one.inbox]:
        for one in waiting:
            one.inbox.clear()
            memory.serve(one)
            served += 1
        memory.feed()
    assert served == len(clients)
    assert memory._given == 0


def test_a_user_who_waits_costs_others_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of those that a user has waiting is looked at, while there is no memory for it."""
    memory, clients = Memory(8 * SMALL_BYTES), users(1, 2, 5, *[3] * 100, 4)
    for one in clients:
        one.inbox = bytearray(struct.pack(">i", (4 if one.uid == 1 else 2) * SMALL_BYTES - 4))
        memory.serve(one)
    assert [one.starved for one in clients] == [*[False] * 3, *[True] * 101]
    looked, serve = list[int](), memory.serve
    monkeypatch.setattr(memory, "serve", lambda one: (looked.append(one.uid), serve(one)))
    assert memory.feed() == []
    assert looked == [3, 4]
    clients[0].inbox.clear()
    serve(clients[0])
    assert memory.feed() == [clients[3], clients[-1]]
    assert looked == [3, 4, 3, 3, 4]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 700))))
def test_any_grants(wanted: list[tuple[int, int]]) -> None:
    """Clients have as much as was granted: never more than there is, than half for a user."""
    memory, clients = Memory(1000), users(1, 1, 2, 2, 3, 4)
    for number, size in wanted:
        one, before = clients[number], clients[number].granted
        granted = memory.grant(one, size)
        assert one.granted == (size if granted else before)
        assert granted or size > before
        assert memory._given == sum(client.granted for client in clients) <= 1000
        for uid in {client.uid for client in clients}:
            has = sum(client.granted for client in clients if client.uid == uid)
            assert memory._of.get(uid, 0) == has <= 500
    for one in clients:
        assert memory.grant(one, 0)
    assert (memory._given, memory._of) == (0, {})
