"""The inputs: places where messages come in, and their sockets, which the supervisor holds and never reads.

The service manager (sd_listen_fds(3)) or a holder (ingest.sockets.holding) may have opened some of them. They
stay as they are, since both may hand them over again:

    LISTEN_PID      the process that they are for
    LISTEN_FDS      their number, from descriptor 3 on
    LISTEN_FDNAMES  their names; a socket called "ack" is that of [ingest] ack_socket, one called "kafka" a
                    Kafka input

The type of such a socket says which input it is: UNIX datagrams, UNIX streams, or TCP of this host.

All others are made here, and come and go while bruce runs: one that goes refuses senders at once, and the
next worker still takes the messages in its queue.

A path may come to lead elsewhere: a cleaner of temporary files removes it, or another program binds it. A
socket that was made here is then made again (`Inputs.mend`), unless another process answers at its path. The
lost one still receives from the programs that were connected to it, which notice nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingest.errors import BadSocket
from ingest.sockets.holder import file_at
from ingest.sockets.listening import (
    BACKLOG,
    EVERYBODY,
    is_finished,
    listen_tcp,
    listen_unix,
    open_socket,
    open_to,
    refuse,
    set_timeout,
)

log = logging.getLogger("bruce")

DATAGRAM, STREAM, TCP, KAFKA, ACK = KINDS = "datagram", "stream", "tcp", "kafka", "ack"
"""Kinds of inputs; the last takes datagrams that are answered."""
SYNCED, DELIVERED = ACKNOWLEDGE = "synced", "delivered"
"""The two meanings of a Kafka input's answer."""
LISTEN_FDS_START = 3
_DATAGRAMS = (DATAGRAM, ACK)
MOST_LOST = 16
"""Datagram sockets without a path that are still read; beyond that the oldest refuses its senders."""


@dataclass(frozen=True, slots=True)
class Input:
    """One place."""

    kind: str
    place: Path | int
    """A path, or by TCP a port of loopback."""
    mode: int = EVERYBODY
    group: str | None = None
    acknowledge: str = SYNCED
    allow_unknown: bool = False
    """Of a Kafka input: it takes messages for topics that Kafka was not seen to have."""

    @property
    def key(self) -> tuple[str, Path | int]:
        """Its identity among inputs."""
        return self.kind, self.place


@dataclass(frozen=True, slots=True)
class Door:
    """An input, and its socket."""

    input: Input
    socket: socket.socket
    activated: bool
    """The service manager keeps it, too."""
    file: tuple[int, int] | None
    """Device and inode at its path when it was bound or handed over; None: it cannot be seen from here."""

    @property
    def is_reachable(self) -> bool:
        """Whether programs that open its path come to it, if that can be seen from here."""
        if not isinstance(self.input.place, Path) or (self.activated and self.file is None):
            return True
        return self.file is not None and self.file == file_at(str(self.input.place))


class Inputs:
    """All of them."""

    def __init__(self, handed: Iterable[Door], wanted: Sequence[Input]) -> None:
        """Take those that were handed over, and make the others. Raises BadSocket."""
        self._doors = {door.input.key: door for door in handed}
        self._leaving: list[Door] = []
        self._lost: list[Door] = []
        """Datagram sockets that were made again, and still have senders, the oldest first."""
        for one in wanted:
            # A socket that is handed over has no options.
            if one.kind == KAFKA and one.key in self._doors:
                self._doors[one.key] = replace(self._doors[one.key], input=one)
        for door in self._doors.values():
            _prepare(door)
        made = self._make(one for one in wanted if one.key not in self._doors)
        self._doors |= {door.input.key: door for door in made}

    def of(self, *kinds: str) -> list[Door]:
        """Those of some kinds, in order; behind them those that are still read without a path."""
        return [door for door in (*self._doors.values(), *self._lost) if door.input.kind in kinds]

    def leaving(self, *kinds: str) -> list[socket.socket]:
        """Sockets that are no inputs any more, and may hold something still."""
        return [door.socket for door in self._leaving if door.input.kind in kinds]

    def change(self, before: Sequence[Input], wanted: Sequence[Input]) -> set[str]:
        """Have other inputs; of which kinds some came or went. Raises BadSocket, with nothing changed."""
        old, new = {one.key: one for one in before}, {one.key: one for one in wanted}
        other = [new[key] for key in new.keys() & old.keys() if new[key] != old[key]]
        made = self._make(
            [one for key, one in new.items() if key not in self._doors],
            [one for one in other if isinstance(one.place, Path) and not self._doors[one.key].activated],
        )
        for one in other:
            self._doors[one.key] = replace(self._doors[one.key], input=one)
        gone = [key for key in old.keys() - new.keys() if not self._doors[key].activated]
        self._leave([door for door in self._lost if door.input.key in gone])
        self._leave([self._doors.pop(key) for key in gone])
        self._doors |= {door.input.key: door for door in made}
        asked = {one.kind for one in other if one.kind == KAFKA}
        return {kind for kind, _ in gone} | {door.input.kind for door in made} | asked

    def mend(self) -> tuple[set[str], list[str]]:
        """Make sockets again that programs cannot reach; (their kinds, a sentence for each that stays so).

        For a process without threads.
        """
        kinds, sentences = set[str](), []
        for key, door in [(key, door) for key, door in self._doors.items() if not door.is_reachable]:
            try:
                self._doors[key] = _make_again(door)
            except BadSocket as error:
                sentences.append(f"programs that open {door.input.place} do not reach bruce: {error}")
                continue
            log.warning("%s did not lead to bruce any more: the socket is made again", door.input.place)
            kinds.add(door.input.kind)
            # A listener has no senders without a path, and one for acknowledgements none that are connected.
            if door.input.kind == DATAGRAM:
                self._lost.append(door)
                self._leave(self._lost[:-MOST_LOST])
            else:
                self._leave([door])
        return kinds, sentences

    def _leave(self, gone: Sequence[Door]) -> None:
        """Have these as inputs no more; their queues are for the next worker."""
        self._leaving = [door for door in self._leaving if _holds_any(door)] + [*map(_refuse, gone)]
        self._lost = [door for door in self._lost if door not in gone]

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
        for door in (*self._doors.values(), *self._lost, *self._leaving):
            door.socket.close()
        for door in self._doors.values():
            _remove(door)


def _open(one: Input) -> Door:
    if isinstance(one.place, int):
        return Door(one, listen_tcp(one.place), activated=False, file=None)
    make = open_socket if one.kind in _DATAGRAMS else listen_unix
    made = make(one.place, one.mode, one.group)
    door = Door(one, made, activated=False, file=file_at(str(one.place)))
    _prepare(door)
    return door


def _make_again(door: Door) -> Door:
    """Raises BadSocket."""
    if door.activated:
        raise BadSocket(
            "the socket that bruce was handed is gone from there; restart bruce.socket or bruce hold-socket, "
            "and then bruce"
        )
    return _open(door.input)


def _prepare(door: Door) -> None:
    if door.input.kind in _DATAGRAMS:
        set_timeout(door.socket)
    else:
        door.socket.setblocking(False)
        # Its maker may have chosen another length.
        door.socket.listen(BACKLOG)


def _open_to(one: Input) -> None:
    assert isinstance(one.place, Path)
    try:
        open_to(one.place, one.mode, one.group)
    except OSError as error:
        raise BadSocket(f"{one.place} cannot be given its mode: {error.strerror}") from error


def _refuse(door: Door) -> Door:
    """Make it no input any more: refuse senders; messages in its queue stay."""
    _remove(door)
    if door.input.kind in _DATAGRAMS:
        door.socket.shutdown(socket.SHUT_RD)
    else:
        refuse(door.socket)
    return door


def _holds_any(door: Door) -> bool:
    """Whether messages may wait in a socket that was left to the workers; an empty one is closed."""
    if door.input.kind in _DATAGRAMS:
        with contextlib.suppress(BlockingIOError):
            door.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return True
    elif not is_finished(door.socket):
        return True
    door.socket.close()
    return False


def _remove(door: Door) -> None:
    """Take its path along, unless that leads elsewhere by now."""
    if isinstance(door.input.place, Path) and not door.activated and door.is_reachable:
        door.input.place.unlink(missing_ok=True)


def activated_doors(environ: Mapping[str, str] = os.environ) -> list[Door]:
    """The inputs that the service manager opened. Raises BadSocket."""
    return doors_of(_handed_over(environ))


def doors_of(opened: Iterable[tuple[str, socket.socket]]) -> list[Door]:
    """The inputs that these sockets are, each with its name. Raises BadSocket."""
    doors = []
    for name, one in opened:
        kind, place = _what(one)
        file = None if isinstance(place, int) else file_at(str(place))
        if kind not in (TCP, KAFKA):
            # Datagrams that were queued before carry no sender.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if (kind, name) in ((DATAGRAM, ACK), (TCP, KAFKA)):
            kind = name
        doors.append(Door(Input(kind, place), one, activated=True, file=file))
    return doors


def _handed_over(environ: Mapping[str, str]) -> Iterator[tuple[str, socket.socket]]:
    count = environ.get("LISTEN_FDS", "0")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    for number in range(int(count)):
        fd = LISTEN_FDS_START + number
        try:
            os.set_inheritable(fd, False)
            one = socket.socket(fileno=fd)
        except OSError:
            raise BadSocket(f"the service manager handed over descriptor {fd}, which is no socket") from None
        yield names[number] if number < len(names) else "", one


def _what(one: socket.socket) -> tuple[str, Path | int]:
    """(kind, place) of a socket. Raises BadSocket for what can be no input."""
    unix = one.family == socket.AF_UNIX
    if unix and one.type == socket.SOCK_DGRAM:
        return DATAGRAM, Path(one.getsockname())
    if one.type != socket.SOCK_STREAM or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise BadSocket(
            "the service manager handed over a socket that takes neither UNIX datagrams nor connections; "
            "ListenDatagram= and ListenStream= make such sockets"
        )
    if unix:
        return STREAM, Path(one.getsockname())
    host, port, *_ = one.getsockname()
    if not ipaddress.ip_address(host).is_loopback:
        raise BadSocket(
            f"the service manager handed over a socket that other hosts reach, at {host}: bruce takes no "
            f"messages from them; use ListenStream=127.0.0.1:{port}"
        )
    return TCP, int(port)
