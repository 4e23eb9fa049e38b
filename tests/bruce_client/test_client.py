"""The client against a real daemon: what it says is sent arrives, whatever becomes of the daemon.

These are the tests of `bruce_client.errors`, `bruce_client.message` and `bruce_client.sockets`, too.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from bruce_client import (
    BadMessage,
    Client,
    ClientError,
    NobodyListens,
    NotPermitted,
    QueueFull,
    TooLarge,
    Unconfirmed,
    encode,
)
from tests.bruce_client.doors import Doors
from tests.daemon import ROOT, free_port
from tools.waiting import wait_until

NOBODY = 65534
LARGE = 300_000


def test_it_needs_python_and_nothing_else() -> None:
    """A program that sends imports no library, ours among them, but the client itself."""
    code = (
        "import sys; before = set(sys.modules); import bruce_client;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['bruce_client']\n"


def test_every_field_arrives(doors: Doors) -> None:
    """Topic, key, value and time, as bytes or as text, of both kinds of message."""
    with Client(doors.datagrams, timeout_s=60) as client:
        client.send("orders", "grüße", key="k", timestamp_ms=1_700_000_000_123)
        before = time.time_ns() // 1_000_000
        client.send(b"orders", b"\xff\x00", key=b"\xfe", partition_key=7)
        client.send("orders", "")
    first, second, third = doors.records(3)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", "grüße".encode(), 1_700_000_000_123)
    assert (second.key(), second.value()) == (b"\xfe", b"\xff\x00")
    assert before <= second.timestamp()[1] <= time.time_ns() // 1_000_000
    assert (third.key(), third.value()) == (None, b"")


def test_a_large_message_goes_by_stream(doors: Doors) -> None:
    """Beyond a datagram's 65,536 bytes, by UNIX socket or TCP; small ones beside it are datagrams still."""
    room = 65_536 - len(encode(b"orders", b""))
    for stream in (doors.stream, ("127.0.0.1", doors.port)):
        with Client(doors.datagrams, stream=stream, timeout_s=60) as client:
            client.send("orders", bytes(room))
            client.send("orders", b"x" * (room + 1))
            client.send("orders", b"y" * LARGE)
    got = doors.values(6)
    assert Counter(got) == {bytes(room): 2, b"x" * (room + 1): 2, b"y" * LARGE: 2}


@pytest.mark.parametrize("tcp", [False, True])
def test_without_a_datagram_socket(doors: Doors, tcp: bool) -> None:  # noqa: FBT001
    """All messages go by stream, in order, and are stored when `send` returns."""
    with Client(None, stream=("127.0.0.1", doors.port) if tcp else doors.stream, timeout_s=60) as client:
        for number in range(5):
            client.send("orders", str(number))
            assert doors.bruce.status().received == number + 1
    assert doors.values(5) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_makes_no_message_is_said(tmp_path: Path) -> None:
    """Each kind has its error, before anything is sent: no topic, numbers too large, too many bytes."""
    client = Client(tmp_path / "nobody")
    for arguments in (
        {"topic": ""},
        {"topic": "t" * 32_768},
        {"partition_key": 1 << 31},
        {"timestamp_ms": 1 << 63},
    ):
        with pytest.raises(BadMessage, match="no message for topic"):
            client.send(**{"topic": "t", "value": "", **arguments})  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match=r"takes 70029 bytes; a datagram has 65536: .*stream_socket"):
        client.send("t", bytes(70_000))
    client = Client(tmp_path / "nobody", stream=tmp_path / "nobody", stream_limit_bytes=100_000)
    with pytest.raises(TooLarge, match=r"the daemon's limit is 100004: raise .*max_stream_message_bytes"):
        client.send("t", bytes(100_000))
    with pytest.raises(ValueError, match="name a socket, or a stream"):
        Client(None)


def test_more_than_the_daemon_takes(doors: Doors) -> None:
    """A client configured with a larger limit: the daemon ends the connection, and the error says so."""
    client = Client(doors.datagrams, stream=doors.stream, stream_limit_bytes=8 << 20, timeout_s=60)
    with pytest.raises(NobodyListens, match=r"ended the connection .* max_stream_message_bytes"):
        client.send("orders", bytes(3 << 20))
    doors.bruce.await_status(lambda s: s.received == s.discarded.get("too_long") == 3)


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_listens(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    """No daemon: one sentence, after the time that was given and not before."""
    way = {"socket": None, "stream": ("127.0.0.1", free_port())} if stream else {"socket": tmp_path / "no"}
    for given, timeout_s, least, most in ((0.3, None, 0.3, math.inf), (600, 0, 0, 600)):
        client = Client(**way, timeout_s=given)  # type: ignore[arg-type]
        start = time.monotonic()
        with pytest.raises(NobodyListens, match=r"no program listens at .*: is bruce up\?"):
            client.send("orders", "x", timeout_s=timeout_s)
        assert least <= time.monotonic() - start < most


@pytest.mark.parametrize("stream", [False, True])
def test_a_socket_that_is_not_for_us(doors: Doors, stream: bool) -> None:  # noqa: FBT001
    """Another user gets an error at once that names the settings that decide."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    path = doors.stream if stream else doors.datagrams
    os.chmod(doors.bruce.runtime, 0o755)
    os.chmod(path, 0o600)
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import bruce_client as b; os.setuid({NOBODY})\n"
        f"try: b.Client({None if stream else str(path)!r}, stream={str(path)!r}).send('orders', 'x')\n"
        "except b.NotPermitted as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"this user may not write to {path}: [ingest] socket_mode and socket_group of bruce decide\n"
    )


def test_a_full_queue(doors: Doors) -> None:
    """With no reader `send` waits for its timeout and says so; the messages it took arrive in order."""
    doors.halt_intake()
    client = Client(doors.datagrams, timeout_s=0)
    taken = fill(client)
    with pytest.raises(QueueFull, match="is full: is bruce busy, or held"):
        client.send("orders", "none")
    start = time.monotonic()
    with pytest.raises(QueueFull):
        client.send("orders", "later", timeout_s=0.3)
    assert time.monotonic() - start >= 0.3
    with pytest.raises(Unconfirmed, match="were not read in time"):
        client.flush(timeout_s=0.1)
    (pid,) = [w.pid for w in doors.bruce.status().workers if w.role == "ingest"]
    os.kill(pid, signal.SIGCONT)
    client.flush(timeout_s=60)
    client.close()
    assert doors.values(taken) == [b"%d" % number for number in range(taken)]


def fill(client: Client) -> int:
    """Send numbers until there is no room; how many were taken."""
    for taken in itertools.count():
        try:
            client.send("orders", str(taken), timeout_s=0)
        except QueueFull:
            break
    return taken


@pytest.mark.crash
def test_what_a_killed_daemon_had_not_read_goes_to_the_next(doors: Doors) -> None:
    """SIGKILL of every process with messages in the socket's queue: the next `send` brings them along."""
    with Client(doors.datagrams, timeout_s=60) as client:
        client.send("orders", "read")
        client.flush()
        doors.halt_intake()
        for number in range(5):
            client.send("orders", f"unread {number}")
        doors.kill()
        with pytest.raises(NobodyListens):
            client.send("orders", "refused", timeout_s=0.05)
        doors.restart_dead()
        client.send("orders", "after")
    assert doors.values(7) == [b"read", *(b"unread %d" % n for n in range(5)), b"after"]


@pytest.mark.crash
def test_flush_notices_that_the_daemon_died(doors: Doors) -> None:
    """The queue of a dead daemon is empty, but was not read: `flush` sends its messages to the next one."""
    client = Client(doors.datagrams, timeout_s=60)
    doors.halt_intake()
    client.send("orders", "unread")
    doors.kill()
    with pytest.raises(NobodyListens):
        client.flush(timeout_s=0.05)
    doors.restart_dead()
    client.close()
    assert doors.values(1) == [b"unread"]


@pytest.mark.crash
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kill", [True, False])
def test_restarts_while_many_threads_send(doors: Doors, stream: bool, kill: bool) -> None:  # noqa: FBT001
    """One client, four threads, the daemon killed or stopped three times: messages reported sent are stored.

    By stream, or at an orderly stop, no message comes twice.
    """
    client = Client(None if stream else doors.datagrams, stream=doors.stream, timeout_s=60)
    sent, stopping = Counter[bytes](), threading.Event()
    threads = [threading.Thread(target=keep_sending, args=(client, n, sent, stopping)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = len(sent)
        doors.bruce.await_true(lambda before=before: len(sent) > before + 50)  # type: ignore[misc]
        if kill:
            doors.kill()
        else:
            assert doors.bruce.stop() in (0, 1)
        doors.restart_dead()
    stopping.set()
    for thread in threads:
        thread.join()
    client.close()
    stored = doors.bruce.await_status(lambda s: s.received >= len(sent) and s.backlog == 0).received
    assert stored == len(sent) if stream or not kill else stored >= len(sent)
    assert set(sent) <= set(doors.values(len(sent)))


def keep_sending(client: Client, thread: int, sent: Counter[bytes], stopping: threading.Event) -> None:
    """Note each message that is sent."""
    number = 0
    while not stopping.is_set():
        value = b"%d-%d" % (thread, number)
        client.send("orders", value)
        sent[value] += 1
        number += 1
        time.sleep(0.002)


def test_a_forked_child_sends_nothing_again(doors: Doors) -> None:
    """It has a connection of its own; a lock that was held and messages that were unread are the parent's."""
    client = Client(doors.datagrams, timeout_s=60)
    doors.halt_intake()
    client.send("orders", "parent")
    with client._lock:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                client.flush(timeout_s=0)
                client.send("orders", "child", timeout_s=10)
                os._exit(0)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    doors.kill()
    doors.restart_dead()
    client.send("orders", "later")
    client.close()
    # The child's messages in the queue died with the daemon: its own client had ended.
    assert doors.values(2) == [b"parent", b"later"]


def test_the_end_does_not_take_the_socket_from_who_sends(tmp_path: Path) -> None:
    """`close` beside a thread that waits for room says so, and the message arrives."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))
        daemon.settimeout(60)
        client, queued = Client(path, timeout_s=0), 0
        with suppress(QueueFull):
            while True:
                client.send("t", b"%d" % queued)
                queued += 1
        sender = ThreadPoolExecutor(1)
        late = sender.submit(client.send, "t", "late", timeout_s=60)
        wait_until(client._lock.locked, 60, "the other thread sends")
        with pytest.raises(QueueFull, match="it was not this one's turn"):
            client.close()
        received = [daemon.recv(1 << 16) for _ in range(queued + 1)]
        assert late.result() is None
        assert received[-1].endswith(b"late")
        client.close()
        sender.shutdown()


def test_to_wait_for_ever(doors: Doors) -> None:
    """With an infinite timeout, `send` waits for room in a full queue."""
    doors.halt_intake()
    client = Client(doors.datagrams, timeout_s=math.inf)
    fill(client)
    waiting = threading.Thread(target=client.send, args=("orders", "last"))
    waiting.start()
    (pid,) = [w.pid for w in doors.bruce.status().workers if w.role == "ingest"]
    os.kill(pid, signal.SIGCONT)
    waiting.join(60)
    assert not waiting.is_alive()
    client.close()


@pytest.mark.parametrize("error", [BadMessage, TooLarge, NotPermitted, NobodyListens, QueueFull, Unconfirmed])
def test_every_error_is_a_client_error(error: Callable[[], Exception]) -> None:
    """One `except` is enough."""
    assert isinstance(error(), ClientError)
