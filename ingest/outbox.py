"""Replies on their way to clients, none of whom is waited for.

A client's queue has room for few datagrams (net.unix.max_dgram_qlen, 10 on many hosts), and one commit can
be the answer to many messages. What finds no room waits here, in order, and is tried again: soon while the
client reads, and ever less often while it does not.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field

Address = str | bytes

MEMORY = 64 << 20
"""Of replies that clients have not read; about 800 bytes each, whoever they are for."""
MOST = 65_536
"""Replies that wait here, for all clients together."""
MOST_OF_ONE = 4096
GIVE_UP_S = 30.0
"""A client that has read nothing for so long gets none of what waits for it."""
_SOON_S, _SELDOM_S = 0.001, 0.25
_SO_SNDBUFFORCE = 32


@dataclass(slots=True)
class _Waiting:
    """What one client has had no room for."""

    read: float
    """When it last had room."""
    due: float
    pause: float = _SOON_S
    replies: deque[bytes] = field(default_factory=deque)


class Outbox:
    """The replies that go out through one socket."""

    def __init__(self, sender: socket.socket) -> None:
        self._sender = sender
        self._probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._clients: dict[Address, _Waiting] = {}
        self._waiting = 0
        self.sent = self.dropped = 0
        """Replies, since it was made."""
        try:
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, MEMORY)
        except PermissionError:
            # As much as the host lets us have.
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MEMORY)

    def __len__(self) -> int:
        return self._waiting

    def send(self, client: Address, reply: bytes) -> None:
        """Send a reply, behind those that wait for the same client."""
        waiting = self._clients.get(client)
        if waiting is None:
            if self._try(client, reply):
                return
            now = time.monotonic()
            waiting = self._clients[client] = _Waiting(now, now + _SOON_S)
        if len(waiting.replies) >= MOST_OF_ONE or self._waiting >= MOST:
            self.dropped += 1
            return
        waiting.replies.append(reply)
        self._waiting += 1

    def retry(self) -> None:
        """Try again where it is time."""
        now = time.monotonic()
        for client, waiting in list(self._clients.items()):
            if waiting.due > now:
                continue
            before = len(waiting.replies)
            while waiting.replies and self._try(client, waiting.replies[0]):
                waiting.replies.popleft()
            self._waiting -= before - len(waiting.replies)
            if len(waiting.replies) < before:
                waiting.read, waiting.pause = now, _SOON_S
            else:
                waiting.pause = min(2 * waiting.pause, _SELDOM_S)
            waiting.due = now + waiting.pause
            if not waiting.replies or now - waiting.read > GIVE_UP_S:
                self._forget(client)

    def due(self) -> float | None:
        """Seconds until there is something to try again; None when nothing waits."""
        if not self._clients:
            return None
        return max(0.0, min(waiting.due for waiting in self._clients.values()) - time.monotonic())

    def close(self) -> None:
        """Forget what waits."""
        self._probe.close()

    def _forget(self, client: Address) -> None:
        left = len(self._clients.pop(client).replies)
        self._waiting -= left
        self.dropped += left

    def _try(self, client: Address, reply: bytes) -> bool:
        """Send a reply, or drop it where there is nobody any more; False when there is no room."""
        try:
            # Refused when the client is connected to us: its queue has no limit, and would take from all.
            self._probe.connect(client)
            self._sender.sendto(reply, socket.MSG_DONTWAIT, client)
        except BlockingIOError:
            return False
        except OSError:
            self.dropped += 1
            return True
        self.sent += 1
        return True
