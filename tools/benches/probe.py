"""The time of the first intake, measured from outside: a sender whose full queue moves again."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from spool.format.wire import encode
from tools.benches.bench import TOPIC
from tools.benches.machine import QUEUE_LENGTH
from tools.waiting import TookTooLong

PAUSE_S = 0.0001
DATAGRAM = encode(TOPIC.encode(), b"probe")


def await_intake(path: Path, timeout_s: float) -> float:
    """The monotonic time at which a process reads the socket at `path`. Raises TookTooLong.

    It is read when a sender that found the queue full can send again, or when more was sent than any queue
    holds.
    """
    end, most = time.monotonic() + timeout_s, int(QUEUE_LENGTH.read_text()) + 1
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(str(path))
                sender.setblocking(False)
                return _await_room(sender, most, end)
            except (ConnectionError, FileNotFoundError, BrokenPipeError):
                time.sleep(PAUSE_S)
    raise TookTooLong(f"no process read {path} for {timeout_s:.0f} s")


def _await_room(sender: socket.socket, most: int, end: float) -> float:
    sent, full = 0, False
    while time.monotonic() < end:
        try:
            sender.send(DATAGRAM)
        except BlockingIOError:
            full = True
            time.sleep(PAUSE_S)
            continue
        sent += 1
        if full or sent > most:
            return time.monotonic()
    raise TookTooLong("the queue of the socket stayed full")
