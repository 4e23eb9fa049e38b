"""UNIX datagram sockets."""

from __future__ import annotations

import grp
import os
import socket
import stat
from pathlib import Path

from ingest.errors import BadSocket
from spool.disk import make_directory, set_mode

RECEIVE_TIMEOUT_S = 1


EVERYBODY = 0o666


def open_socket(path: Path, mode: int = EVERYBODY, group: str | None = None) -> socket.socket:
    """A bound datagram socket at `path`, ready to tell who sent what.

    A path left behind by a daemon that was killed is taken over. Raises BadSocket.
    """
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Before bind: a datagram queued earlier would carry no sender.
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        make_folder(path.parent)
        make_way(path)
        bind(receiver, path, mode, group)
    except OSError as error:
        receiver.close()
        raise BadSocket(f"cannot make the datagram socket {path}: {error.strerror or error}") from error
    except BadSocket:
        receiver.close()
        raise
    return receiver


def bind(one: socket.socket, path: Path, mode: int, group: str | None) -> None:
    """Bind it to a path that nobody but these can ever write to. For a process without threads.

    Raises BadSocket, OSError.
    """
    # Until it has its group, it is nobody's.
    before = os.umask(0o777 if group else 0o777 & ~mode)
    try:
        one.bind(str(path))
    finally:
        os.umask(before)
    open_to(path, mode, group)


def open_to(path: Path, mode: int, group: str | None) -> None:
    """Let these write to the socket at a path. Raises BadSocket, OSError."""
    try:
        set_mode(path, mode, grp.getgrnam(group).gr_gid if group else -1)
    except KeyError:
        raise BadSocket(f"{path}: there is no group {group!r}; see [ingest] socket_group") from None
    except PermissionError:
        if not group:
            raise
        raise BadSocket(
            f"{path} cannot be given to group {group!r}: make bruce a member; see [ingest] socket_group"
        ) from None


def make_folder(path: Path) -> None:
    """Make the folder of a socket, for everybody to look into and for us to change, where there is none.

    Raises BadSocket for one in which every user could put a socket in the place of ours, OSError.
    """
    make_directory(path, 0o755)
    if path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise BadSocket(f"every user of this host may replace the sockets in {path}: chmod o-w {path}")


def make_way(path: Path) -> None:
    """Take a path over from a socket that was left behind. Raises BadSocket when something else is there."""
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        raise BadSocket(f"{path} exists and is no socket; choose another path in [ingest]")
    path.unlink(missing_ok=True)


def set_timeout(receiver: socket.socket) -> None:
    """Let the kernel end a wait after RECEIVE_TIMEOUT_S, so that signals are seen."""
    receiver.setblocking(True)
    timeout = RECEIVE_TIMEOUT_S.to_bytes(8, "little") + bytes(8)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
