"""The users at the other ends of TCP connections on this host, as the kernel's socket diagnosis names them.

The kernel knows the user that made a socket, and answers anybody who gives both ends of a connection: some
microseconds each, however many sockets there are. It names no user for a socket that its process has closed,
nor for one of another network namespace; and none at all where it has no module tcp_diag, or where a sandbox
allows no AF_NETLINK.

The format is that of sock_diag(7), and of linux/inet_diag.h: `inet_diag_req_v2`, `inet_diag_msg`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBxxI")
"""family, protocol, no extensions, states; an inet_diag_sockid follows."""
_PORTS = struct.Struct("!2H")
_ADDRESSES = struct.Struct("16s16s")
_ANY_DEVICE_AND_COOKIE = struct.pack("=3I", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_LENGTH = _HEADER.size + _REQUEST.size + _PORTS.size + _ADDRESSES.size + len(_ANY_DEVICE_AND_COOKIE)
_ALL_STATES, _MOST_BYTES = 0xFFFFFFFF, 4096
_PORTS_AT = _HEADER.size + 4
_OWNER = struct.Struct("=2I")
_OWNER_AT = _PORTS_AT + _PORTS.size + _ADDRESSES.size + len(_ANY_DEVICE_AND_COOKIE) + 12
"""uid and inode, behind a timer and the bytes in both queues."""
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address in one of IPv6."""


class End(NamedTuple):
    """One end of a connection."""

    port: int
    address: bytes
    """4 bytes of IPv4, or 16 of IPv6."""


def users_of(connections: Sequence[tuple[End, End]]) -> list[int | None]:
    """Of each connection, the uid that made the client's socket; None where it is not known.

    `connections`: (the client's end, the server's).
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as kernel:
            return [_ask(kernel, number, *ends) for number, ends in enumerate(connections)]
    except OSError:
        return [None] * len(connections)


def _ask(kernel: socket.socket, number: int, client: End, server: End) -> int | None:
    """The kernel answers before send() returns; an answer to another question came too late for that one."""
    kernel.send(_question(number, client, server))
    while True:
        answer = kernel.recv(_MOST_BYTES)
        if _HEADER.unpack_from(answer)[3] == number:
            return _user_in(answer, client, server)


def _question(number: int, client: End, server: End) -> bytes:
    family = socket.AF_INET if len(client.address) == 4 else socket.AF_INET6  # noqa: PLR2004  (bytes)
    return b"".join(
        (
            _HEADER.pack(_LENGTH, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, number, 0),
            _REQUEST.pack(family, socket.IPPROTO_TCP, _ALL_STATES),
            _PORTS.pack(client.port, server.port),
            _ADDRESSES.pack(client.address, server.address),
            _ANY_DEVICE_AND_COOKIE,
        )
    )


def _user_in(answer: bytes, client: End, server: End) -> int | None:
    """The uid in an answer about these ends.

    Without such a connection the kernel tells of a socket that listens at the client's port, of anybody. A
    socket without an inode belongs to no process any more, and would pass for root's.
    """
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(answer) < _OWNER_AT + _OWNER.size:
        return None
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return uid if inode and _PORTS.unpack_from(answer, _PORTS_AT) == (client.port, server.port) else None


def ends_of(connection: socket.socket) -> tuple[End, End]:
    """(The other end, ours) of a TCP connection. Raises OSError when it has gone."""
    family = connection.family
    return end_of(connection.getpeername(), family), end_of(connection.getsockname(), family)


def end_of(name: tuple[str, int], family: int) -> End:
    """The end with this name, as getsockname() gives it."""
    address = socket.inet_pton(family, name[0].partition("%")[0])
    return End(name[1], address.removeprefix(_MAPPED))
