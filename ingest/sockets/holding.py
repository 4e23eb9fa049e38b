"""Descriptors that outlive their readers: sockets of `bruce hold-socket`, and connections of a worker.

`bruce hold-socket` keeps sockets beyond every process of bruce, and hands them to each start.

Beside the datagram socket is the holder's folder, PATH.hold, of its user alone (0700). The flock on the
folder says which process is the holder, and there is one; in it is the socket at which it is asked
(ingest.sockets.holder), and the file that the bruce which reads the sockets locks: two would share the
messages out between two spools. Like systemd, the holder reads nothing, and what it made at its start is all
that it holds.

`FdStore` keeps connections: the supervisor holds each one a second time. The stream worker sends a descriptor
with its number as soon as it has accepted it, the number with another one that the connection has from then
on, and the number alone when the connection is over; what is sent is in a socket of the supervisor, whatever
happens to the sender. A successor is forked from the supervisor, and so has all of them. The supervisor reads
no byte of a connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import ingest.sockets.holder
from ingest.errors import BadSocket
from ingest.sockets.holder import DOOR, READER, is_live
from ingest.sockets.inputs import ACK, KAFKA, KINDS, Input, Inputs
from ingest.sockets.listening import is_taken
from spool.errors import SpoolBusy
from spool.storage.disk import make_file
from spool.storage.lock import Lock, read_holder
from spool.words import counted

log = logging.getLogger("bruce")
_store_log = logging.getLogger("bruce.supervisor")

AGAIN_S = 0.1
ANSWER_S = 10.0
"""For a holder that lives to answer."""
_BACKLOG = 16
_MOST_BYTES = 64
_NUMBER_BYTES = 4
DESCRIPTORS = 128
"""That a process of the daemon has beside connections, at most."""
_PATIENCE_S = 1
"""For the supervisor to make room, in seconds."""


def folder_of(datagram_socket: Path) -> Path:
    """The holder's, for the sockets of the bruce that has this one."""
    return datagram_socket.with_name(datagram_socket.name + ".hold")


def hold(folder: Path, inputs: list[Input]) -> NoReturn:
    """Make the sockets, once no process has them, and become the holder. Raises BadSocket."""
    held = _lock(folder)
    _await_free(inputs)
    # A terminal that closes, or a reload that is meant for bruce, is no reason to end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Others wait until the holder can hear them: from here on there is something to remove.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    doors = Inputs([], inputs).of(*KINDS)
    asked = _open_door(held)
    sockets = [
        {
            "descriptor": door.socket.fileno(),
            "name": door.input.kind if door.input.kind in (ACK, KAFKA) else "",
            "path": str(door.input.place) if isinstance(door.input.place, Path) else None,
        }
        for door in doors
    ]
    log.info("holding %s", ", ".join(str(door.input.place) for door in doors))
    for fd in (held, asked.fileno(), *(door.socket.fileno() for door in doors)):
        os.set_inheritable(fd, True)
    told = json.dumps({"folder": held, "asked": asked.fileno(), "sockets": sockets})
    os.execv(sys.executable, [sys.executable, "-I", "-S", ingest.sockets.holder.__file__, told])  # noqa: S606


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
                # Made here: a bruce of root's would make one that no other may open.
                with contextlib.suppress(FileExistsError):
                    os.close(make_file(folder / READER))
                return held
            os.close(held)
    except BlockingIOError:
        raise BadSocket(f"another bruce hold-socket has {folder} locked, and holds these sockets") from None
    except OSError as error:
        raise BadSocket(f"cannot make the folder {folder}: {error.strerror}") from error


def _await_free(inputs: list[Input]) -> None:
    """Return when no process has any of these: taking its path would lose the messages in its queue."""
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
    """The sockets of a holder, each with its name; none without a holder. Raises BadSocket.

    `wait`: until one is.
    """
    found: list[tuple[str, socket.socket]] = []

    def ask() -> bool:
        found[:] = _ask(folder)
        return bool(found)

    if not ask() and wait:
        _wait(ask, f"waiting for bruce hold-socket, in {folder}")
    if found:
        log.info("bruce hold-socket has handed over %s", counted(len(found), "socket"))
    return found


def lock_sockets(folder: Path) -> Lock:
    """Become the one bruce that reads a holder's sockets. Raises BadSocket when another one does."""
    path = folder / READER
    try:
        return Lock(path, "read")
    except SpoolBusy:
        raise BadSocket(
            f"process {read_holder(path)} reads the sockets of bruce hold-socket, in {folder}, and two would "
            "share the messages out between them: stop it, or configure other sockets"
        ) from None
    except OSError as error:
        raise BadSocket(f"cannot lock {path}: {error.strerror}") from error


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
                data, found, _flags, _address = socket.recv_fds(self._inside, 2 * _NUMBER_BYTES, 1)
            except BlockingIOError:
                return
            except OSError as error:
                _store_log.warning("a connection is not held: %s", error.strerror)
                continue
            number, other = int.from_bytes(data[:_NUMBER_BYTES], "little"), data[_NUMBER_BYTES:]
            if number in self._held and other:
                self._held[int.from_bytes(other, "little")] = self._held.pop(number)
            elif number in self._held:
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
            _store_log.warning("a connection is not held: %s", error.strerror)

    def renumber(self, number: int, other: int) -> None:
        """In the stream worker: a connection has another number from now on, which none has."""
        numbers = number.to_bytes(_NUMBER_BYTES, "little") + other.to_bytes(_NUMBER_BYTES, "little")
        try:
            self._outside.send(numbers)
        except OSError as error:
            _store_log.warning("a connection is not held: %s", error.strerror)

    def drop(self, number: int) -> None:
        """In the stream worker: a connection is over."""
        try:
            self._outside.send(number.to_bytes(_NUMBER_BYTES, "little"))
        except OSError as error:
            _store_log.warning("a connection is held for longer than it lasts: %s", error.strerror)


def descriptors() -> int:
    """How many this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_descriptors() -> None:
    """Allow this process, and those it forks, as many descriptors as it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
