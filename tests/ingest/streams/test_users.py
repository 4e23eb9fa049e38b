"""Users of streams who take what they can get: others go on, all is bounded, each refusal is counted."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.access import NO_ID
from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffers import MOST_BUFFERS
from ingest.sockets.holding import DESCRIPTORS, allow_descriptors
from ingest.streams import users
from ingest.streams.newcomers import QUEUE
from ingest.streams.stream_worker import MOST_CONNECTIONS
from ingest.streams.users import BASE, SHARES, Connection, Users, bytes_for
from spool.format.segment_format import SAMPLE_BYTES
from spool.format.wire import Reason, encode
from spool.shared.state import Field
from tests.ingest.processes import PATIENCE_S, Processes, await_end, fork, message
from tests.ingest.stream_clients import Kill, Streams
from tests.ingest.streams.test_stream_storm import await_true, stream_to
from tests.ingest.streams.test_stream_worker import STEPS, settle
from tests.users import NOBODY, effective_user

LIMIT = 2 << 20
ATTACKER, OTHER, HONEST = 12_001, 12_002, 12_500
MANY = MOST_BUFFERS + 300
HUGE = LIMIT.to_bytes(4, "big") + bytes(LIMIT - 5)
"""A message but for its last byte."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")


@pytest.fixture
def processes(memory: Path) -> Iterator[Processes]:
    """An intake with a stream worker, and a process that attends to the store of connections."""
    allow_descriptors()
    # Other users have to come in.
    memory.chmod(0o711)
    made = Processes(memory, stream_limit=LIMIT, segment_bytes=8 << 20, max_bytes=1 << 30)
    over = threading.Event()

    def attend() -> None:
        while not over.is_set():
            if select.select([made.store], [], [], 0.05)[0]:
                made.store.attend()

    attending = threading.Thread(target=attend)
    attending.start()
    yield made
    over.set()
    attending.join()
    made.close()


def become(uid: int) -> None:
    """Become another user, irrevocably."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def as_user(uid: int, run: Callable[[], object]) -> int:
    """Run this in a child of another user."""

    def child() -> None:
        become(uid)
        run()

    return fork(child)


def flood(processes: Processes, uid: int, count: int, data: bytes) -> int:
    """A child that opens connections, sends this on each as far as it is taken, and holds them; its pid.

    It has opened them all when this returns.
    """
    address, ready = str(processes.stream_path), os.eventfd(0)

    def attack() -> None:
        allow_descriptors()
        held = []
        for _ in range(count):
            held.append(stream_to(address))
            held[-1].setblocking(False)
        left = dict.fromkeys(held, data)
        os.eventfd_write(ready, 1)
        while True:
            for one, rest in list(left.items()):
                with suppress(BlockingIOError, OSError):
                    left[one] = rest[one.send(rest) :] if rest else rest
            time.sleep(0.01)

    pid = as_user(uid, attack)
    assert select.select([ready], [], [], PATIENCE_S)[0]
    os.close(ready)
    return pid


def send_on_new_connections(processes: Processes, count: int, size: int) -> None:
    """An honest user's messages, each on a connection of its own, all of which must be taken."""
    address = str(processes.stream_path)

    def run() -> None:
        for number in range(count):
            with stream_to(address) as stream:
                stream.sendall(message(HONEST, number, size))

    pid = as_user(HONEST, run)
    assert await_end(pid) == 0


def end(pid: int) -> None:
    """SIGKILL a child."""
    os.kill(pid, signal.SIGKILL)
    await_end(pid)


def stored(processes: Processes, uid: int = HONEST) -> int:
    """Messages of a user in the log."""
    topic = b"from-%d" % uid
    found = [data for segment in processes.segments() for _, data in segment.messages()]
    return sum(topic in data[:64] for data in found)


def refused(processes: Processes) -> Counter[tuple[int, int]]:
    """The discards, by uid and reason, in the rows of the log."""
    found: Counter[tuple[int, int]] = Counter()
    for frame in (frame for segment in processes.segments() for frame in segment.frames):
        for uid, (reason, count, _) in zip(frame.row_uids, frame.rows, strict=True):
            found[uid or 0, reason] += count
    return found


def descriptors(pid: int) -> int:
    """The number of descriptors that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def used_bytes(processes: Processes) -> int:
    """The bytes of tmpfs that the buffers use."""
    return (processes.directory / "lines").stat().st_blocks * 512


def bound(directory: Path, side_bytes: int) -> int:
    """The most bytes of tmpfs that all buffers use, whatever senders do."""
    heads = 4096 + MOST_BUFFERS * connection_buffer.HEAD_BYTES
    return heads + MOST_BUFFERS * 2 * BASE + bytes_for(directory, side_bytes)


def test_idle_connections_of_one_user(processes: Processes) -> None:
    """With more than all connections taken by one user, another one's are all heard, and its old ones stay.

    Closed connections are counted by uid and reason; no process has more descriptors than it may.
    """
    staying = [as_user_stream(processes, HONEST) for _ in range(10)]
    pid = flood(processes, ATTACKER, MANY, b"")
    too_many = MANY + 10 - MOST_CONNECTIONS
    await_true("refusals", lambda: refused(processes)[ATTACKER, int(Reason.USER_LIMIT)] >= too_many)
    send_on_new_connections(processes, 50, 64)
    for number, stream in enumerate(staying):
        stream.sendall(message(HONEST, 100 + number, 64))
    await_true("all honest ones", lambda: stored(processes) == 60)
    assert set(refused(processes)) == {(ATTACKER, int(Reason.USER_LIMIT))}
    words = processes.shared.words[Field.CONNECTIONS :]
    await_true("all of them", lambda: int(words[0]) >= MANY + 60)
    assert descriptors(processes.pids["stream"]) < MOST_CONNECTIONS + QUEUE + DESCRIPTORS
    assert len(processes.store._held) <= MOST_BUFFERS
    assert used_bytes(processes) < bound(processes.directory, buffer_bytes())
    end(pid)
    # All of them are given back.
    await_true("descriptors", lambda: len(processes.store._held) <= len(staying))
    await_true("memory", lambda: used_bytes(processes) < (2 << 20))
    for stream in staying:
        stream.close()


def as_user_stream(processes: Processes, uid: int) -> socket.socket:
    """A connection whose other side takes it for another user's."""
    ours, theirs = socket.socketpair()

    def connect() -> None:
        stream = stream_to(str(processes.stream_path))
        socket.send_fds(theirs, [b"x"], [stream.fileno()])

    pid = as_user(uid, connect)
    assert await_end(pid) == 0
    _, found, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    return socket.socket(fileno=found[0])


def buffer_bytes() -> int:
    """The bytes of a side's buffers."""
    return (LIMIT + 4 + 4095) & ~4095


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("attackers", [1, 5])
def test_unfinished_messages(processes: Processes, attackers: int) -> None:
    """One user, or several, take all memory: another one's large messages and small ones still come.

    Buffers keep to their memory; when all of it is taken the oldest messages are given up, by uid.
    """
    pids = [flood(processes, ATTACKER + number, 200, HUGE) for number in range(attackers)]
    # About as much memory is taken as there is for so many.
    most = bytes_for(processes.directory, buffer_bytes()) * 3 // 4
    await_true("an attack", lambda: used_bytes(processes) > most // 2 * (1 if attackers == 1 else 1.8))
    send_on_new_connections(processes, 5, LIMIT - 64)
    send_on_new_connections(processes, 50, 64)
    await_true("all honest ones", lambda: stored(processes) == 55)
    assert used_bytes(processes) <= bound(processes.directory, buffer_bytes())
    closed = refused(processes)
    assert {reason for _, reason in closed} <= {int(Reason.USER_LIMIT)}
    assert HONEST not in {uid for uid, _ in closed}
    assert (attackers == 1) == (not closed)
    for pid in pids:
        end(pid)


@pytest.fixture
def streams(memory: Path) -> Iterator[Streams]:
    """A stream worker in this process."""
    made = Streams(memory)
    yield made
    made.close()


def test_slow_messages(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped sender, and one of a byte now and then, lose their connections; idle and fast ones stay."""
    now = 1000.0
    monkeypatch.setattr(streams.worker._intake, "now", lambda: now)
    stopped, slow, idle, fast, silent = (streams.connect() for _ in range(5))
    good, large = encode(b"t", b"v"), encode(b"t", bytes(80_000))
    stopped.sendall(good[:9])
    idle.sendall(good)
    sent = 0
    streams.settle()
    for number in range(int(users.PATIENCE_S) // 2 + 2):
        now += 2
        with suppress(BrokenPipeError):
            slow.sendall(large[number : number + 1])
        fast.sendall(large[sent : sent + 2 * users.RATE])
        sent += 2 * users.RATE
        streams.settle()
    assert streams.refused == {"too_slow": 2}
    assert sorted(map(len, streams.samples)) == [9, int(users.PATIENCE_S) // 2 + 2]
    assert streams.stored == [good, large]
    assert streams.counted() == (5, {"too_slow": 2}, 0)
    assert f"uid {os.getuid()} sent the beginning of a message, 9 of {len(good)} bytes" in caplog.text
    now += 10_000
    idle.sendall(good)
    silent.sendall(good)
    streams.settle()
    assert streams.stored == [good, large, good, good]


def test_a_message_that_came_while_the_worker_stood_still(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not too slow: what is there is received before anything is judged."""
    now = 1000.0
    monkeypatch.setattr(streams.worker._intake, "now", lambda: now)
    sender, good = streams.connect(), encode(b"t", b"v")
    sender.sendall(good[:9])
    streams.settle()
    sender.sendall(good[9:])
    now += 10 * users.QUIET_S
    streams.worker._look_for_late()
    streams.settle()
    assert (streams.stored, streams.refused) == ([good], {})


def test_memory_is_given_back(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large message's memory comes back when it is taken, or given up: at once, with nothing more sent."""
    large, now = encode(b"t", bytes(90_000)), 1000.0
    monkeypatch.setattr(streams.worker._intake, "now", lambda: now)
    sender = streams.connect()
    before = streams.buffers_path.stat().st_blocks * 512
    pool = streams.worker.users.large

    def kept() -> int:
        return streams.buffers_path.stat().st_blocks * 512 - before

    for _ in range(3):
        sender.sendall(large[:50_000])
        streams.settle()
        assert pool.given >= len(large)
        assert kept() > 50_000
        sender.sendall(large[50_000:])
        streams.settle()
        assert pool.given == 0
        assert kept() <= 2 * users.ROOM
    sender.sendall(large[:50_000])
    streams.settle()
    now += 2 * users.QUIET_S
    streams.step()
    # The run that says so is not taken yet.
    assert pool.given == 0
    assert kept() <= 2 * users.ROOM
    streams.settle()
    assert (streams.stored, streams.refused) == ([large] * 3, {"too_slow": 1})
    assert (kept(), len(streams.samples[0])) == (0, SAMPLE_BYTES)


def test_memory_is_given_back_where_there_is_none(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large message that is taken leaves nothing behind, also if the file system is full by then."""
    large, pool = encode(b"t", bytes(90_000)), streams.worker.users.large
    sender = streams.connect()
    sender.sendall(large[:50_000])
    streams.settle()
    sender.sendall(large[50_000:])
    streams.step()
    with monkeypatch.context() as full:
        full.setattr(streams.buffers, "reserve", lambda *_: False)
        streams.settle()
        assert streams.stored == [large]
        assert pool.given == 0
        sender.sendall(large)
        streams.step()
        assert streams.worker._starving
    streams.settle()
    assert (streams.stored, pool.given) == ([large] * 2, 0)


def test_a_message_keeps_its_memory_until_it_is_there(streams: Streams) -> None:
    """Also where as much has come as any connection may have: it would wait for more a second time."""
    large, sender = encode(b"t", bytes(90_000)), streams.connect()
    sender.sendall(large[: users.ROOM])
    streams.settle()
    assert streams.worker.users.large.given >= len(large)
    sender.sendall(large[users.ROOM :])
    streams.settle()
    assert (streams.stored, streams.worker.users.large.given) == ([large], 0)


def test_users_by_tcp(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that opens too many connections by TCP takes nothing from others, by whichever door they come."""
    streams, good = Streams(memory, most=8), encode(b"t", b"v")
    try:
        ours = [streams.connect(tcp=number % 2 == 0) for number in range(4)]
        streams.settle()
        with effective_user(NOBODY):
            theirs = [streams.connect(tcp=True) for _ in range(20)]
        streams.settle()
        streams.succeed()
        for sender in (*ours, *theirs[-4:]):
            sender.sendall(good)
        streams.settle()
        assert streams.stored == [good] * 8
        assert streams.refused == {"user_limit": 16}
        # A message has the user of a UNIX stream alone: [access] must not depend on who closes first.
        assert streams.uids == {os.getuid(), NO_ID}
        assert streams.counted("tcp") == (2 + 20, {"user_limit": 16}, 0)
        assert streams.counted() == (2, {}, 0)
        assert f"uid {NOBODY} has 20 connections with new ones, most of all users, who may" in caplog.text
        users_ = {connection.user.key for connection in streams.worker._connections.values()}
        assert users_ == {os.getuid(), NOBODY}
    finally:
        streams.close()


def test_refused_at_both_doors(memory: Path) -> None:
    """The connections of one user are refused by stream and by TCP: each input has its own count."""
    streams = Streams(memory, most=8)
    try:
        for _ in range(30):
            streams.connect()
            streams.connect(tcp=True)
            if len(streams.worker._connections) < 8:
                streams.settle()
        streams.settle()
        counts = streams.counted("stream"), streams.counted("tcp")
        assert sum(accepted for accepted, _, _ in counts) == 60
        assert sum(closed["user_limit"] for _, closed, _ in counts) == 60 - 8 == streams.refused["user_limit"]
        assert all(accepted == 30 for accepted, _, _ in counts)
    finally:
        streams.close()


@pytest.mark.sample(one_of=2)
# The kernel closes the descriptors that a process leaves at its end; Python would complain of this one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.crash
@pytest.mark.parametrize("after", [False, True])
def test_killed_while_one_is_closed_for_another(memory: Path, *, after: bool) -> None:
    """Whichever step the worker dies before or after, one is closed, and counted once, by its reason."""
    good, large = encode(b"t", b"v"), encode(b"t", bytes(80_000))
    for at in range(1, 1000):
        directory = memory / f"{after}-{at}"
        directory.mkdir()
        streams, kill = Streams(directory, most=3), Kill(at, after=after)
        begun = [streams.connect() for _ in range(3)]
        for sender in begun:
            sender.sendall(large[:50_000])
        settle(streams)
        with pytest.MonkeyPatch.context() as patch:
            for home, name in STEPS:
                patch.setattr(home, name, kill.wrap(getattr(home, name)))
            streams.connect().sendall(good)
            settle(streams)
        for sender in begun:
            with suppress(BrokenPipeError, ConnectionResetError):
                sender.sendall(large[50_000:])
        settle(streams)
        # A worker killed between accept and keeping a connection loses that, but for what it received.
        assert streams.refused in ({"user_limit": 1}, {})
        assert streams.counted()[1].get("user_limit", 0) == streams.refused["user_limit"]
        stored = sorted(map(len, streams.stored), reverse=True)
        found = at, after, stored, streams.refused, streams.counted()
        assert stored[: 3 - len(streams.refused)] == [len(large)] * (3 - len(streams.refused)), found
        assert set(stored[3 - len(streams.refused) :]) <= {len(good)}, found
        assert streams.refused or at <= 5, found
        streams.close()
        # Here, where the complaint is not listened to.
        gc.collect()
        if kill.left > 0:
            assert at > 10
            return
    pytest.fail("it never ends")


def test_limits_are_named(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the uid of a message too long, or without a valid size, and the limit; now and then."""
    for data in (b"\x7f\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\3"):
        with streams.connect() as sender:
            sender.sendall(data)
            streams.settle()
    said = [text for record in caplog.records if "closed" in (text := record.getMessage())]
    assert said == [
        f"uid {os.getuid()} sent a message of {0x7FFFFFFB} bytes; [ingest] max_stream_message_bytes is "
        f"{streams.buffers.limit}; its connection is closed (too_long)",
        f"uid {os.getuid()} sent a size field of 3, which is less than its own 4 bytes; its connection is "
        "closed (bad_size)",
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 40), st.sampled_from(["begin", "end", "furnish"])),
        max_size=400,
    )
)
def test_shares(steps: list[tuple[int, int, str]]) -> None:
    """No pool gives more than it has, and to one user at most half of it, whatever users ask for.

    A user that has nothing gets a message's memory when no more than three others have some.
    """
    side, memory = 64 * BASE, 16 * 64 * BASE
    all_ = Users(100, memory, side)
    there = {(uid, n): Connection(n, 0, None, all_.enter(uid)) for uid in range(7) for n in range(41)}
    for uid, number, what in steps:
        connection = there[uid, number]
        if what == "begin":
            all_.grant(connection, side)
        elif what == "furnish":
            all_.furnish(connection)
        else:
            all_.release(connection)
        had = [connection.user for (_, n), connection in there.items() if n == 0]
        for pool, given_ in (
            (all_.large, [one.large for one in had]),
            (all_.small, [one.small for one in had]),
        ):
            assert pool.given == sum(given_) <= pool.bytes
            assert max(given_) <= pool.bytes // 2
        if len([one for one in had if one.large]) < SHARES - 1:
            assert all_.large.gives(0, side)
