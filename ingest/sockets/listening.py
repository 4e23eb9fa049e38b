"""Sockets for messages: UNIX datagrams and UNIX streams at a path, TCP on loopback.

A listener that is no input any more is shut by `refuse`: connections that wait at it are still accepted. The
process that has accepted all of them calls `finish`, which every process with the socket can see
(`is_finished`), whichever process ends in between.
"""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import select
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from ingest.errors import BadSocket
from ingest.sockets.holder import probe
from spool.storage.disk import make_directory, set_mode

RECEIVE_TIMEOUT_S = 1
EVERYBODY = 0o666
BACKLOG = 1024
"""Connections that wait to be accepted. The stream worker accepts all of them in a step; those that one user
opens in the meantime are to leave room for others. At the limit a UNIX client waits, or gets EAGAIN, and a
client by TCP tries again after a second. The kernel takes fewer where net.core.somaxconn is lower."""
LOOPBACK = "127.0.0.1"
_SO_ATTACH_FILTER = 26
_DROP = struct.Struct("HBBI").pack(0x06, 0, 0, 0)
"""A classic BPF program of one instruction: return 0, which is none of the packet."""


def open_socket(path: Path, mode: int = EVERYBODY, group: str | None = None) -> socket.socket:
    """A bound datagram socket at `path`, whose datagrams carry their senders.

    A path left behind by a daemon that was killed is taken over, and none at which a process receives. Raises
    BadSocket.
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
    """Accept no more connections than those that wait already.

    By TCP, closing would reset those that wait; so packets are dropped, and later connections are refused at
    the end.
    """
    if listener.family == socket.AF_UNIX:
        listener.shutdown(socket.SHUT_RD)
        return
    program = ctypes.create_string_buffer(_DROP)
    # If the kernel has no such filter, connections of the last moment are reset.
    with suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program))
        )


def finish(listener: socket.socket) -> None:
    """End it: no client waits at it any more."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


def is_finished(listener: socket.socket) -> bool:
    """Whether anybody has called `finish`."""
    poll = select.poll()
    poll.register(listener, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def set_timeout(receiver: socket.socket) -> None:
    """Let the kernel end a wait after RECEIVE_TIMEOUT_S, so that signals are seen."""
    receiver.setblocking(True)
    timeout = RECEIVE_TIMEOUT_S.to_bytes(8, "little") + bytes(8)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)


def bind(one: socket.socket, path: Path, mode: int, group: str | None) -> None:
    """Bind it to a path that only these can ever write to. For a process without threads.

    Raises BadSocket, OSError.
    """
    # Until it has its group, no user can write to it.
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

    Raises BadSocket for one in which another user could put a socket in the place of ours, OSError.
    """
    make_directory(path, 0o755)
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise BadSocket(
            f"user {found.st_uid} may replace the sockets in {path}, which belongs to it: chown it to "
            f"{os.geteuid()}, or choose another folder in [ingest]"
        )
    if found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        raise BadSocket(f"every user of this host may replace the sockets in {path}: chmod o-w {path}")
    if found.st_mode & stat.S_IWGRP and not _is_ours_alone(found.st_gid):
        raise BadSocket(f"group {found.st_gid} may replace the sockets in {path}: chmod g-w {path}")


def _is_ours_alone(group: int) -> bool:
    """Whether a group is root's, or has no members but us and root, as far as this host knows them."""
    if group == 0:
        return True
    ours = {0, os.geteuid()}
    members = {user.pw_name for user in pwd.getpwall() if user.pw_uid in ours}
    try:
        known = grp.getgrgid(group).gr_mem
    except KeyError:
        known = []
    return set(known) <= members and all(u.pw_uid in ours for u in pwd.getpwall() if u.pw_gid == group)


def make_way(path: Path) -> None:
    """Take a path over from a socket that was left behind. Raises BadSocket when something else is there.

    A socket that another user keeps to itself counts as such: it cannot be seen whether a process has it.
    """
    if not os.path.lexists(path):
        return
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode):
        raise BadSocket(f"{path} exists and is no socket; choose another path in [ingest]")
    answer = probe(str(path))
    if answer == errno.EACCES and found.st_uid != os.geteuid():
        raise BadSocket(f"{path} is user {found.st_uid}'s; remove it if no process receives there")
    if answer not in (errno.ECONNREFUSED, errno.EACCES, errno.ENOENT):
        raise BadSocket(f"another process receives at {path}; stop it, or choose another path in [ingest]")
    path.unlink(missing_ok=True)
