"""The client against a real daemon: what it says is sent arrives, whatever becomes of the daemon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from bruce_client import (
    Client,
    NobodyListens,
    QueueFull,
)
from tests.bruce_client.doors import Doors
from tests.daemon import ROOT
from tools.waiting import wait_until


def test_it_needs_python_and_nothing_else() -> None:
    """A program that sends imports no library, ours among them, but the client itself."""
    code = (
        "import sys; before = set(sys.modules); import bruce_client;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['bruce_client']\n"


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
@pytest.mark.sample(one_of=2)
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
