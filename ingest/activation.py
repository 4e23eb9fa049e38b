"""Sockets that were opened for us: by the service manager (sd_listen_fds(3)) or a holder (ingest.holding).

    LISTEN_PID      whom they are for
    LISTEN_FDS      how many there are, from descriptor 3 on
    LISTEN_FDNAMES  their names; one called "ack" stands for [ingest] ack_socket

What a socket is says what it is for: UNIX datagrams, UNIX streams, or TCP of this host.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ingest.errors import BadSocket
from ingest.inputs import DATAGRAM, STREAM, TCP, Door, Input

LISTEN_FDS_START = 3
ACK = "ack"


def activated_doors(environ: Mapping[str, str] = os.environ) -> tuple[list[Door], socket.socket | None]:
    """(inputs, socket for acknowledgements) that the service manager opened. Raises BadSocket."""
    return doors_of(_handed_over(environ))


def doors_of(opened: Iterable[tuple[str, socket.socket]]) -> tuple[list[Door], socket.socket | None]:
    """(inputs, socket for acknowledgements) among these, each with its name. Raises BadSocket."""
    doors, acknowledged = [], None
    for name, one in opened:
        kind, place = _what(one)
        if kind != TCP:
            # Datagrams that were queued before carry no sender.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if kind == DATAGRAM and name == ACK:
            acknowledged = one
        else:
            doors.append(Door(Input(kind, place), one, activated=True))
    return doors, acknowledged


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
