"""Connections that do nothing, or almost nothing, so that no slot is left for others."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spool.format.wire import MAX_BATCH, encode, encode_batch
from tools.adversaries.attack import Attack, Settings
from tools.adversaries.honest import connect_stream
from tools.adversaries.villain import DONE, NOBODY, OTHER, REFUSED, STOP, Villain, Words

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_SPOOL = {"segment_bytes": 4 << 20}
STREAMS: Settings = {"ingest": {"stream_socket": "STREAM", "tcp_port": 0}, "spool": _SPOOL}
"""The arena puts its own path there."""
LATE_S = 75.0
"""Of a phase in which messages become too slow: ingest.streams.users ends them after a minute."""
_LARGEST = 16 << 20
_FORBIDDEN = encode(b"honest-0", b"not permitted")
"""A message that others wait for neither on disk nor in Kafka."""
_LINGER = struct.pack("ii", 1, 0)

Act = Callable[[Words, list[socket.socket]], None]


class StreamAttack(Attack):
    """Many connections of one user; honest senders of streams are beside it, by TCP, too."""

    settings: ClassVar[Settings] = STREAMS
    connections: ClassVar[int] = 5_000
    pause_s: ClassVar[float] = 0.05
    """Between two rounds over those that are held; without one the attacker keeps a processor busy."""
    uids: ClassVar[tuple[int, ...]] = (NOBODY,)

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        for uid in self.uids:
            run = self._hold(arena.stream, self.connections // len(self.uids))
            arena.villains.append(stack.enter_context(Villain(run, uid)))

    def first(self, stream: socket.socket) -> None:
        """Send the first bytes on a new connection."""

    def again(self, streams: list[socket.socket]) -> None:
        """Take one more round over the held connections."""

    def _hold(self, path: Path, most: int) -> Callable[[Words], None]:
        def run(words: Words) -> None:
            held: list[socket.socket] = []
            while not words[STOP]:
                if len(held) < most:
                    _open(path, held, words, self.first)
                else:
                    self.again(held)
                    held = [stream for stream in held if _lives(stream)]
                    if self.pause_s:
                        time.sleep(self.pause_s)

        return run


def _open(
    path: Path, held: list[socket.socket], words: Words, first: Callable[[socket.socket], None]
) -> None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(0.2)
        stream.connect(str(path))
        stream.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            first(stream)
    except OSError:
        words[REFUSED] += 1
        stream.close()
        time.sleep(0.01)
        return
    words[DONE] += 1
    held.append(stream)


def _lives(stream: socket.socket) -> bool:
    """Whether the other end has not closed it; if it has, close it here, too."""
    try:
        ended = stream.recv(4096, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return True
    except OSError:
        ended = True
    if ended:
        stream.close()
    return not ended


class IdleConnections(StreamAttack):
    """5,000 connections that never send a byte: an honest stream is taken as soon as without them."""

    name = "idle-connections"


class BusyConnections(StreamAttack):
    """3,900 connections that send all the time: an honest stream waits no longer than for 4 that do.

    Each sends as many messages as a connection buffer holds. [access] forbids them, so that others wait
    neither for disk nor for Kafka.
    """

    name = "busy-connections"
    pause_s = 0.0
    connections = 3_900
    _data = _FORBIDDEN * 200

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Send as much, as far as the daemon takes it, on few connections."""
        arena.villains.append(stack.enter_context(Villain(self._hold(arena.stream, 4), NOBODY)))

    def first(self, stream: socket.socket) -> None:
        # Enough for one more piece, or what waits in so many sockets would fill the host's memory.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(self._data))

    def again(self, streams: list[socket.socket]) -> None:
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.send(self._data, socket.MSG_DONTWAIT)


class ManyUsers(StreamAttack):
    """The same, of three users: the slots left for others may not depend on one user alone."""

    name = "idle-of-three"
    uids = (NOBODY, OTHER, 65_531)


class LateMessages(StreamAttack):
    """Messages that do not come to their end, until the daemon gives them up."""

    least_s = LATE_S

    def judge(self, arena: Arena) -> None:
        """Check that the time limit was reached."""
        if not arena.discarded("too_slow"):
            arena.report("no message was too slow: nothing was tried")


class UnfinishedMessages(LateMessages):
    """Messages of 20 kB to 2 MB, and batches, without a last byte: memory of the streams is others', too.

    Those of the honest are larger than what each connection has without asking.
    """

    name = "unfinished-messages"
    connections = 1_000
    stream_bytes = 50_000
    _data = (
        *(encode(b"flood", bytes(size))[:-1] for size in (2_000_000, 200_000, 20_000)),
        encode_batch([encode(b"flood", bytes(200))] * MAX_BATCH)[:-1],
    )

    def __init__(self) -> None:
        self._left: dict[socket.socket, tuple[bytes, int]] = {}

    def again(self, streams: list[socket.socket]) -> None:
        for stream in streams:
            data, at = self._left.get(stream) or (self._data[len(self._left) % len(self._data)], 0)
            with contextlib.suppress(OSError):
                self._left[stream] = data, at + stream.send(data[at : at + (1 << 16)])


class SlowLoris(LateMessages):
    """A byte of a batch on each of 2,000 connections, now and then: what is unfinished has a time limit."""

    name = "slow-loris"
    connections = 2_000
    _data = encode_batch([encode(b"flood", b"")] * MAX_BATCH)

    def __init__(self) -> None:
        self._at = 0

    def again(self, streams: list[socket.socket]) -> None:
        self._at += 1
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.send(self._data[self._at : self._at + 1])
        time.sleep(0.5)

    def first(self, stream: socket.socket) -> None:
        stream.send(self._data[:1])


class StreamHeaders(Attack):
    """First bytes that are no message's, on UNIX streams and TCP, and now and then a message of 16 MiB.

    Sizes less than a head's, negative, or beyond the limit; TLS; HTTP. The daemon ends each such connection,
    and takes the large message.
    """

    name = "stream-headers"
    settings: ClassVar[Settings] = {
        "ingest": {"stream_socket": "STREAM", "tcp_port": 0, "max_stream_message_bytes": _LARGEST},
        "spool": {"segment_bytes": 64 << 20},
    }
    _wrong: ClassVar[tuple[bytes, ...]] = (
        *(struct.pack(">i", size) for size in (0, 1, 2, 3, -1, -(1 << 31), (1 << 31) - 1, _LARGEST + 5)),
        bytes.fromhex("160301020001 0001fc 0303") + bytes(32),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    _large = encode(b"flood", bytes(_LARGEST - 35))
    _LARGE_EVERY, _PAUSE_S, _ENDED_S = 301, 0.005, 2.0

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Open as many connections, for a message each, and as many of them for large ones."""
        self._start(arena, stack, [arena.good_message(150)], 0.0)

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._start(arena, stack, self._wrong, self._ENDED_S)

    def _start(self, arena: Arena, stack: ExitStack, what: Sequence[bytes], ended_s: float) -> None:
        """`ended_s`: within which the daemon must end a connection, but for large messages; 0 for no time."""

        def run(words: Words) -> None:
            while not words[STOP]:
                number = int(words[DONE])
                door = arena.tcp_port if number % 2 else arena.stream
                large = number % self._LARGE_EVERY == 0
                data = self._large if large else what[number // 2 % len(what)]
                if _is_left_open(door, data, 0.0 if large else ended_s):
                    words[REFUSED] += 1
                words[DONE] += 1
                time.sleep(self._PAUSE_S)

        arena.villains.append(stack.enter_context(Villain(run)))

    def judge(self, arena: Arena) -> None:
        """Check that no such connection was left open, and that the large messages were taken."""
        if left := sum(int(villain.words[REFUSED]) for villain in arena.villains):
            arena.report(f"{left} connections were not ended behind bytes that are no message's")
        if not arena.discarded("too_large"):
            arena.report("no message of 16 MiB was taken: nothing was tried")


def _is_left_open(door: Path | int, data: bytes, ended_s: float) -> bool:
    """Send bytes on a new connection; whether it is left open for `ended_s`, if that is not 0."""
    try:
        with connect_stream(door, ended_s or 10.0) as stream:
            stream.sendall(data)
            while ended_s and stream.recv(4096):
                pass
    except TimeoutError:
        return ended_s > 0
    except OSError:
        pass
    return False


class TcpHalfOpen(Attack):
    """TCP connections whose peer vanishes, or resets: others wait no longer than beside complete ones.

    The control connects, sends a message and closes, as fast as it can.
    """

    name = "tcp-half-open"
    settings: ClassVar[Settings] = STREAMS
    _half = encode(b"flood", bytes(10_000))[:5_000]

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Open as many connections, as far as they are accepted, and close each after a message."""
        arena.villains.append(stack.enter_context(Villain(_come_and_go(arena.tcp_port, _FORBIDDEN, _close))))

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        held: list[socket.socket] = []

        def leave(stream: socket.socket, number: int) -> None:
            if number % 2:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                stream.close()
            elif len(held) < 5_000:  # noqa: PLR2004  (more than bruce keeps)
                held.append(stream)
            else:
                stream.close()

        arena.villains.append(stack.enter_context(Villain(_come_and_go(arena.tcp_port, self._half, leave))))


class ConnectionChurn(Attack):
    """Connections as fast as one can open them, a message on each: others wait no longer than for few.

    The control sends about as many of the same messages on 8 connections, and is as busy.
    """

    name = "connection-churn"
    settings: ClassVar[Settings] = STREAMS
    CONTROL_RATE: ClassVar[int] = 20_000
    """A second: two processes of Python open so many connections on two processors."""

    def door(self, arena: Arena) -> Path | int:
        """The path or port at which the attackers connect."""
        return arena.stream

    def control(self, arena: Arena, stack: ExitStack) -> None:
        self._start(arena, stack, _stay(self.door(arena), 4, self.CONTROL_RATE // 2))

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._start(arena, stack, _come_and_go(self.door(arena), _FORBIDDEN, _close, pause_s=0.0))

    def _start(self, arena: Arena, stack: ExitStack, run: Callable[[Words], None]) -> None:
        for _ in range(2):
            arena.villains.append(stack.enter_context(Villain(run)))


class TcpChurn(ConnectionChurn):
    """The same by TCP, where most attackers have closed before bruce can ask for their user."""

    name = "tcp-churn"

    def door(self, arena: Arena) -> Path | int:
        return arena.tcp_port


def _close(stream: socket.socket, _number: int) -> None:
    stream.close()


def _stay(door: Path | int, most: int, rate: int) -> Callable[[Words], None]:
    """Send so many messages a second in all, by turns on a few connections, as far as they are taken.

    It spins between them, as one does that connects as fast as it can: a busy processor makes all wait.
    """

    def run(words: Words) -> None:
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(connect_stream(door, 10.0)) for _ in range(most)]
            begun = time.monotonic()
            while not words[STOP]:
                for stream in held:
                    stream.sendall(_FORBIDDEN)
                    words[DONE] += 1
                while time.monotonic() < begun + int(words[DONE]) / rate and not words[STOP]:
                    pass

    return run


def _come_and_go(
    door: Path | int, data: bytes, leave: Callable[[socket.socket, int], None], *, pause_s: float = 0.01
) -> Callable[[Words], None]:
    """Connect again and again, and `leave` each connection, with its number, behind `data`.

    `pause_s`: behind a connection that is refused.
    """

    def run(words: Words) -> None:
        while not words[STOP]:
            try:
                stream = connect_stream(door, 0.2)
                stream.send(data)
            except OSError:
                words[REFUSED] += 1
                time.sleep(pause_s)
                continue
            words[DONE] += 1
            leave(stream, words[DONE])

    return run
