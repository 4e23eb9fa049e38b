"""Messages as datagrams, through a socket that outlives the daemon it was connected to.

A datagram that the kernel took stands in the daemon's queue until it is read, and dies with the daemon's
socket. So what is unread is kept in mind here, and goes to the next daemon first. The kernel tells how much
that is before each datagram; that this one was taken then shows that the daemon lived, and so that what was
gone from the queue had been read. As a sender has at most SO_SNDBUF bytes in a queue, that is all the memory
it takes. A message is sent twice when a daemon reads and dies within moments.
"""

from __future__ import annotations

import collections
import errno
import os
import socket

from bruce_client.deadline import Deadline
from bruce_client.errors import Unconfirmed, explain
from bruce_client.unread import unread_bytes

_OVERHEAD_BYTES = 256
"""The kernel counts more than this for each datagram beside its own bytes."""
_GONE = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTCONN)
"""No daemon has this socket, or none any more."""
_PASSING = (*_GONE, errno.EPIPE, errno.ENOBUFS, errno.ENOMEM)
"""With EPIPE the daemon is about to end: it takes nothing, and reads what is there."""


class DatagramSender:
    """One path, and the socket that is connected to it. For one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sock: socket.socket | None = None
        self._place: tuple[int, ...] = ()
        self._unread: collections.deque[bytes] = collections.deque()
        self._unread_bytes = 0
        self._again: collections.deque[bytes] = collections.deque()
        """What a daemon had not read when it died, to be sent before anything else."""

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
                        f"{self._path} has messages that nobody has read in time: is bruce busy, or held?"
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
        """What has to go again, and then this one. Raises ClientError."""
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
