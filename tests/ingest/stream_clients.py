"""A stream worker in this process, which a test can kill between two steps, and a store for its runs."""

from __future__ import annotations

import ctypes
import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from ingest.buffers.connection_buffer import read_connections
from ingest.buffers.connection_buffers import ConnectionBuffers, make_bells
from ingest.buffers.messages import new_messages
from ingest.sockets.holding import FdStore, allow_descriptors
from ingest.sockets.listening import listen_tcp, listen_unix
from ingest.streams.stream_worker import MOST_CONNECTIONS, StreamWorker
from spool.format.wire import check, reason_name
from spool.native.memory import Address
from spool.shared.state import Field, SharedState
from tests.daemon import free_port

LIMIT = 100_000
ROOM_BYTES = 1 << 20
"""Of the body of a frame."""
SPOOL = bytes(16)


class Killed(BaseException):
    """The process is gone, at this instant."""


class Kill:
    """Ends a process at the n-th step, before it or after it."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self._after = at, after

    def wrap(self, step: Any) -> Any:
        """A step that may be the last."""

        def call(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self._after:
                raise Killed
            found = step(*arguments, **more)
            if self.left == 0:
                raise Killed
            return found

        return call


class PromptStore(FdStore):
    """A store that is attended to at once."""

    def keep(self, number: int, connection: socket.socket) -> None:
        super().keep(number, connection)
        self.attend()

    def renumber(self, number: int, other: int) -> None:
        super().renumber(number, other)
        self.attend()

    def drop(self, number: int) -> None:
        super().drop(number)
        self.attend()


class Streams:
    """Listeners, buffers and connections as the supervisor has them, and a worker at a time."""

    def __init__(
        self,
        directory: Path,
        limit: int = LIMIT,
        *,
        room: int = ROOM_BYTES,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        allow_descriptors()
        self.path, self.buffers_path = directory / "stream", directory / "lines"
        self.bells, self.store = make_bells(), PromptStore()
        self.buffers = ConnectionBuffers(self.buffers_path, SPOOL, limit, self.bells, room=room)
        self.shared = SharedState(directory / "stream-page")
        self.listeners = [listen_unix(self.path), listen_tcp(free_port())]
        self._most = most
        self.worker = self._start()
        self._peers: list[socket.socket] = []
        self._messages = new_messages()
        self.stored: list[bytes] = []
        self.refused: Counter[str] = Counter()
        self.samples: list[bytes] = []
        self.uids: set[int] = set()

    def connect(self, *, tcp: bool = False) -> socket.socket:
        """A sender."""
        stream = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        stream.connect(self.listeners[1].getsockname() if tcp else str(self.path))
        self._peers.append(stream)
        return stream

    def step(self) -> None:
        """Let the worker do what there is to do."""
        self.worker._step(0)

    def take(self) -> int:
        """Store what is offered, as the ingest worker would; how many messages."""
        if not self.buffers.gather(1):
            return 0
        used = self.buffers.list_messages(self._messages)
        for message in self._messages[:used]:
            at, length = Address(int(message["at"])), int(message["length"])
            data = ctypes.string_at(at, length)
            reason = int(message["refused"] or check(at, length))
            self.uids.add(int(message["uid"]))
            if reason:
                self.refused[reason_name(reason)] += 1
                self.samples.append(data)
            else:
                self.stored.append(data)
        self.buffers.settle()
        return used

    def settle(self) -> None:
        """Step and take until nothing more happens."""
        quiet = 0
        while quiet < 2:
            self.step()
            quiet = 0 if self.take() or self.worker._is_behind or self.worker._paused else quiet + 1

    def succeed(self) -> None:
        """The worker is dead; the next one takes over."""
        dead = self.worker
        dead._poll.close()
        for connection in dead._connections.values():
            if connection.sock:
                connection.sock.close()
        while newcomer := dead._newcomers.next(crowded=False):
            newcomer.sock.close()
        self.store.attend()
        self.worker = self._start()

    def _start(self) -> StreamWorker:
        return StreamWorker(self.listeners, self.buffers, self.store, self.shared, most=self._most)

    def counted(self, name: str = "stream") -> tuple[int, dict[str, int], int]:
        """(connections accepted, those closed, by how, errors) of an input; how none ended is left out."""
        found = read_connections(self.shared.words[Field.CONNECTIONS :])[name]
        return found.accepted, {how: n for how, n in found.closed.items() if n}, found.errors

    def close(self) -> None:
        """Leave no descriptor."""
        self.succeed()
        for connection in list(self.worker._connections.values()):
            self.worker._disconnect(connection)
        self.worker._poll.close()
        for one in (*self.listeners, *self._peers):
            one.close()
        self.store.close()
        self.buffers.close()
        for bell in (self.bells.offered, self.bells.taken):
            os.close(bell)
