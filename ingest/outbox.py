"""The outbox of a datagram socket: replies that their clients have had no room for.

Replies wait in it, and its process waits for no client. A client's queue has room for few datagrams
(net.unix.max_dgram_qlen, 10 on many hosts), and one commit can be the answer to many messages. A reply
without room waits in order, and is tried again: soon while the client reads, and ever less often while it
does not. It goes to a socket of the user who sent the message alone.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections import deque
from dataclasses import dataclass, field

from spool.storage.disk import locate

Client = str | bytes
"""The address of its socket: a path, or abstract."""
MEMORY = 64 << 20
"""Of replies that clients have not read; about 800 bytes each, for all clients together."""
MOST_REPLIES = 65_536
"""Replies that wait here, for all clients together; beyond that the user with most loses one."""
MOST_REPLIES_OF_ONE = 4096
UNREAD_S = 30.0
"""A client that has read nothing for so long gets none of what waits for it."""
_SOON_S, _SELDOM_S = 0.001, 0.25
_SO_SNDBUFFORCE = 32


@dataclass(slots=True)
class _Waiting:
    """Replies that one client has had no room for."""

    read: float
    """When it last had room."""
    due: float
    user: int
    """The uid that it belongs to."""
    pause: float = _SOON_S
    replies: deque[bytes] = field(default_factory=deque)


class Outbox:
    """The replies that go out through one socket."""

    def __init__(self, sender: socket.socket) -> None:
        self._sender = sender
        self._probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._clients: dict[tuple[Client, int], _Waiting] = {}
        """By address and user."""
        self._waiting = 0
        self._of: dict[int, dict[tuple[Client, int], None]] = {}
        """Clients by user."""
        self._count: dict[int, int] = {}
        """Replies that wait, by user."""
        self.sent = self.dropped = 0
        """Replies, since it was made."""
        try:
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, MEMORY)
        except PermissionError:
            # As much as the host lets us have.
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MEMORY)

    def __len__(self) -> int:
        return self._waiting

    def send(self, client: Client, reply: bytes, user: int) -> None:
        """Send a reply to a client of a user, behind those that wait for the same client."""
        key = client, user
        waiting = self._clients.get(key)
        if waiting is None:
            if self._try(*key, reply):
                return
            now = time.monotonic()
            waiting = self._clients[key] = _Waiting(now, now + _SOON_S, user)
            self._of.setdefault(user, {})[key] = None
        if len(waiting.replies) >= MOST_REPLIES_OF_ONE:
            self.dropped += 1
            return
        waiting.replies.append(reply)
        self._add(waiting.user, 1)
        if self._waiting > MOST_REPLIES:
            self._give_up()

    def retry(self) -> None:
        """Try again where it is time."""
        now = time.monotonic()
        for client, waiting in list(self._clients.items()):
            if waiting.due > now:
                continue
            before = len(waiting.replies)
            while waiting.replies and self._try(*client, waiting.replies[0]):
                waiting.replies.popleft()
            self._add(waiting.user, len(waiting.replies) - before)
            if len(waiting.replies) < before:
                waiting.read, waiting.pause = now, _SOON_S
            else:
                waiting.pause = min(2 * waiting.pause, _SELDOM_S)
            waiting.due = now + waiting.pause
            if not waiting.replies or now - waiting.read > UNREAD_S:
                self._forget(client)

    def due(self) -> float | None:
        """Seconds until there is something to try again; None when nothing waits."""
        if not self._clients:
            return None
        return max(0.0, min(waiting.due for waiting in self._clients.values()) - time.monotonic())

    def close(self) -> None:
        """Forget what waits."""
        self._probe.close()

    def _forget(self, client: tuple[Client, int]) -> None:
        waiting = self._clients.pop(client)
        left = len(waiting.replies)
        self._add(waiting.user, -left)
        self.dropped += left
        del self._of[waiting.user][client]
        if not self._of[waiting.user]:
            del self._of[waiting.user], self._count[waiting.user]

    def _add(self, user: int, more: int) -> None:
        self._waiting += more
        self._count[user] = self._count.get(user, 0) + more

    def _give_up(self) -> None:
        """Drop the newest reply to a client of the user with most."""
        most = max(self._count, key=self._count.__getitem__)
        client = next(iter(self._of[most]))
        waiting = self._clients[client]
        waiting.replies.pop()
        self._add(most, -1)
        self.dropped += 1
        if not waiting.replies:
            self._forget(client)

    def _try(self, client: Client, user: int, reply: bytes) -> bool:
        """Send a reply, or drop it when the client is gone; False when there is no room."""
        fd = -1
        try:
            if isinstance(client, str):
                # The kernel tells the path that a socket was bound to: something else may be there by now.
                fd = locate(client)
                _demand_owner(fd, user)
                client = f"/proc/self/fd/{fd}"
            # Refused when the client is connected to us: its queue has no limit, and would take from all.
            self._probe.connect(client)
            self._sender.sendto(reply, socket.MSG_DONTWAIT, client)
        except BlockingIOError:
            return False
        except OSError:
            self.dropped += 1
            return True
        finally:
            if fd >= 0:
                os.close(fd)
        self.sent += 1
        return True


def _demand_owner(fd: int, user: int) -> None:
    """Raise PermissionError for what is no socket of this user."""
    found = os.fstat(fd)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != user:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
