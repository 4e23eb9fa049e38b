"""The program of `bruce hold-socket`: it keeps sockets, and hands them to every bruce that asks.

It imports nothing but Python's own library, and nothing of bruce's, so that no fault of ours ends it. It
begins with sockets that ingest.sockets.holding has made, and neither reads them nor shuts them down:

    python -I -S holder.py '{"folder": DESCRIPTOR, "asked": DESCRIPTOR, "sockets": [SOCKET, ...]}'

A SOCKET is {"descriptor", "name", "path"}: its name as systemd would put it into LISTEN_FDNAMES, and null as
the path of a TCP port.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
from types import FrameType
from typing import NamedTuple

DOOR = "socket"
"""In the holder's folder: where it is asked."""
READER = "reader"
"""In the holder's folder: the file that the bruce which reads the sockets has locked."""
PATIENCE_S = 5.0
"""For a bruce to take what is handed to it."""
REPLACED = 1
_CREDENTIALS = struct.Struct("3I")
_STOPPED = (signal.SIGTERM, signal.SIGINT)


class Kept(NamedTuple):
    """A socket, and the file that it had at its path when we began."""

    socket: socket.socket
    name: str
    path: str | None
    file: tuple[int, int] | None

    @property
    def is_reachable(self) -> bool:
        """Whether senders that go by its path still come to it."""
        return not self.path or (self.file is not None and self.file == file_at(self.path))


class Stopped(Exception):
    """A signal to end came."""


def main() -> int:
    """Hand the sockets over until SIGTERM or SIGINT."""
    told = json.loads(sys.argv[1])
    kept = [
        Kept(socket.socket(fileno=one["descriptor"]), one["name"], one["path"], file_at(one["path"]))
        for one in told["sockets"]
    ]
    for number in _STOPPED:
        signal.signal(number, _stop)
    code = 0
    with socket.socket(fileno=told["asked"]) as asked:
        try:
            # Blocked since before the sockets were made.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPED)
            code = serve(asked, kept)
        except Stopped:
            pass
        # From here on nothing interrupts.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPED)
        leave(told["folder"], kept)
    return code


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def serve(asked: socket.socket, kept: list[Kept]) -> int:
    """Answer permitted processes. Returns, with an exit code, when another process has taken a path."""
    while True:
        connection, _ = asked.accept()
        with connection:
            if not may_ask(connection):
                continue
            lost = next((one.path for one in kept if not one.is_reachable), None)
            if lost:
                complain(f"{lost} is another process's now, or gone: start this again, and then bruce")
                return REPLACED
            # A bruce that dies meanwhile asks again.
            with contextlib.suppress(OSError):
                hand_over(connection, kept)


def may_ask(connection: socket.socket) -> bool:
    """Whether our own user asks, or root."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] in (0, os.geteuid())


def hand_over(connection: socket.socket, kept: list[Kept]) -> None:
    """A message a socket: how many follow, and its name. Raises OSError."""
    connection.settimeout(PATIENCE_S)
    for follow, one in zip(reversed(range(len(kept))), kept, strict=True):
        socket.send_fds(connection, [f"{follow} {one.name}".encode()], [one.socket.fileno()])


def leave(folder: int, kept: list[Kept]) -> None:
    """Close all, and take along the paths of those that no process of bruce's still has."""
    path = os.readlink(f"/proc/self/fd/{folder}")
    with contextlib.suppress(OSError):
        for name in (DOOR, READER):
            os.unlink(name, dir_fd=folder)
        os.rmdir(path)
    waiting = {one.path for one in kept if select.select([one.socket], [], [], 0)[0]}
    for one in kept:
        one.socket.close()
        if one.path and one.is_reachable and not is_live(one.path):
            os.unlink(one.path)
            if one.path in waiting:
                complain(f"{one.path}: what waited in it is gone; end this after bruce, and start it before")


def is_live(path: str) -> bool:
    """Whether a process has the UNIX socket at a path."""
    return probe(path) == errno.EPROTOTYPE


def probe(path: str) -> int:
    """EPROTOTYPE where a process has the UNIX socket at a path, else another errno.

    Neither that process nor its senders notice the question.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        # The kernel looks for the socket first, and then whether it is of this type, which none of ours is.
        # Somebody's may be, and its backlog full.
        asking.setblocking(False)
        return asking.connect_ex(path)


def file_at(path: str | None) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None without a file."""
    try:
        found = os.lstat(path) if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def complain(sentence: str) -> None:
    """Say it to people."""
    sys.stderr.write(f"bruce hold-socket: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
