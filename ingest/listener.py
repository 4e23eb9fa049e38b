"""Sockets that stream connections come to: UNIX at a path, TCP on loopback.

One that is to go is told to `refuse` first: who waits at it is accepted still. Whoever has accepted them all
says so by `finish`, which everybody who has the socket can see (`is_finished`), whoever ends in between.
"""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
from contextlib import suppress
from pathlib import Path

from ingest.burst import SENDER_UNKNOWN
from ingest.datagram import EVERYBODY, bind, make_folder, make_way
from ingest.errors import BadSocket, NoDescriptors
from ingest.line import TCP, UNIX

BACKLOG = 4096
"""Connections that wait to be accepted; the kernel takes fewer where net.core.somaxconn is lower."""
LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("3I")
_PASSING = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH)
"""What accept says when it is the connection that failed, or there is none."""
_SO_ATTACH_FILTER = 26
_DROP = struct.Struct("HBBI").pack(0x06, 0, 0, 0)
"""A classic BPF program of one instruction: return 0, which is none of the packet."""


def listen_unix(path: Path, mode: int = EVERYBODY, group: str | None = None) -> socket.socket:
    """A listening UNIX stream socket at `path`. One left behind is taken over. Raises BadSocket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        make_folder(path.parent)
        make_way(path)
        bind(listener, path, mode, group)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BadSocket(f"cannot make the stream socket {path}: {error.strerror or error}") from error
    except BadSocket:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def listen_tcp(port: int) -> socket.socket:
    """A socket that listens on loopback only. Raises BadSocket."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Connections of a daemon before this one may linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BadSocket(
            f"cannot listen on {LOOPBACK}:{port}: {error.strerror}; choose another [ingest] tcp_port"
        ) from error
    listener.setblocking(False)
    return listener


def is_taken(port: int) -> bool:
    """Whether a process listens at a port of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def refuse(listener: socket.socket) -> None:
    """Let nobody else come; who waits to be accepted still is.

    By TCP, closing would reset those who wait; so packets are dropped, and who comes is refused at the end.
    """
    if listener.family == socket.AF_UNIX:
        listener.shutdown(socket.SHUT_RD)
        return
    program = ctypes.create_string_buffer(_DROP)
    # Where the kernel does not have it, who comes in the last moment is reset.
    with suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program))
        )


def finish(listener: socket.socket) -> None:
    """Nobody waits at it any more."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


def is_finished(listener: socket.socket) -> bool:
    """Whether anybody has called `finish`."""
    poll = select.poll()
    poll.register(listener, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def accept(listener: socket.socket) -> tuple[socket.socket | None, bool]:
    """(a connection, or None; whether there may be more). Raises NoDescriptors."""
    try:
        return listener.accept()[0], True
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            raise NoDescriptors(error.strerror) from error
        if error.errno not in _PASSING:
            raise
        return None, error.errno != errno.EAGAIN


def sender_of(sock: socket.socket) -> tuple[int, int, int, int]:
    """(kind, uid, pid, gid) of who connected; a stream has no other sender: its bytes may be of several."""
    if sock.family != socket.AF_UNIX:
        return TCP, SENDER_UNKNOWN, SENDER_UNKNOWN, SENDER_UNKNOWN
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return UNIX, uid, pid, gid
