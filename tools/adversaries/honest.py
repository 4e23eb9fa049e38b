"""Honest senders of streams, and of messages with replies, which count; the consumer knows their messages."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from bruce_client.message import encode
from ingest.reply import REPLY_BYTES, WHEN_DELIVERED, WHEN_SYNCED
from tools.adversaries.villain import DONE, DUE, STOP, Words
from tools.payload import NO_KEY, blank_value

VALUE_BYTES = 120
A_CONNECTION = 5
"""Messages on each connection: the daemon must go on accepting new ones, too."""
KEPT = 100
"""Connections that an honest sender keeps open, as programs with many workers do."""


def message(topic: str, sender: int, number: int, sent_ns: int, size: int = VALUE_BYTES) -> bytes:
    """A message like those of tools/load, without a key. `size`: bytes of its value."""
    value = bytearray(blank_value(size))
    struct.pack_into("<IiQq", value, 0, sender, NO_KEY, number, sent_ns)
    struct.pack_into("<Q", value, len(value) - 8, number)
    return encode(topic.encode(), bytes(value), timestamp=sent_ns // 1_000_000)


def send_streams(
    door: Path | int, topic: str, sender: int, rate: int, seconds: float, size: int
) -> Callable[[Words], None]:
    """On an open schedule: a message counts as sent when the kernel has taken all of it.

    `door`: the path of a stream socket, or a TCP port of this host. `size`: bytes of a value.
    """

    def run(words: Words) -> None:
        begun, wall = time.monotonic(), time.time_ns()
        pool = _Pool(door)
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            data = message(topic, sender, number, wall + number * 1_000_000_000 // rate, size)
            new = number % A_CONNECTION == 0
            while not pool.takes(data, new=new):
                words[DUE] = min(rate * seconds, (time.monotonic() - begun) * rate)
                if words[STOP]:
                    return
                new = True
                time.sleep(0.01)
            words[DONE] += 1
        pool.close()
        words[DUE] = int(rate * seconds)

    return run


class _Pool:
    """The connections of an honest sender, of which it uses the newest."""

    def __init__(self, door: Path | int) -> None:
        self._door, self._streams = door, deque[socket.socket]()

    def takes(self, data: bytes, *, new: bool) -> bool:
        """Send, on another connection if `new`; whether the kernel has taken all of it."""
        try:
            if new:
                self._streams.append(connect_stream(self._door, 0.5))
        except OSError:
            return False
        if len(self._streams) > KEPT:
            self._streams.popleft().close()
        try:
            self._streams[-1].sendall(data)
        except OSError:
            self._streams.pop().close()
            return False
        return True

    def close(self) -> None:
        """Close all of them."""
        for stream in self._streams:
            stream.close()


def send_asking(path: Path, topic: str, sender: int, rate: int, seconds: float) -> Callable[[Words], None]:
    """The same to `ack_socket`, with both replies wanted, and read."""

    def run(words: Words) -> None:
        begun, wall = time.monotonic(), time.time_ns()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind("")
            for number in range(int(rate * seconds)):
                time.sleep(max(0.0, begun + number / rate - time.monotonic()))
                data = with_replies(message(topic, sender, number, wall + number * 1_000_000_000 // rate))
                while not _is_taken(client, data, path):
                    words[DUE] = min(rate * seconds, (time.monotonic() - begun) * rate)
                    if words[STOP]:
                        return
                words[DONE] += 1
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while client.recv(REPLY_BYTES):
                        pass
        words[DUE] = int(rate * seconds)

    return run


def with_replies(datagram: bytes) -> bytes:
    """The same message, of which its sender wants to hear when it is synced, and when it is delivered."""
    return datagram[:8] + (WHEN_SYNCED | WHEN_DELIVERED).to_bytes(2, "big") + datagram[10:]


def _is_taken(client: socket.socket, data: bytes, path: Path) -> bool:
    client.settimeout(0.5)
    try:
        client.sendto(data, str(path))
    except OSError:
        time.sleep(0.01)
        return False
    return True


def connect_stream(door: Path | int, timeout_s: float) -> socket.socket:
    """A connection to a stream socket's path, or to a TCP port of this host. Raises OSError."""
    family = socket.AF_INET if isinstance(door, int) else socket.AF_UNIX
    stream = socket.socket(family, socket.SOCK_STREAM)
    try:
        stream.settimeout(timeout_s)
        stream.connect(("127.0.0.1", door) if isinstance(door, int) else str(door))
    except OSError:
        stream.close()
        raise
    return stream
