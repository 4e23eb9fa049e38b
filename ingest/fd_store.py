"""The store of connections: the supervisor holds each one a second time, so that it outlives who reads it.

The stream worker sends a descriptor with its number as soon as it has accepted it, and the number alone when
the connection is over; what is sent is in a socket of the supervisor, whatever happens to the sender. A
successor is forked from the supervisor, and so has all of them. The supervisor reads no byte of a connection.
"""

from __future__ import annotations

import logging
import os
import resource
import socket

log = logging.getLogger("bruce.supervisor")

_NUMBER_BYTES = 4
DESCRIPTORS = 128
"""That a process of the daemon has beside connections, at most."""
_PATIENCE_S = 1
"""For the supervisor to make room, in seconds."""


class FdStore:
    """Both ends. Make it before forking."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inside.setblocking(False)
        self._outside.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE_S.to_bytes(8, "little") + bytes(8)
        )
        self._held: dict[int, int] = {}

    def fileno(self) -> int:
        """Readable when there is something to attend to."""
        return self._inside.fileno()

    def attend(self) -> None:
        """In the supervisor: take up what was sent. Before a successor is forked, too."""
        while True:
            try:
                data, found, _flags, _address = socket.recv_fds(self._inside, _NUMBER_BYTES, 1)
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("a connection is not held: %s", error.strerror)
                continue
            number = int.from_bytes(data, "little")
            if number in self._held:
                os.close(self._held.pop(number))
            # None came when this process has no more descriptors: that one dies with its reader.
            if found:
                self._held[number] = found[0]

    def take_over(self) -> dict[int, socket.socket]:
        """In a stream worker, once: the connections of the one before, by number."""
        held, self._held = self._held, {}
        return {number: socket.socket(fileno=fd) for number, fd in held.items()}

    def forget(self) -> None:
        """In any other process: hold none."""
        for connection in self.take_over().values():
            connection.close()

    def close(self) -> None:
        """Let go of both ends."""
        self.forget()
        self._inside.close()
        self._outside.close()

    def keep(self, number: int, connection: socket.socket) -> None:
        """In the stream worker: have a connection held; one that is not dies with this process."""
        try:
            socket.send_fds(self._outside, [number.to_bytes(_NUMBER_BYTES, "little")], [connection.fileno()])
        except OSError as error:
            log.warning("a connection is not held: %s", error.strerror)

    def drop(self, number: int) -> None:
        """In the stream worker: a connection is over."""
        try:
            self._outside.send(number.to_bytes(_NUMBER_BYTES, "little"))
        except OSError as error:
            log.warning("a connection is held for longer than it lasts: %s", error.strerror)


def descriptors() -> int:
    """How many this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_descriptors() -> None:
    """Allow this process, and those it forks, as many descriptors as it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
