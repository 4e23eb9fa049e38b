"""Streams: framing, the ends of connections, successors, and an accept loop that nothing upsets."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffers import ConnectionBuffers, holds_anything, read_connection_buffers
from ingest.sockets.holding import FdStore, allow_descriptors
from ingest.sockets.listening import is_finished, refuse
from ingest.streams import newcomers, stream_worker, users
from spool.format.wire import Reason, encode
from spool.shared.state import PAUSE_NS, Field
from tests.ingest.stream_clients import LIMIT, Kill, Killed, Streams

PIECES = st.sampled_from(
    [1, 4, 5, 33, users.BASE, users.ROOM - 1, users.ROOM, users.ROOM + 1, 2 * users.ROOM]
)
ABORTED = 200
PEERS = 1000
"""Each has two ends in this process."""


@pytest.fixture
def streams(memory: Path) -> Iterator[Streams]:
    """A stream worker in this process."""
    made = Streams(memory)
    yield made
    made.close()


def messages(count: int, size: int = 20) -> list[bytes]:
    """Different ones."""
    return [encode(b"t", b"%*d" % (size, number), timestamp=number) for number in range(count)]


def ended(stream: socket.socket) -> bool:
    """Whether the other side has ended the connection, as far as one can see now."""
    return last_byte(stream) is not None


def last_byte(stream: socket.socket) -> int | None:
    """The byte that the other side said before it ended the connection, or 0; None: it has not ended."""
    stream.setblocking(False)
    said = b""
    try:
        while part := stream.recv(8):
            said += part
    except BlockingIOError:
        return None
    except ConnectionResetError:
        pass
    assert len(said) < 2
    return said[0] if said else 0


@pytest.mark.parametrize("tcp", [False, True])
def test_messages_back_to_back(streams: Streams, *, tcp: bool) -> None:
    """More than a burst of messages in one write, and one message a byte at a time, are stored in order."""
    sender, sent = streams.connect(tcp=tcp), messages(1300)
    sender.sendall(b"".join(sent))
    streams.settle()
    for byte in sent[0]:
        sender.sendall(bytes([byte]))
        streams.settle()
    assert streams.stored == [*sent, sent[0]]
    assert streams.uids == {0xFFFFFFFF if tcp else os.getuid()}
    assert not streams.refused


@pytest.mark.parametrize("tcp", [False, True])
def test_a_message_of_the_limit(streams: Streams, tcp: bool) -> None:  # noqa: FBT001
    """The size may be the limit and its field; one more ends the connection, and its sender hears why."""
    sender = streams.connect(tcp=tcp)
    largest = encode(b"t", bytes(LIMIT + 4 - 29))
    assert len(largest) == LIMIT + 4
    for at in range(0, len(largest), 30_000):
        sender.sendall(largest[at : at + 30_000])
        streams.settle()
    assert streams.stored == [largest]
    sender.sendall((LIMIT + 5).to_bytes(4, "big") + b"lost")
    streams.settle()
    assert streams.refused == {"too_long": 1}
    assert last_byte(sender) == Reason.TOO_LONG
    assert streams.counted("tcp" if tcp else "stream") == (1, {"too_long": 1}, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 20, 4060, 4067, 40_000, 90_000]), max_size=6), st.lists(PIECES, max_size=30)
)
@example([1, 90_000], [1 + 29, users.ROOM])
def test_bytes_come_in_pieces(sizes: list[int], pieces: list[int]) -> None:
    """However the bytes are split, also where a buffer's memory ends, the same messages are stored."""
    sent = [encode(b"t", bytes([65 + number]) * size, timestamp=1) for number, size in enumerate(sizes)]
    data = b"".join(sent)
    with TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        streams = Streams(Path(name))
        try:
            sender = streams.connect()
            for size in itertools.chain(pieces, itertools.repeat(2 * users.ROOM)):
                if not data:
                    break
                sender.sendall(data[:size])
                streams.settle()
                data = data[size:]
            sender.close()
            streams.settle()
            assert streams.stored == sent
            assert not streams.refused
        finally:
            streams.close()


def test_a_small_limit(memory: Path) -> None:
    """Sides smaller than what is received at once: no connection writes into the memory of others."""
    made = Streams(memory, 1024)
    try:
        busy, slow = made.connect(), made.connect()
        sent, other = messages(300), encode(b"t", bytes(900))
        slow.sendall(other[:500])
        made.settle()
        assert made.buffers.side_bytes < len(b"".join(sent)) < users.ROOM
        # The first turns the buffer over; then more comes at once than a side takes.
        busy.sendall(sent[0] + sent[1][:9])
        made.settle()
        busy.sendall(b"".join(sent)[len(sent[0]) + 9 :])
        made.settle()
        slow.sendall(other[500:])
        made.settle()
        assert made.stored == [*sent, other]
        assert not made.refused
    finally:
        made.close()


@pytest.mark.parametrize("size", [3, 0, -1])
def test_a_bad_size_ends_the_connection(streams: Streams, size: int) -> None:
    """Messages before it are stored; bytes behind it are lost, and counted once, with a sample."""
    sender, good = streams.connect(), messages(2)
    bad = struct.pack(">i", size) + b"and so on"
    sender.sendall(b"".join(good) + bad)
    streams.settle()
    assert (streams.stored, streams.refused, streams.samples) == (good, {"bad_size": 1}, [bad])
    assert last_byte(sender) == Reason.BAD_SIZE
    assert streams.counted() == (1, {"bad_size": 1}, 0)


def test_malformed_inside_its_frame(streams: Streams) -> None:
    """A message that is malformed inside is refused by its reason, and the next one is fine."""
    sender, good = streams.connect(), messages(2)
    flagged = good[0][:8] + b"\x00\x01" + good[0][10:]
    odd = good[0][:4] + b"\x01\x07" + good[0][6:]
    sender.sendall(good[0] + struct.pack(">i", 4) + flagged + odd + good[1])
    streams.settle()
    assert streams.stored == good
    assert streams.refused == {"short": 1, "flags": 1, "api_key": 1}
    assert not ended(sender)


@pytest.mark.parametrize("left", [1, 3, 4, 30])
def test_an_end_inside_a_message(streams: Streams, left: int) -> None:
    """It is counted as unclean, with what there was of the message; an end between two is no discard."""
    good = messages(2)
    for rest in (good[1][:left], b""):
        with streams.connect() as sender:
            sender.sendall(good[0] + rest)
        streams.settle()
    assert (streams.stored, streams.samples) == ([good[0]] * 2, [good[1][:left]])
    assert streams.refused == {"unclean": 1}
    assert streams.counted() == (2, {"clean": 1, "unclean": 1}, 0)
    assert not holds_anything(streams.buffers_path)


def test_what_came_before_a_reset(streams: Streams) -> None:
    """Of a connection that fails while its messages wait, all that the kernel still has is stored."""
    sender, sent = streams.connect(tcp=True), messages(600)
    streams.settle()
    sender.sendall(b"".join(sent) + sent[0][:9])
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
    streams.settle()
    assert (streams.stored, streams.samples) == (sent, [sent[0][:9]])
    assert streams.counted("tcp") == (1, {"unclean": 1}, 1)


def test_a_reset(streams: Streams) -> None:
    """A connection that fails is counted so, by what it leaves: nothing, or the beginning of a message."""
    for rest in (b"", b"\0\0"):
        sender = streams.connect(tcp=True)
        sender.sendall(messages(1)[0] + rest)
        streams.settle()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
        streams.settle()
    assert streams.stored == messages(1) * 2
    assert streams.counted("tcp") == (2, {"clean": 1, "unclean": 1}, 2)
    assert streams.counted() == (0, {}, 0)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_count_is_made_right(streams: Streams, wrong: int) -> None:
    """A worker that was killed between counting and opening a buffer, or the other way: all add up again."""
    sender = streams.connect()
    streams.settle()
    streams.shared.words[Field.CONNECTIONS] += wrong
    streams.succeed()
    streams.settle()
    assert streams.counted() == (1, {}, 0)
    sender.close()
    streams.settle()
    assert streams.counted() == (1, {"clean": 1}, 0)


@pytest.mark.parametrize(
    ("said", "reason"),
    [(b"GET / HTTP/1.1\r\n", "http"), (b"POST /a", "http"), (b"\x16\x03\x01\x02\x00\x01", "tls")],
)
def test_other_protocols_on_tcp(
    streams: Streams, said: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS and HTTP on the TCP input are counted, and logged, by their names."""
    with streams.connect(tcp=True) as sender:
        sender.sendall(said)
        streams.settle()
        assert streams.refused == {reason: 1}
        assert streams.counted("tcp") == (1, {reason: 1}, 0)
        assert f"speaks {reason.upper()}" in caplog.text
        assert ended(sender)


STEPS = [
    (connection_buffer, "open_counted"),
    (connection_buffer, "receive"),
    (connection_buffer, "offer"),
    (connection_buffer, "turn_over"),
    (connection_buffer, "free_counted"),
    (ConnectionBuffers, "reserve"),
    (ConnectionBuffers, "give_back"),
    (FdStore, "renumber"),
    (FdStore, "drop"),
    (stream_worker, "end"),
]
"""All that changes what a successor finds."""


def live(streams: Streams, kill: Kill) -> None:
    """Three connections: one that splits messages, one with a burst and a half, one that ends badly."""
    senders = [streams.connect() for _ in range(3)]
    # Held from here on: between accept and that, a connection is reset.
    streams.step()
    sent = messages(700)
    large = encode(b"t", bytes(80_000))
    with pytest.MonkeyPatch.context() as patch:
        for home, name in STEPS:
            patch.setattr(home, name, kill.wrap(getattr(home, name)))
        parts = (sent[0] + sent[1][:7], sent[1][7:] + large[:50_000], large[50_000:] + sent[2] + sent[3][:5])
        writes = [(0, part) for part in parts] + [(1, b"".join(sent)), (2, sent[0] + bytes(8))]
        for who, data in writes:
            senders[who].sendall(data)
            settle(streams)
        for sender in senders:
            sender.close()
        settle(streams)


def settle(streams: Streams) -> None:
    """As Streams.settle, with a successor for a killed worker."""
    while True:
        try:
            streams.settle()
        except Killed:
            while True:
                try:
                    streams.succeed()
                except Killed:
                    continue
                break
        else:
            return


# The kernel closes the descriptors that a process leaves at its end; Python would complain of this one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.crash
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_each_step(memory: Path, *, after: bool) -> None:
    """Whichever step the worker dies before or after, the same is stored and counted, and none is left."""
    expected = None
    for at in range(1, 1000):
        directory = memory / f"{after}-{at}"
        directory.mkdir()
        streams, kill = Streams(directory), Kill(at, after=after)
        live(streams, kill)
        found = (sorted(streams.stored), streams.refused, streams.counted())
        expected = expected or found
        assert found == expected
        assert streams.refused == {"unclean": 1, "bad_size": 1}
        assert streams.counted() == (3, {"clean": 1, "unclean": 1, "bad_size": 1}, 0)
        assert len(streams.stored) == 3 + 1 + 700 + 1
        assert not holds_anything(streams.buffers_path)
        streams.close()
        # Here, where the complaint is not listened to.
        gc.collect()
        if kill.left > 0:
            assert at > 30
            return
    pytest.fail("it never ends")


def test_a_daemon_that_is_gone_as_a_whole(streams: Streams) -> None:
    """The connections are gone; whole messages in their buffers are offered, and the rest is unclean."""
    sender, sent = streams.connect(), messages(3)
    sender.sendall(sent[0] + sent[1] + sent[2][:9])
    # Once to accept it, once to receive.
    streams.step()
    streams.step()
    assert sum(count for _, count in read_connection_buffers(streams.buffers_path)) == 2
    streams.store.forget()
    streams.succeed()
    streams.settle()
    assert (streams.stored, streams.refused) == (sent[:2], {"unclean": 1})
    assert streams.counted() == (1, {"unclean": 1}, 0)
    assert ended(sender)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The call that accepts: it may be told to fail first, and its calls are counted."""
    made = mock.Mock(wraps=newcomers.accept_waiting)
    monkeypatch.setattr(newcomers, "accept_waiting", made)
    return made


def test_no_descriptors(streams: Streams, asked: mock.Mock) -> None:
    """Without descriptors nothing is accepted, and nothing spins; waiting clients are accepted later."""
    asked.side_effect = [(0, errno.ECONNABORTED), (0, errno.EMFILE)]
    sender = streams.connect()
    streams.step()
    # Aborted ones are passed over. The listener stays readable, and wakes no worker for a while.
    assert asked.call_count == 2
    assert streams.worker._poll.poll(0) == []
    asked.side_effect = None
    sender.sendall(messages(1)[0])
    while not streams.stored:
        streams.settle()
    assert streams.stored == messages(1)


@pytest.mark.parametrize("tcp", [False, True])
def test_descriptors_run_out(streams: Streams, asked: mock.Mock, *, tcp: bool) -> None:
    """The kernel itself refuses a descriptor: it is asked now and then, nothing spins, nothing is lost."""
    sender = streams.connect(tcp=tcp)
    sender.sendall(messages(1)[0])
    # No descriptor of an earlier test becomes free meanwhile.
    gc.collect()
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        began = time.monotonic()
        streams.step()
        assert streams.worker._poll.poll(0) == []
        assert asked.call_count == 1
        for _ in range(6):
            streams.step()
        # Asked again after a pause each time.
        assert 1 < asked.call_count <= 1 + (time.monotonic() - began) / stream_worker._PAUSE_S
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    while not streams.stored:
        streams.settle()
    assert streams.stored == messages(1)


def test_reset_before_they_are_accepted(streams: Streams) -> None:
    """Peers that reset a waiting connection disturb no worker: each is counted, with what it sent before."""
    for number in range(ABORTED):
        sender = streams.connect(tcp=True)
        if number % 2:
            sender.sendall(messages(1)[0])
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
    with streams.connect(tcp=True) as sender:
        sender.sendall(messages(1)[0])
        while streams.counted("tcp")[1] != {"clean": ABORTED}:
            streams.settle()
        assert len(streams.worker._connections) == 1
    streams.settle()
    assert streams.counted("tcp") == (ABORTED + 1, {"clean": ABORTED + 1}, ABORTED)
    assert streams.stored == (ABORTED // 2 + 1) * messages(1)


@pytest.mark.parametrize("tcp", [False, True])
def test_accepted_by_one_who_gives_way(streams: Streams, *, tcp: bool) -> None:
    """A connection that comes after GIVE_WAY goes to the successor, with all that it has sent."""
    streams.worker.giving_way = streams.worker.stopping = True
    sender = streams.connect(tcp=tcp)
    sender.sendall(messages(1)[0])
    streams.worker._free.clear()
    streams.worker._accept(streams.listeners[tcp])
    streams.worker._give_buffers()
    # It has no buffer yet.
    assert (len(streams.worker._newcomers), streams.buffers.used) == (1, 0)
    streams.succeed()
    sender.sendall(messages(2)[1])
    streams.settle()
    assert streams.stored == messages(2)


@pytest.mark.parametrize("tcp", [False, True])
def test_a_listener_that_goes_is_finished_later(streams: Streams, asked: mock.Mock, *, tcp: bool) -> None:
    """Clients waiting at a socket that is no input any more are accepted when there are descriptors again."""
    listener = streams.listeners[tcp]
    sender = streams.connect(tcp=tcp)
    sender.sendall(messages(1)[0])
    del streams.worker._listeners[listener.fileno()]
    streams.worker._poll.unregister(listener)
    refuse(listener)
    asked.side_effect = [(0, errno.EMFILE)]
    streams.worker.finish([listener])
    assert not is_finished(listener)
    asked.side_effect = None
    while not streams.stored:
        streams.settle()
    assert streams.stored == messages(1)
    assert is_finished(listener)


def test_half_open_peers(streams: Streams) -> None:
    """A thousand peers that say nothing, or claim much and send little, cost no memory and no turns."""
    allow_descriptors()
    peers = []
    while len(streams.worker._connections) < PEERS:
        peers += [streams.connect() for _ in range(min(100, PEERS - len(peers)))]
        streams.step()
    for peer in peers[::2]:
        peer.sendall(LIMIT.to_bytes(4, "big"))
    streams.settle()
    with mock.patch.object(connection_buffer, "receive") as receive:
        for _ in range(50):
            streams.step()
    receive.assert_not_called()
    # Of sides, 32 KiB for each that began, beside the heads.
    assert streams.buffers_path.stat().st_blocks * 512 < (2 << 20) + PEERS // 2 * (32 << 10)
    with streams.connect() as sender:
        sender.sendall(messages(1)[0])
        streams.settle()
    assert streams.stored == messages(1)
    for peer in peers:
        peer.close()
    streams.settle()
    assert streams.refused == {"unclean": PEERS // 2}


def test_no_memory(streams: Streams) -> None:
    """Without memory to receive into senders wait; nothing is lost."""
    sender, sent = streams.connect(), messages(3)
    with mock.patch.object(ConnectionBuffers, "reserve", return_value=False):
        sender.sendall(b"".join(sent))
        streams.settle()
        assert not streams.stored
    streams.settle()
    assert streams.stored == sent


def test_held(streams: Streams) -> None:
    """While an operator pauses the intake nothing is received, as the shared state says; then it goes on."""
    streams.shared.words[Field.PAUSE] = until = time.monotonic_ns() + PAUSE_NS
    assert streams.worker._intake.is_paused()
    assert streams.shared.words[Field.STREAMS_PAUSED] == until
    streams.shared.words[Field.PAUSE] = 0
    assert not streams.worker._intake.is_paused()
    assert streams.shared.words[Field.STREAMS_PAUSED] == 1


def test_waiting_for_a_store_is_not_quiet(streams: Streams) -> None:
    """At the end, TCP is heard until it is quiet; that the log is slow meanwhile cuts nothing off."""
    sent = messages(150, LIMIT - 100)
    sender = streams.connect(tcp=True)
    writing = threading.Thread(target=sender.sendall, args=(b"".join(sent),))
    writing.start()
    while not streams.worker._waiting:
        streams.step()
    ending = threading.Thread(target=streams.worker._take_rest)
    ending.start()
    time.sleep(2 * stream_worker._LINGER_S)
    while ending.is_alive():
        streams.take()
    writing.join()
    streams.take()
    assert streams.stored == sent
