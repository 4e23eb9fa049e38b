"""One message over a connection of its own, to a UNIX stream socket or a TCP port.

The daemon answers nothing. But it reads the end of the stream only when the message before that is in its
log, and ends the connection then; killed before, it leaves bytes unread, and the kernel tells that it did.
So a connection that ends well is a message that is stored, and any other can be sent again without doubling.
"""

from __future__ import annotations

import errno
import os
import socket

from bruce_client.deadline import Deadline
from bruce_client.errors import NobodyListens, QueueFull, Unconfirmed, explain
from bruce_client.unread import unread_bytes

Address = str | tuple[str, int]
"""A path, or host and port."""
_MOST_RESETS = 3
"""A daemon that ends one connection after the other does so for a reason."""
_PASSING = (errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN)
"""What connect says while the daemon restarts, or has more connections waiting than it may."""


def deliver(message: bytes, address: Address, deadline: Deadline) -> None:
    """Return when the daemon has stored it. Raises ClientError; after Unconfirmed it may be."""
    resets = 0
    while True:
        with _connect(address, deadline) as connection:
            try:
                _write(connection, message, address, deadline)
                if _is_taken(connection, address, deadline):
                    return
            except (BrokenPipeError, ConnectionResetError):
                pass
        resets += 1
        if resets == _MOST_RESETS or not deadline.pause():
            raise NobodyListens(
                f"the daemon at {shown(address)} ended the connection inside the message: it died, or "
                f"{len(message)} bytes are more than its [ingest] max_stream_message_bytes"
            )


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
            if error.errno not in _PASSING or not deadline.pause():
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
    connection.shutdown(socket.SHUT_WR)


def _is_taken(connection: socket.socket, address: Address, deadline: Deadline) -> bool:
    """Whether the daemon read everything. Raises Unconfirmed; ConnectionResetError when it did not."""
    connection.settimeout(deadline.left_s())
    try:
        if connection.recv(1):
            raise NobodyListens(f"what listens at {shown(address)} answers: that is not bruce")
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
