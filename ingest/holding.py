"""Sockets that outlive every process of bruce: `bruce hold-socket` keeps them, and hands them to each start.

Beside the datagram socket is the holder's folder, PATH.hold, of its user alone (0700). The flock on the
folder says which process is the holder, and there is one; in it is the socket at which it is asked
(ingest.holder). Like systemd, it reads nothing, and what it made at its start is all that it holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import ingest.holder
from ingest.activation import ACK
from ingest.errors import BadSocket
from ingest.holder import DOOR, is_live
from ingest.inputs import DATAGRAM, STREAM, TCP, Input, Inputs
from ingest.listener import is_taken

log = logging.getLogger("bruce")

AGAIN_S = 0.1
ANSWER_S = 10.0
"""For a holder that lives to answer."""
_BACKLOG = 16
_MOST_BYTES = 64


def folder_of(datagram_socket: Path) -> Path:
    """The holder's, for the sockets of the bruce that has this one."""
    return datagram_socket.with_name(datagram_socket.name + ".hold")


def hold(folder: Path, inputs: list[Input], ack: Input | None) -> NoReturn:
    """Make the sockets, once no process has them, and become the holder. Raises BadSocket."""
    held = _lock(folder)
    wanted = [*inputs, ack] if ack else inputs
    _await_free(wanted)
    # A terminal that closes, or a reload that is meant for bruce, is no reason to end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Others wait until the holder can hear them: from here on there is something to remove.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    doors = Inputs([], wanted).of(DATAGRAM, STREAM, TCP)
    asked = _open_door(held)
    sockets = [
        {
            "descriptor": door.socket.fileno(),
            "name": ACK if door.input == ack else "",
            "path": str(door.input.place) if isinstance(door.input.place, Path) else None,
        }
        for door in doors
    ]
    log.info("holding %s", ", ".join(str(door.input.place) for door in doors))
    for fd in (held, asked.fileno(), *(door.socket.fileno() for door in doors)):
        os.set_inheritable(fd, True)
    told = json.dumps({"folder": held, "asked": asked.fileno(), "sockets": sockets})
    os.execv(sys.executable, [sys.executable, "-I", "-S", ingest.holder.__file__, told])  # noqa: S606


def _lock(folder: Path) -> int:
    """Make the holder's folder, and have the lock on it; a descriptor of it. Raises BadSocket."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if not _is_private(held, {os.geteuid()}):
                raise BadSocket(f"{folder} is another user's, or open to others: remove it")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed it in between.
            if os.fstat(held).st_nlink:
                return held
            os.close(held)
    except BlockingIOError:
        raise BadSocket(f"another bruce hold-socket has {folder} locked, and holds these sockets") from None
    except OSError as error:
        raise BadSocket(f"cannot make the folder {folder}: {error.strerror}") from error


def _await_free(inputs: list[Input]) -> None:
    """Return when no process has any of these: what waits in a socket would be lost to who takes its path."""
    for one in inputs:
        _wait(
            functools.partial(_is_free, one),
            f"{one.place} is in use: waiting for the end of the process that made it",
        )


def _is_free(one: Input) -> bool:
    return not (is_taken(one.place) if isinstance(one.place, int) else is_live(str(one.place)))


def _open_door(folder: int) -> socket.socket:
    """The socket at which the holder is asked. Raises BadSocket."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DOOR, dir_fd=folder)
        asked.bind(f"/proc/self/fd/{folder}/{DOOR}")
        asked.listen(_BACKLOG)
    except OSError as error:
        raise BadSocket(f"cannot make the holder's own socket: {error.strerror}") from error
    return asked


def held_sockets(folder: Path, *, wait: bool) -> list[tuple[str, socket.socket]]:
    """What a holder has for us, each with its name; nothing where none is. Raises BadSocket.

    `wait`: until one is.
    """
    found: list[tuple[str, socket.socket]] = []

    def ask() -> bool:
        found[:] = _ask(folder)
        return bool(found)

    if not ask() and wait:
        _wait(ask, f"waiting for bruce hold-socket, in {folder}")
    if found:
        log.info("bruce hold-socket has handed over %d sockets", len(found))
    return found


def _wait(condition: Callable[[], bool], told: str) -> None:
    if condition():
        return
    log.info("%s", told)
    while not condition():
        time.sleep(AGAIN_S)


def _ask(folder: Path) -> list[tuple[str, socket.socket]]:
    try:
        found = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not _is_private(found, {0, os.geteuid()}):
            log.warning("%s is another user's, or open to others: not asked for sockets", folder)
            return []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as holder:
            holder.settimeout(ANSWER_S)
            holder.connect(f"/proc/self/fd/{found}/{DOOR}")
            return list(_receive(holder))
    except (FileNotFoundError, ConnectionRefusedError):
        return []
    except TimeoutError:
        raise BadSocket(
            f"bruce hold-socket, in {folder}, does not answer; end it, and start it again"
        ) from None
    except PermissionError:
        raise BadSocket(
            f"{folder} is root's: let bruce hold-socket run as the user that bruce runs as"
        ) from None
    finally:
        os.close(found)


def _receive(holder: socket.socket) -> Iterator[tuple[str, socket.socket]]:
    """Raises BadSocket, OSError."""
    follow = 1
    while follow:
        data, found, _, _ = socket.recv_fds(holder, _MOST_BYTES, 1)
        if not found:
            raise BadSocket(
                "bruce hold-socket ended instead of handing its sockets over; its last words say why"
            )
        os.set_inheritable(found[0], False)
        number, _, name = data.decode().partition(" ")
        follow = int(number)
        yield name, socket.socket(fileno=found[0])


def _is_private(folder: int, owners: set[int]) -> bool:
    """Whether only one of these users, and root, can have put there what is in a folder."""
    found = os.fstat(folder)
    return found.st_uid in owners and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
