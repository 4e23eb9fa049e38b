"""Sockets that stream connections come to: UNIX at a path, TCP on loopback."""

from __future__ import annotations

import socket
from pathlib import Path

from ingest.datagram import EVERYBODY, make_way, open_to
from ingest.errors import BadSocket

BACKLOG = 4096
"""Connections that wait to be accepted; the kernel takes fewer where net.core.somaxconn is lower."""
LOOPBACK = "127.0.0.1"


def listen_unix(path: Path, mode: int = EVERYBODY, group: str | None = None) -> socket.socket:
    """A listening UNIX stream socket at `path`. One left behind is taken over. Raises BadSocket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_way(path)
        listener.bind(str(path))
        open_to(path, mode, group)
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
