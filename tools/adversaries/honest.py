"""An honest sender of streams, which counts, and whose messages the consumer knows as those of tools/load."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from bruce_client.message import encode
from tools.adversaries.villain import DONE, DUE, STOP, Words
from tools.payload import NO_KEY, blank_value

VALUE_BYTES = 120
A_CONNECTION = 5
"""Messages on each connection: the daemon must go on accepting new ones, too."""


def message(topic: str, sender: int, number: int, sent_ns: int) -> bytes:
    """A message like those of tools/load, without a key."""
    value = bytearray(blank_value(VALUE_BYTES))
    struct.pack_into("<IiQq", value, 0, sender, NO_KEY, number, sent_ns)
    struct.pack_into("<Q", value, len(value) - 8, number)
    return encode(topic.encode(), bytes(value), timestamp=sent_ns // 1_000_000)


def send_streams(path: Path, topic: str, sender: int, rate: int, seconds: float) -> Callable[[Words], None]:
    """On an open schedule: a message counts as sent when the kernel has taken all of it."""

    def run(words: Words) -> None:
        begun, wall = time.monotonic(), time.time_ns()
        stream: socket.socket | None = None
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            data = message(topic, sender, number, wall + number * 1_000_000_000 // rate)
            while True:
                words[DUE] = min(rate * seconds, (time.monotonic() - begun) * rate)
                if words[STOP]:
                    return
                try:
                    stream = stream or _connect(path)
                    stream.sendall(data)
                    break
                except OSError:
                    _close(stream)
                    stream = None
                    time.sleep(0.01)
            words[DONE] += 1
            if number % A_CONNECTION == A_CONNECTION - 1:
                _close(stream)
                stream = None
        _close(stream)
        words[DUE] = int(rate * seconds)

    return run


def _connect(path: Path) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(0.5)
        stream.connect(str(path))
    except OSError:
        stream.close()
        raise
    return stream


def _close(stream: socket.socket | None) -> None:
    """Close the connection, if there is one."""
    if stream:
        stream.close()
