"""The ways into a daemon, by datagram and by stream: none there, one that is not for us, one that is full."""

from __future__ import annotations

import contextlib
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bruce_client import (
    Client,
    NobodyListens,
    QueueFull,
    Unconfirmed,
    encode,
)
from tests.bruce_client.doors import Doors
from tests.daemon import ROOT, free_port

NOBODY = 65534


LARGE = 300_000


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


@pytest.mark.parametrize("tcp", [False, True])
def test_each_connection_is_closed_at_once(tmp_path: Path, tcp: bool) -> None:  # noqa: FBT001
    """One sentence, and no success, though the kernel may have taken the message."""
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
        listener.bind(("127.0.0.1", 0) if tcp else str(tmp_path / "stream"))
        listener.listen()

        def refuse() -> int:
            count = 0
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()
                    count += 1
            return count

        refused = pool.submit(refuse)
        client = Client(None, stream=listener.getsockname(), timeout_s=60)
        try:
            with pytest.raises(NobodyListens, match="ended the connection inside the message"):
                client.send("orders", "x")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
        assert refused.result() > 1


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
