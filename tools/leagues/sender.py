"""The programs that send: each message until the peer has taken it, in order, at a rate.

A message counts as accepted when the call that hands it over succeeds: a datagram that the socket took, a
request that was answered with success. While a peer is away, or does not take the message, the sender tries
that message again. The value is text, so that syslog daemons carry it, and names its number twice.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from spool.format.wire import encode

DIGITS = 12
TIMEOUT_S = 1.0
"""Of one send: how long a blocked sender does not see that it may end."""
ANSWER_S = 10.0
"""Of a request: one that is given up and sent again may be doubled."""
PAUSE_S = 0.01
LUMP_S = 0.02
JOIN_S = 30.0


def value_of(number: int, size: int) -> bytes:
    """The message of this number: its digits, a fill, its digits."""
    digits = b"%0*d" % (DIGITS, number)
    return digits + b" " + b"x" * (size - 2 * DIGITS - 2) + b" " + digits


class Channel(Protocol):
    """A connection to a peer."""

    batch: int
    """Messages of one send."""

    def send(self, topic: str, numbers: Sequence[int], size: int) -> None:
        """Hand the messages over. Raises OSError when the peer did not take them."""
        ...

    def close(self) -> None: ...


class Datagrams:
    """A UNIX datagram socket."""

    batch = 1

    def __init__(self, path: Path, pack: Callable[[str, bytes], bytes]) -> None:
        """`pack`: the datagram of a topic and a value. Raises OSError when there is no receiver."""
        self._pack = pack
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def send(self, topic: str, numbers: Sequence[int], size: int) -> None:
        for number in numbers:
            self._socket.send(self._pack(topic, value_of(number, size)))

    def close(self) -> None:
        self._socket.close()


def as_bruce(topic: str, value: bytes) -> bytes:
    """A datagram for bruce, for any partition."""
    return encode(topic.encode(), value)


def as_syslog(topic: str, value: bytes) -> bytes:
    """A line of syslog, whose program is the topic."""
    return b"<13>Nov  1 12:00:00 %s: %s" % (topic.encode(), value)


class Requests:
    """OTLP by HTTP; each request has the log records of some messages."""

    batch = 100

    def __init__(self, ports: Mapping[str, int]) -> None:
        """`ports`: of the receiver of each topic."""
        self._open = {
            topic: http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
            for topic, port in ports.items()
        }

    def send(self, topic: str, numbers: Sequence[int], size: int) -> None:
        records = [{"body": {"bytesValue": _base64(value_of(number, size))}} for number in numbers]
        body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
        try:
            connection = self._open[topic]
            connection.request("POST", "/v1/logs", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from None
        if answer.status != http.client.OK:
            raise OSError(f"answered with {answer.status}")

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Sender(threading.Thread):
    """Sends messages to one topic until all are accepted or it is stopped."""

    def __init__(
        self, connect: Callable[[], Channel], topic: str, numbers: range, size: int, rate: int
    ) -> None:
        """`size`: bytes of a value. `rate`: messages a second."""
        super().__init__(name="sender", daemon=True)
        self.accepted = 0
        self._connect, self._topic, self._numbers = connect, topic, numbers
        self._size, self._rate = size, rate
        self._stopped = threading.Event()

    def run(self) -> None:
        channel: Channel | None = None
        begun = time.monotonic()
        while not self._stopped.is_set() and self.accepted < len(self._numbers):
            if self.accepted >= (time.monotonic() - begun) * self._rate:
                time.sleep(LUMP_S)
                continue
            try:
                channel = channel or self._connect()
                chosen = self._numbers[self.accepted : self.accepted + channel.batch]
                channel.send(self._topic, chosen, self._size)
            except OSError:
                if channel:
                    channel.close()
                channel = None
                self._stopped.wait(PAUSE_S)
            else:
                self.accepted += len(chosen)
        if channel:
            channel.close()

    def finish(self, timeout_s: float) -> None:
        """Wait until all are accepted; after the timeout, end it."""
        self.join(timeout_s)
        self._stopped.set()
        self.join(JOIN_S)
