"""A program that asks for answers: it sends to the acknowledgement socket, and collects replies."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from ingest.reply import Reply, Status, decode
from spool.format.wire import encode

Key = tuple[int, int, int]
"""Timestamp, size and crc32: what a reply names a message by."""


class Client:
    """One bound socket, and the answers it received."""

    def __init__(self, path: Path, address: str = "") -> None:
        """`address`: to bind to; by default an abstract one that the kernel chooses."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(60)
        self._path = str(path)
        self.sent: dict[Key, bytes] = {}
        self.told: list[Reply] = []

    def send(self, value: bytes, flags: int, *, topic: bytes = b"t", timestamp: int = 1, key: int = 0) -> Key:
        """Send one message; the key of its replies."""
        return self.send_raw(with_flags(encode(topic, value, timestamp=timestamp, partition_key=key), flags))

    def send_raw(self, datagram: bytes) -> Key:
        """Send a datagram as it is."""
        timestamp = 0
        if len(datagram) > 30:
            at = 16 + int.from_bytes(datagram[14:16], "big")
            timestamp = int.from_bytes(datagram[at : at + 8], "big", signed=True)
        key = timestamp, len(datagram), zlib.crc32(datagram)
        self.sent[key] = datagram
        self.again(datagram)
        return key

    def again(self, datagram: bytes) -> None:
        """Send a datagram, without expecting a reply to it by itself."""
        self.socket.sendto(datagram, self._path)

    def collect(self, enough: Callable[[Counter[tuple[Status, Key]]], bool], timeout_s: float = 60) -> None:
        """Read replies until there are enough of them; fails when it takes too long."""
        end = time.monotonic() + timeout_s
        self.socket.settimeout(0.1)
        while not enough(self.counted()):
            assert time.monotonic() < end, (
                f"{len(self.told)} replies to {len(self.sent)} messages: {self.told[-3:]}"
            )
            try:
                self.told.append(decode(self.socket.recv(64)))
            except TimeoutError:
                continue
        self.socket.settimeout(60)

    def collect_all(self, status: Status, timeout_s: float = 60) -> None:
        """Until each message has a reply of this status."""
        self.collect(
            lambda seen: {key for said, key in seen if said == status} >= self.sent.keys(), timeout_s
        )

    def drain(self) -> None:
        """Read what is there."""
        self.socket.setblocking(False)
        try:
            while True:
                self.told.append(decode(self.socket.recv(64)))
        except BlockingIOError:
            self.socket.settimeout(60)

    def counted(self) -> Counter[tuple[Status, Key]]:
        """How often each thing was said."""
        return Counter((Status(r.status), (r.timestamp, r.size, r.crc32)) for r in self.told)

    def said(self, status: Status) -> list[bytes]:
        """The datagrams, as they were sent, of which this was said, once for each time."""
        replies = (r for r in self.told if r.status == status)
        return [self.sent[r.timestamp, r.size, r.crc32] for r in replies]

    def close(self) -> None:
        """Be gone."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def with_flags(datagram: bytes, flags: int) -> bytes:
    """The same datagram with these flags."""
    return datagram[:8] + struct.pack(">h", flags) + datagram[10:]


def without_flags(datagrams: Iterable[bytes]) -> Counter[bytes]:
    """The datagrams as the log has them, and how often."""
    return Counter(with_flags(datagram, 0) for datagram in datagrams)
