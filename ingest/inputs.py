"""The places where messages come in, and their sockets, as the supervisor holds them. It reads none.

Those that the service manager opened (ingest.activation) stay as they are, for it may hand them over again.
Others are made here, and can come and go while bruce runs: one that goes refuses senders at once, and what
stands in its queue is still taken in, by the next worker.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest.datagram import EVERYBODY, open_socket, open_to, set_timeout
from ingest.errors import BadSocket
from ingest.listener import is_finished, listen_tcp, listen_unix, refuse

DATAGRAM, STREAM, TCP = "datagram", "stream", "tcp"


@dataclass(frozen=True, slots=True)
class Input:
    """One place."""

    kind: str
    place: Path | int
    """A path, or by TCP a port of loopback."""
    mode: int = EVERYBODY
    group: str | None = None

    @property
    def key(self) -> tuple[str, Path | int]:
        """What tells it from others."""
        return self.kind, self.place


@dataclass(frozen=True, slots=True)
class Door:
    """An input, and its socket."""

    input: Input
    socket: socket.socket
    activated: bool
    """The service manager keeps it, too."""


class Inputs:
    """All of them."""

    def __init__(self, handed: Iterable[Door], wanted: Sequence[Input]) -> None:
        """Take those that were handed over, and make the others. Raises BadSocket."""
        self._doors = {door.input.key: door for door in handed}
        self._leaving: list[Door] = []
        for door in self._doors.values():
            _prepare(door)
        made = self._make(one for one in wanted if one.key not in self._doors)
        self._doors |= {door.input.key: door for door in made}

    def of(self, *kinds: str) -> list[Door]:
        """Those of some kinds, in order."""
        return [door for door in self._doors.values() if door.input.kind in kinds]

    def leaving(self, *kinds: str) -> list[socket.socket]:
        """Sockets that are no inputs any more, and may hold something still."""
        return [door.socket for door in self._leaving if door.input.kind in kinds]

    def change(self, before: Sequence[Input], wanted: Sequence[Input]) -> set[str]:
        """Have other inputs; of which kinds some came or went. Raises BadSocket, with nothing changed."""
        old, new = {one.key: one for one in before}, {one.key: one for one in wanted}
        other = [new[key] for key in new.keys() & old.keys() if new[key] != old[key]]
        made = self._make(
            [one for key, one in new.items() if key not in self._doors],
            [one for one in other if not self._doors[one.key].activated],
        )
        gone = [key for key in old.keys() - new.keys() if not self._doors[key].activated]
        self._leaving = [door for door in self._leaving if _holds_any(door)]
        for key in gone:
            self._leaving.append(_refuse(self._doors.pop(key)))
        self._doors |= {door.input.key: door for door in made}
        return {kind for kind, _ in gone} | {door.input.kind for door in made}

    @staticmethod
    def _make(wanted: Iterable[Input], reopened: Iterable[Input] = ()) -> list[Door]:
        """All of them, or none; `reopened` get another mode or group. Raises BadSocket."""
        made: list[Door] = []
        try:
            made.extend(map(_open, wanted))
            for one in reopened:
                _open_to(one)
        except BadSocket:
            for door in made:
                _remove(door)
                door.socket.close()
            raise
        return made

    def close(self) -> None:
        """Let go of all, and take along the paths of those that were made here."""
        for door in (*self._doors.values(), *self._leaving):
            door.socket.close()
        for door in self._doors.values():
            _remove(door)


def _open(one: Input) -> Door:
    if isinstance(one.place, int):
        return Door(one, listen_tcp(one.place), activated=False)
    make = open_socket if one.kind == DATAGRAM else listen_unix
    door = Door(one, make(one.place, one.mode, one.group), activated=False)
    _prepare(door)
    return door


def _prepare(door: Door) -> None:
    if door.input.kind == DATAGRAM:
        set_timeout(door.socket)
    else:
        door.socket.setblocking(False)


def _open_to(one: Input) -> None:
    assert isinstance(one.place, Path)
    try:
        open_to(one.place, one.mode, one.group)
    except OSError as error:
        raise BadSocket(f"{one.place} cannot be given its mode: {error.strerror}") from error


def _refuse(door: Door) -> Door:
    """Be no input any more; what stands in its queue stays. Who is connected is told."""
    _remove(door)
    if door.input.kind == DATAGRAM:
        door.socket.shutdown(socket.SHUT_RD)
    else:
        refuse(door.socket)
    return door


def _holds_any(door: Door) -> bool:
    """Whether something may stand in a socket that was left to the workers; one that is empty is closed."""
    if door.input.kind == DATAGRAM:
        with contextlib.suppress(BlockingIOError):
            door.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return True
    elif not is_finished(door.socket):
        return True
    door.socket.close()
    return False


def _remove(door: Door) -> None:
    if isinstance(door.input.place, Path) and not door.activated:
        door.input.place.unlink(missing_ok=True)
