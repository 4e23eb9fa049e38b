"""The user at the other end of a TCP connection, by a real kernel."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack

import pytest

from spool.native import peers
from spool.native.peers import End, ends_of, users_of
from tests.users import NOBODY, effective_user

V4, V6 = socket.AF_INET, socket.AF_INET6
LISTENS = 10
"""The state of a socket (TCP_LISTEN)."""


def connect(stack: ExitStack, family: int, name: str, other: int, host: str) -> tuple[socket.socket, ...]:
    """(listener, client, accepted): listens with `family` at `name`, and connects with `other` to `host`."""
    listener = stack.enter_context(socket.socket(family))
    listener.bind((name, 0))
    listener.listen()
    client = stack.enter_context(socket.socket(other))
    client.connect((host, listener.getsockname()[1]))
    return listener, client, stack.enter_context(listener.accept()[0])


@pytest.mark.parametrize(
    ("family", "name", "other", "host"),
    [
        (V4, "127.0.0.1", V4, "127.0.0.1"),
        (V4, "127.0.0.1", V6, "::ffff:127.0.0.1"),
        (V6, "::", V4, "127.0.0.1"),
        (V6, "::1", V6, "::1"),
    ],
)
def test_who_connected(family: int, name: str, other: int, host: str) -> None:
    """The user that made the client's socket, while the client has it open, by IPv4 and IPv6."""
    with ExitStack() as stack:
        _, client, accepted = connect(stack, family, name, other, host)
        ends = ends_of(accepted)
        assert users_of([ends, ends[::-1]]) == [os.geteuid()] * 2
        client.close()
        assert users_of([ends]) == [None]


def test_another_user() -> None:
    """Each of several connections has its own user, in order."""
    with ExitStack() as stack:
        mine = connect(stack, V4, "127.0.0.1", V4, "127.0.0.1")[2]
        with effective_user(NOBODY):
            theirs = connect(stack, V4, "127.0.0.1", V4, "127.0.0.1")[2]
        found = users_of([ends_of(theirs), ends_of(mine), ends_of(theirs)])
        assert found == [NOBODY, os.geteuid(), NOBODY]


def test_a_listener_at_the_port_of_a_client_that_is_gone() -> None:
    """The kernel tells of it where there is no such connection: its user is not the client's."""
    with ExitStack() as stack:
        listener, _, _ = connect(stack, V4, "127.0.0.1", V4, "127.0.0.1")
        address, port = listener.getsockname()
        client, server = (End(one, socket.inet_aton(address)) for one in (port, 1))
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, peers._NETLINK_SOCK_DIAG) as kernel:
            kernel.send(peers._question(1, client, server))
            answer = kernel.recv(4096)
        assert answer[peers._HEADER.size + 1] == LISTENS
        assert peers._OWNER.unpack_from(answer, peers._OWNER_AT)[0] == os.geteuid()
        assert users_of([(client, server)]) == [None]


@pytest.mark.parametrize("size", [0, 20, 60, 87])
def test_an_answer_that_is_too_short(size: int) -> None:
    """It names no user."""
    client, server = End(1, bytes(4)), End(2, bytes(4))
    answer = peers._HEADER.pack(88, peers._SOCK_DIAG_BY_FAMILY, 0, 0, 0) + bytes(4)
    answer += peers._PORTS.pack(1, 2) + bytes(56) + peers._OWNER.pack(7, 8)
    assert peers._user_in(answer, client, server) == 7
    assert peers._user_in(answer[: max(size, peers._HEADER.size)], client, server) is None
    assert peers._user_in(answer, End(3, bytes(4)), server) is None


def test_no_question_can_be_asked() -> None:
    """No user is known when no such socket can be made, and nothing fails."""
    ends, limits = (End(1, bytes(4)), End(2, bytes(4))), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        found = users_of([ends, ends])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == [None, None]
