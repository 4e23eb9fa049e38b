"""One user that connects, or sends, on as many connections as possible: others wait for one turn of it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.access import NO_ID
from ingest.buffers import connection_buffers
from ingest.sockets.holding import allow_descriptors
from ingest.sockets.listening import BACKLOG, finish
from ingest.streams import stream_worker, users
from ingest.streams.newcomers import NAMELESS_QUEUE, QUEUE, Acceptor, RoundRobin, by_user
from ingest.streams.stream_worker import MOST_CONNECTIONS
from ingest.streams.users import Allowance, Connection, User, Users, put
from spool.format.wire import encode
from spool.native.memory import Address
from tests.daemon import free_port
from tests.ingest.processes import PATIENCE_S
from tests.ingest.stream_clients import Streams

MANY, FAST, OTHER = 300, 12_001, 12_002
GOOD = encode(b"t", b"v")


@pytest.fixture
def most() -> int:
    """Connections that the worker takes; a test may set another number."""
    return MOST_CONNECTIONS


@pytest.fixture
def streams(memory: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    """A stream worker in this process. TCP, without a user, has many connections; ours is the other one."""
    monkeypatch.setattr("ingest.streams.newcomers.users_of", lambda asked: [None] * len(asked))
    allow_descriptors()
    made = Streams(memory, most=most)
    yield made
    made.close()


def test_newcomers_at_the_other_loopback(memory: Path) -> None:
    """At ::1, which a service manager may hand over, users are known, too, before and behind a kill."""
    streams = Streams(memory)
    with socket.create_server(("::1", free_port()), family=socket.AF_INET6) as listener:
        listener.setblocking(False)
        streams.listeners.append(listener)
        streams.succeed()
        with socket.create_connection(listener.getsockname()[:2]) as sender:
            for _ in range(2):
                sender.sendall(GOOD)
                streams.settle()
                (connection,) = streams.worker._connections.values()
                assert connection.user.key == os.getuid()
                streams.succeed()
        streams.listeners.remove(listener)
    assert streams.stored == [GOOD, GOOD]
    streams.close()


def test_numbers_end(streams: Streams) -> None:
    """Newcomers have numbers of four bytes, which begin again."""
    newcomers = streams.worker._newcomers
    newcomers._number = (1 << 32) - 1
    for _ in range(2):
        streams.connect()
    for listener in streams.listeners:
        newcomers.accept(listener)
    newcomers.hold()
    assert {one.number for some in newcomers._turns._of.values() for one in some} == {
        (1 << 32) - 1,
        connection_buffers.MOST_BUFFERS,
    }
    streams.settle()
    assert len(streams.worker._connections) == 2


@pytest.mark.parametrize("most", [2])
def test_more_than_there_may_be(streams: Streams) -> None:
    """While all wait for the log none can go; the one that was idle longest goes later."""
    senders = []
    for _ in range(3):
        senders.append(streams.connect())
        senders[-1].sendall(GOOD)
        streams.step()
        streams.step()
        streams.worker._look_at = math.inf
    assert len(streams.worker._connections) == 3
    streams.settle()
    assert len(streams.worker._connections) == 3
    streams.worker._look_at = 0.0
    streams.settle()
    assert len(streams.worker._connections) == 2
    assert streams.stored == [GOOD] * 3


def test_a_buffer_behind_many_newcomers(streams: Streams) -> None:
    """A user who connects behind many of another one gets a buffer at once; the others get theirs, too."""
    theirs = [streams.connect(tcp=True) for _ in range(MANY)]
    streams.step()
    streams.connect().sendall(GOOD)
    streams.step()
    streams.step()
    assert (streams.take(), streams.uids) == (1, {os.getuid()})
    assert len(streams.worker._connections) < MANY
    for one in theirs:
        one.sendall(GOOD)
    streams.settle()
    assert len(streams.stored) == 1 + MANY


@pytest.mark.parametrize("most", [8])
def test_too_many_newcomers(streams: Streams) -> None:
    """One user's connections beyond all bounds are closed at once, by tens in a run, and counted singly."""
    mine = [streams.connect() for _ in range(3)]
    theirs = [streams.connect(tcp=True) for _ in range(5)]
    streams.settle()
    theirs += [streams.connect(tcp=True) for _ in range(MANY - 5)]
    streams.step()
    assert len(streams.worker._connections) + len(streams.worker._newcomers) <= 8 + QUEUE
    streams.take()
    # One look at the listener, and one buffer for all of them.
    assert streams.refused["user_limit"] > MANY // 2
    streams.settle()
    for one in (*mine, streams.connect()):
        one.sendall(GOOD)
    streams.settle()
    assert streams.stored == [GOOD] * 4
    assert streams.refused == {"user_limit": MANY - 4}
    assert streams.counted("tcp") == (MANY, {"user_limit": MANY - 4}, 0)
    assert streams.counted() == (4, {}, 0)
    # They had no buffer each.
    assert streams.buffers.used < MANY // 2
    assert len(theirs) == MANY


@pytest.mark.parametrize("most", [8])
def test_senders_who_do_not_stay(streams: Streams) -> None:
    """Messages of one user on many short connections are not refused while the log is slow: they wait."""
    for number in range(MANY):
        with streams.connect() as sender:
            sender.sendall(encode(b"t", b"%d" % number))
        if number % (2 * QUEUE) == 0:
            streams.step()
    assert len(streams.worker._newcomers) <= 8 + QUEUE
    streams.settle()
    assert (len(streams.stored), streams.refused) == (MANY, {})


def test_a_user_who_connects_too_fast(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one beyond its rate no more than QUEUE newcomers wait; each other one is counted as refused."""
    streams.worker.users._allowances[FAST] = Allowance(50)
    streams.worker.users.enter(FAST)
    name_users(monkeypatch, itertools.chain([FAST] * MANY, [OTHER], [FAST] * MANY))
    for _ in range(MANY):
        with streams.connect() as sender:
            sender.sendall(GOOD)
    streams.connect().sendall(GOOD)
    streams.step()
    streams.take()
    assert OTHER in streams.uids
    assert f"uid {FAST} opens more than {users.CONNECTS_A_S} connections a second" in caplog.text
    for _ in range(MANY):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError), streams.connect() as sender:
            sender.sendall(GOOD)
    streams.settle()
    stored = len(streams.stored)
    assert 50 < stored < 50 + 4 * QUEUE
    assert streams.refused == {"user_limit": 2 * MANY + 1 - stored}
    assert streams.counted() == (2 * MANY + 1, {"clean": stored - 1, **streams.refused}, 0)


@pytest.mark.parametrize("most", [8])
def test_refused_by_tcp(streams: Streams) -> None:
    """A client that half-closes its stream and waits for the end finds an error: nothing is in the log."""
    found = Counter[str]()
    for allowance, many in ((Allowance(), MANY), (Allowance(0), 6 * MANY)):
        streams.worker.users.enter(NO_ID).allowance = allowance
        theirs = []
        for _ in range(0, many, MANY):
            theirs += [streams.connect(tcp=True) for _ in range(MANY)]
            streams.step()
            streams.step()
        for one in theirs:
            one.settimeout(0)
            try:
                one.sendall(GOOD)
                one.shutdown(socket.SHUT_WR)
                found["end" if one.recv(1) == b"" else "answer"] += 1
            except BlockingIOError:
                found["open"] += 1
            except OSError:
                found["error"] += 1
            one.close()
        streams.settle()
    assert found.keys() == {"open", "error"}
    assert found["error"] >= 7 * MANY - NAMELESS_QUEUE - QUEUE - 2 * 8


def name_users(monkeypatch: pytest.MonkeyPatch, uids: Iterator[int]) -> None:
    """Let connections by UNIX stream come from these users, in order."""
    accept = Acceptor.accept

    def of_others(self: Acceptor, listener: socket.socket, most: int) -> tuple[Any, bool]:
        peers, more = accept(self, listener, most)
        if listener.family == socket.AF_UNIX:
            peers["uid"] = list(itertools.islice(uids, len(peers)))
        return peers, more

    monkeypatch.setattr(Acceptor, "accept", of_others)


def test_a_pause_behind_refusals(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one that connects too fast nothing is accepted for a moment; then others are, at any door."""
    streams.worker.users._allowances[FAST] = Allowance(1)
    streams.worker.users.enter(FAST)
    name_users(monkeypatch, itertools.repeat(FAST))
    theirs = [streams.connect() for _ in range(2 * QUEUE)]
    streams.step()
    until = streams.worker._paused
    assert until
    streams.connect(tcp=True).sendall(GOOD)
    while NO_ID not in streams.uids and time.monotonic() < until + PATIENCE_S:
        streams.step()
        streams.take()
        assert NO_ID not in streams.uids or time.monotonic() >= until
    streams.connect(tcp=True).sendall(GOOD)
    while len(streams.stored) == 1 and time.monotonic() < until + PATIENCE_S:
        theirs += [streams.connect() for _ in range(2 * QUEUE)]
        streams.step()
        streams.take()
    assert streams.stored == [GOOD] * 2


def test_what_waits_is_accepted_in_one_call(streams: Streams) -> None:
    """With the process that connected, as the kernel has it, and none by TCP; never more than asked for."""
    by_path, by_port = streams.listeners
    clients = [streams.connect(tcp=tcp) for tcp in (False, False, False, True)]
    me, untold, acceptor = (os.getpid(), os.getuid(), os.getgid()), (NO_ID, NO_ID, NO_ID), Acceptor()
    for listener, processes, more in (
        (by_path, [me, me], True),
        (by_path, [me], False),
        (by_path, [], False),
        (by_port, [untold], False),
    ):
        peers, may_be_more = acceptor.accept(listener, 2)
        assert peers[["pid", "uid", "gid"]].tolist() == processes
        assert may_be_more == more
        assert not any(os.get_inheritable(fd) for fd in peers["fd"].tolist())
        acceptor.close(peers)
    assert all(client.recv(1) == b"" for client in clients)


def test_nothing_waits_at_a_listener_that_was_ended(streams: Streams) -> None:
    """A worker before this one has accepted all of it: a successor finds nothing, and lives."""
    for listener in streams.listeners:
        finish(listener)
        peers, may_be_more = Acceptor().accept(listener, 2)
        assert (len(peers), may_be_more) == (0, False)


def test_newcomers_by_user(streams: Streams) -> None:
    """Each user's are together, in the order in which they came."""
    for _ in range(5):
        streams.connect()
    peers, _ = Acceptor().accept(streams.listeners[0], 5)
    peers["uid"] = [FAST, OTHER, FAST, OTHER, FAST]
    fds = peers["fd"].tolist()
    assert [some["fd"].tolist() for some in by_user(peers)] == [fds[::2], fds[1::2]]
    assert list(by_user(peers[:0])) == []
    Acceptor().close(peers)


def test_all_that_waits_is_accepted_in_a_step(streams: Streams) -> None:
    """Otherwise one who connects faster keeps the kernel's queue full, and others are turned away."""
    with contextlib.ExitStack() as stack:
        for _ in range(BACKLOG):
            stack.enter_context(streams.connect())
        streams.step()
        with pytest.raises(BlockingIOError):
            streams.listeners[0].accept()
        assert len(streams.worker._newcomers) + streams.buffers.used == BACKLOG
    streams.settle()


def test_the_store_is_told_once_of_many(streams: Streams) -> None:
    """However many connections offer something in a step: each wake-up of the ingest worker is a switch."""
    for _ in range(20):
        streams.connect().sendall(GOOD)
    streams.step()
    assert len(streams.worker._waiting) == 20
    assert os.eventfd_read(streams.bells.offered) == 1


def test_a_moderate_rate() -> None:
    """One with a connection for each message, as many a second as it may, is never beyond its rate."""
    allowance, step = Allowance(50), 1 / users.CONNECTS_A_S
    assert all(allowance.take(1000 + number * step) for number in range(1000))
    assert [allowance.take(1002.0), allowance.take(1002.0, 60), allowance.take(1002.0)] == [1, 49, 0]
    assert allowance.take(1002.0 + 2 * step)


def test_a_user_who_comes_back_has_spent_what_it_spent() -> None:
    """Without a connection a user is forgotten; its allowance is when it is full."""
    users_ = Users(100, 64 << 20, 1 << 20)
    fast = users_.enter(FAST)
    while fast.allowance.take(1000.0):
        continue
    users_.leave(fast)
    users_.sweep(1000.0)
    assert not users_.enter(FAST).allowance.take(1000.0)
    users_.leave(fast)
    users_.sweep(1010.0)
    assert users_._allowances == {}
    assert users_.enter(FAST).allowance.take(1010.0)


def test_one_that_is_over_at_once(streams: Streams) -> None:
    """The supervisor holds a connection that stays; one with a message and its end never comes there."""
    with streams.connect() as sender:
        sender.sendall(GOOD)
        sender.shutdown(socket.SHUT_WR)
        streams.step()
        assert not streams.store._held
        sender.setblocking(False)
        # The close says that the message is in the log.
        with pytest.raises(BlockingIOError):
            sender.recv(1)
        streams.take()
        streams.step()
        assert sender.recv(1) == b""
    assert not streams.store._held
    assert not streams.worker._connections
    stays = streams.connect()
    stays.sendall(GOOD)
    streams.step()
    assert len(streams.store._held) == 1
    streams.settle()
    assert streams.stored == [GOOD] * 2


@pytest.mark.parametrize("most", [8])
def test_senders_who_speak_late(streams: Streams) -> None:
    """Connections that have spoken, and wait for their turn, are no reason to refuse their user others."""
    silent = [streams.connect() for _ in range(8)]
    streams.settle()
    for number in range(MANY):
        with streams.connect() as sender:
            sender.sendall(encode(b"t", b"%d" % number))
        if number == 2 * QUEUE:
            # Newcomers wait already: the kernel reports the listener before it reports these.
            for one in silent:
                one.sendall(GOOD)
                one.close()
        if number >= 2 * QUEUE and number % 10 == 0:
            streams.step()
    streams.settle()
    assert (len(streams.stored), streams.refused) == (8 + MANY, {})


@pytest.mark.parametrize("most", [8])
def test_lines_are_left_for_others(streams: Streams) -> None:
    """While buffers are missing the user with most gets none of the last ones, until runs are taken."""
    del streams.worker._free[8 + 2 + stream_worker._RESERVED :]
    theirs = [streams.connect(tcp=True) for _ in range(60)]
    for _ in range(8):
        streams.step()
    assert len(streams.worker._free) == stream_worker._RESERVED
    streams.connect().sendall(GOOD)
    for _ in range(3):
        streams.step()
    assert streams.buffers.used == 8 + 2 + 1
    streams.settle()
    assert streams.stored == [GOOD]
    assert len(theirs) - streams.refused["user_limit"] == 8 - 1


def test_many_that_send(streams: Streams) -> None:
    """Behind many connections of one user that have sent, another user's message is in the third burst."""
    theirs = [streams.connect(tcp=True) for _ in range(MANY)]
    while len(streams.worker._connections) < MANY:
        streams.step()
    mine = streams.connect()
    streams.settle()
    for one in theirs:
        one.sendall(GOOD)
    for _ in range(2 + MANY // stream_worker._TURNS):
        streams.step()
    assert len(streams.worker._waiting) == 2 * connection_buffers.MOST_RUNS
    mine.sendall(GOOD)
    for _ in range(1 + MANY // stream_worker._TURNS):
        streams.step()
    for _ in range(3):
        streams.take()
    assert os.getuid() in streams.uids
    streams.settle()
    assert len(streams.stored) == MANY + 1


def test_many_that_send_much(streams: Streams) -> None:
    """The same, where each run is a burst of its own: as many messages as that may have."""
    theirs, much = [streams.connect(tcp=True) for _ in range(20)], GOOD * 512
    streams.settle()
    mine = streams.connect()
    streams.settle()
    for one in theirs:
        one.sendall(much)
    streams.step()
    mine.sendall(GOOD)
    streams.step()
    for _ in range(3):
        streams.take()
    assert os.getuid() in streams.uids
    streams.settle()
    assert len(streams.stored) == 20 * 512 + 1


@pytest.mark.parametrize("most", [12])
@pytest.mark.parametrize("idle", [4, 3])
def test_three_users_who_say_nothing(streams: Streams, idle: int) -> None:
    """Of three users one is refused newcomers that keeps a third of all connections open without a word."""
    all_users = streams.worker.users
    for uid in range(3):
        user = all_users.enter(uid)
        user.newcomers = 1
        for number in range(4):
            put(Connection(number, Address(0), None, user), user.idle if number < idle else None)
    assert (streams.worker._newcomers._hoarder() is not None) is (idle == 4)


def test_turns() -> None:
    """One of each user in turn, each user's in order; one that may not has to wait, and keeps its items."""
    one, two, three = (User(key, Allowance()) for key in (1, 2, 3))
    turns: RoundRobin[str] = RoundRobin()
    for number in range(100):
        turns.add(one, f"one {number}")
    for user, item in ((two, "two"), (three, "three"), (three, "three"), (three, "gone")):
        turns.add(user, item)
    turns.discard(three, "gone")
    turns.discard(three, "gone")
    turns.discard(two, "never there")
    assert (len(turns), turns.count(one), turns.count(three)) == (102, 100, 1)
    assert [turns.next(lambda user: user is not one) for _ in range(3)] == ["two", "three", None]
    turns.add(two, "two again")
    assert [turns.next(lambda _: True) for _ in range(3)] == ["one 0", "two again", "one 1"]
    assert turns.pop_newest(one) == "one 99"
    assert [turns.next(lambda _: True) for _ in range(98)] == [*(f"one {n}" for n in range(2, 99)), None]
    assert len(turns) == 0
