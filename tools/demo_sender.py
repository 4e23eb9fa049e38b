"""The demo's programs: send at a steady rate, count what the socket took, write the count at SIGTERM.

python -m tools.demo_sender SOCKET COUNT_FILE RATE
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

from spool.format.wire import encode

TOPICS = (b"orders", b"clicks", b"metrics")
BURST_S = 0.02


class Sender:
    """One connection that survives its receiver."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self.sent = 0
        self.stopping = False

    def send(self, datagram: bytes) -> None:
        """Send until the socket takes it, or until the stop signal. Counts only messages that it took."""
        while not self.stopping:
            try:
                self._connected().send(datagram)
            except OSError:
                # The daemon is being restarted: its socket is closed, or not there yet.
                self._socket = None
                time.sleep(0.01)
            else:
                self.sent += 1
                return

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.connect(self._path)
        return self._socket


def message(number: int) -> bytes:
    """Messages of three kinds of topics, by turns; orders keep their order by customer."""
    topic = TOPICS[number % len(TOPICS)]
    body = f'{{"id": {number}, "text": "a message of some length, as they are"}}'.encode()
    now = time.time_ns() // 1_000_000
    return encode(topic, body, timestamp=now, partition_key=number % 97 if topic == b"orders" else None)


def main() -> None:
    """Send until SIGTERM."""
    path, count_file, rate = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    sender = Sender(path)

    def stop(_number: int, _frame: FrameType | None) -> None:
        sender.stopping = True

    signal.signal(signal.SIGTERM, stop)
    number, due = 0, time.monotonic()
    while not sender.stopping:
        for _ in range(int(rate * BURST_S)):
            sender.send(message(number))
            number += 1
        due = max(due + BURST_S, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    count_file.write_text(json.dumps({"sent": sender.sent}))


if __name__ == "__main__":
    main()
