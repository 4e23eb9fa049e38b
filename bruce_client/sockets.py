"""Messages through sockets of the daemon: datagrams, and one message over a connection of its own.

Datagrams go through a socket that outlives the daemon it was connected to.
A datagram that the kernel took waits in the daemon's queue until it is read, and dies with the daemon's
socket. So what is unread is kept in mind here, and goes to the next daemon first. The kernel tells how much
that is before each datagram; that this one was taken then shows that the daemon lived, and so that what was
gone from the queue had been read. As a sender has at most SO_SNDBUF bytes in a queue, that is all the memory
it takes. A message is sent twice when a daemon reads and dies within moments.

A connection, to a UNIX stream socket or a TCP port, gets no answer, but for one byte before its end when the
daemon refuses what came: the number of the reason. The daemon reads the end of the stream only when the
message before it is in its log, and ends the connection then; killed before, it leaves bytes unread, and
the kernel tells that it did. So a connection that ends well is a message that is stored, and any other can be
sent again without doubling.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import math
import os
import socket
import struct
import termios
import time

from bruce_client.errors import NobodyListens, QueueFull, TooLarge, Unconfirmed, explain

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
"""Between two looks whether the daemon is back, or has read."""
_INT = struct.Struct("i")
_NOTHING = _INT.pack(0)
_OVERHEAD_BYTES = 256
"""The kernel counts more than this for each datagram beside its own bytes."""
_GONE = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTCONN)
"""No daemon has this socket, or none any more."""
_PASSING = (*_GONE, errno.EPIPE, errno.ENOBUFS, errno.ENOMEM)
"""With EPIPE the daemon is about to end: it takes nothing, and reads what is there."""
Address = str | tuple[str, int]
"""A path, or host and port."""
_MOST_RESETS = 3
"""A daemon that ends one connection after the other does so for a reason."""
_TOO_LONG, _REASONS = 22, 32
"""The reason that no other try helps against, and the bound of all."""
_UNCONNECTED = (errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN)
"""Errors of connect while the daemon restarts, or has too many connections waiting."""


class Deadline:
    """A moment on the monotonic clock, or never."""

    __slots__ = ("_end", "_pause_s")

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: from now on; infinity: never."""
        self._end = time.monotonic() + timeout_s
        self._pause_s = _FIRST_PAUSE_S

    def left_s(self) -> float | None:
        """As socket.settimeout takes it: None for ever, 0 does not wait."""
        return None if self._end == math.inf else max(0.0, self._end - time.monotonic())

    def pause(self) -> bool:
        """Wait a moment, longer each time; False, at once, when no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True


def unread_bytes(sock: socket.socket) -> int:
    """Bytes of the kernel's memory, more than those of the messages; 0 where the kernel does not tell.

    For a UNIX socket SIOCOUTQ (the same number as TIOCOUTQ) is what the sender's buffers hold, and they are
    freed when the reader has them; or when it dies.
    """
    try:
        return int(_INT.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, _NOTHING))[0])
    except OSError:
        return 0


class DatagramSender:
    """One path, and the socket that is connected to it. For one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sock: socket.socket | None = None
        self._place: tuple[int, ...] = ()
        self._unread: collections.deque[bytes] = collections.deque()
        self._unread_bytes = 0
        self._again: collections.deque[bytes] = collections.deque()
        """Messages that a daemon had not read when it died, to be sent before all others."""

    def send(self, datagram: bytes, deadline: Deadline) -> None:
        """Put it into the daemon's queue. Raises ClientError: it is not there."""
        self._hand_over_all(datagram, deadline)

    def flush(self, deadline: Deadline) -> None:
        """Return when a daemon has read everything. Raises Unconfirmed, and what `send` raises."""
        while self._again or self._unread:
            self._hand_over_all(None, deadline)
            try:
                if self._is_read():
                    self._forget(0)
                    return
            except OSError as error:
                self._judge(error, deadline)
            else:
                if not deadline.pause():
                    raise Unconfirmed(
                        f"{self._path} has messages that were not read in time: is bruce busy, or held?"
                    )

    def close(self) -> None:
        """Let go of the socket; what is in the daemon's queue stays there."""
        if self._sock:
            self._sock.close()
        self._sock = None

    def forget_all(self) -> None:
        """In a forked child: what the parent sent is the parent's to send again."""
        self.close()
        self._unread.clear()
        self._again.clear()
        self._unread_bytes = 0

    def _hand_over_all(self, datagram: bytes | None, deadline: Deadline) -> None:
        """Send unread messages again, and then this one. Raises ClientError."""
        while True:
            try:
                while self._again:
                    self._hand_over(self._again[0], deadline)
                    self._again.popleft()
                if datagram is not None:
                    self._hand_over(datagram, deadline)
            except OSError as error:
                self._judge(error, deadline)
            else:
                return

    def _hand_over(self, datagram: bytes, deadline: Deadline) -> None:
        """Raises OSError."""
        sock = self._sock or self._connect()
        unread = unread_bytes(sock)
        try:
            _send(sock, datagram, deadline)
        except BrokenPipeError:
            # It lives, and ends: what is gone from its queue was read.
            self._forget(unread)
            raise
        self._forget(unread)
        self._unread.append(datagram)
        self._unread_bytes += len(datagram) + _OVERHEAD_BYTES

    def _connect(self) -> socket.socket:
        """Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._place = self._look()
            sock.connect(self._path)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        return sock

    def _is_read(self) -> bool:
        """Whether the daemon we are connected to lives and has read everything. Raises OSError."""
        if self._sock is None or unread_bytes(self._sock):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(self._path)
        if self._look() == self._place:
            return True
        self._lose()
        return False

    def _look(self) -> tuple[int, ...]:
        """Which file is at the path: another daemon makes another."""
        found = os.stat(self._path)
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _forget(self, unread: int) -> None:
        """Keep what may be among that many bytes of the queue: the newest."""
        while self._unread_bytes > unread:
            self._unread_bytes -= len(self._unread.popleft()) + _OVERHEAD_BYTES

    def _lose(self) -> None:
        """The daemon is dead: what it had not read goes to the next one."""
        self.close()
        self._again.extendleft(reversed(self._unread))
        self._unread.clear()
        self._unread_bytes = 0

    def _judge(self, error: OSError, deadline: Deadline) -> None:
        """Wait, when the next try may do better. Raises ClientError when it may not, or no time is left."""
        if error.errno in _GONE:
            self._lose()
        if error.errno not in _PASSING or not deadline.pause():
            raise explain(error, self._path) from None


def _send(sock: socket.socket, datagram: bytes, deadline: Deadline) -> None:
    """Send on a socket that does not block, and wait for room where there is none. Raises OSError."""
    try:
        sock.send(datagram)
    except BlockingIOError:
        if deadline.left_s() == 0:
            raise
        sock.settimeout(deadline.left_s())
        try:
            sock.send(datagram)
        finally:
            sock.setblocking(False)


def deliver(message: bytes, address: Address, deadline: Deadline) -> None:
    """Return when the daemon has stored it. Raises ClientError; after Unconfirmed it may be."""
    resets = 0
    while True:
        with _connect(address, deadline) as connection:
            try:
                _write(connection, message, address, deadline)
                if _is_taken(connection, message, address, deadline):
                    return
            except (BrokenPipeError, ConnectionResetError):
                with contextlib.suppress(OSError):
                    _hear(connection.recv(1, socket.MSG_DONTWAIT), message, address)
        resets += 1
        if resets == _MOST_RESETS or not deadline.pause():
            raise NobodyListens(
                f"the daemon at {shown(address)} ended the connection inside the message, each time"
            )


def _hear(answer: bytes, message: bytes, address: Address) -> bool:
    """Whether there is an answer: then the daemon ends the connection. Raises TooLarge, NobodyListens."""
    if answer and answer[0] == _TOO_LONG:
        raise TooLarge(
            f"the daemon at {shown(address)} refuses a message of {len(message)} bytes: raise its "
            "[ingest] max_stream_message_bytes"
        )
    if answer and answer[0] >= _REASONS:
        raise NobodyListens(f"the program at {shown(address)} answers, and bruce does not")
    return bool(answer)


def shown(address: Address) -> str:
    """For a sentence."""
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _connect(address: Address, deadline: Deadline) -> socket.socket:
    """Raises ClientError."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Without waiting a connection by TCP would never be made.
            left = deadline.left_s()
            connection.settimeout(left if isinstance(address, str) or left is None else max(left, 0.1))
            connection.connect(address)
        except OSError as error:
            connection.close()
            if error.errno not in _UNCONNECTED or not deadline.pause():
                raise explain(error, shown(address)) from None
        else:
            return connection


def _write(connection: socket.socket, message: bytes, address: Address, deadline: Deadline) -> None:
    """Raises QueueFull; OSError when the daemon ended the connection."""
    connection.settimeout(deadline.left_s())
    try:
        connection.sendall(message)
    except (BlockingIOError, TimeoutError):
        raise QueueFull(f"the daemon at {shown(address)} did not read the message in time") from None
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        # By TCP the kernel may take the message, and hear of the connection's end then.
        raise ConnectionResetError(error.errno, error.strerror) from None


def _is_taken(connection: socket.socket, message: bytes, address: Address, deadline: Deadline) -> bool:
    """Whether the daemon read everything, ConnectionResetError if not. Raises Unconfirmed, TooLarge."""
    connection.settimeout(deadline.left_s())
    try:
        if _hear(connection.recv(1), message, address):
            return False
    except (BlockingIOError, TimeoutError):
        raise Unconfirmed(
            f"{shown(address)} has the message and has not stored it in time: is bruce busy, or held?"
        ) from None
    # In this order: what is freed unread at the end of a daemon is an error of ours before.
    unread = 0 if isinstance(address, tuple) else unread_bytes(connection)
    failed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failed:
        raise ConnectionResetError(failed, os.strerror(failed))
    return not unread
