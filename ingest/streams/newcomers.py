"""Newcomers: connections that are accepted and wait for a buffer; and the round robin over users.

The kernel has one queue for all connecting programs, in the order in which they come. So a user who connects
faster than buffers can be given out would make all others wait. The stream worker therefore accepts at once
what is there, which takes microseconds each, and gives out buffers in turn, one to each user (`RoundRobin`):
a user with thousands of connections waits for itself, and others wait for one connection of it.

A user who connects at a higher rate than any may (`Allowance`) has at most QUEUE newcomers: others are closed
at once, and counted. A user whose runs wait to be stored gets no buffer meanwhile, so it cannot fill the
buffers with messages. By TCP connections without a known user may be of several: more of them may wait.

With more connections than allowed, and more than QUEUE newcomers, the user with most of both loses the one
that came last. But only a user who keeps its share of all connections open without sending, at most half of
them: one whose connections wait for the log is not to blame for that, and the messages of its newcomers would
be lost. Then the worker accepts nothing for a while, and senders wait in the kernel's queue.

The store of descriptors holds newcomers that wait. Most get a buffer in the step that accepts them, and many
are over in it: the store never hears of those.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.access import NO_ID
from ingest.buffers.connection_buffer import TCP, UNIX
from ingest.buffers.connection_buffers import MOST_BUFFERS
from ingest.buffers.staging import FAILED, INT_MASK
from ingest.errors import NoDescriptors
from ingest.sockets.holding import FdStore
from ingest.sockets.listening import BACKLOG
from ingest.streams.users import Sender, User, Users
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, call, function_address, load_u32, store_u32
from spool.native.peers import End, end_of, ends_of, users_of

Item = TypeVar("Item")
QUEUE = 32
"""Newcomers that may wait of a user who connects too fast, and beyond the limit of connections."""
NAMELESS_QUEUE = BACKLOG
"""The same of connections whose user is not known."""
ACCEPTS = BACKLOG + 1
"""Accepted between two looks at the connections that are there: all that the kernel's queue holds. One who
connects faster than it is emptied fills it, and others are turned away."""
_FIRST = MOST_BUFFERS
_NUMBERS = (1 << 32) - _FIRST
"""The numbers of newcomers, from the first one that no buffer has: the store takes four bytes of them."""
_CREDENTIALS = struct.Struct("3I")
_PEER = np.dtype(
    [
        *((name, "<u4") for name in ("fd", "pid", "uid", "gid")),
        ("family", "<u2"),
        ("port", ">u2"),
        ("address", "V4"),
        ("address_6", "V16"),
    ]
)
"""An accepted connection, the kernel's struct ucred, and the beginning of its struct sockaddr_in, or of
sockaddr_in6, which has the address behind a word."""
_PEER_BYTES, _UCRED_AT, _UCRED_BYTES = _PEER.itemsize, 4, _CREDENTIALS.size
_NAME_AT = _UCRED_AT + _UCRED_BYTES
_NAME_BYTES = _PEER_BYTES - _NAME_AT
_CLOEXEC, _SOL_SOCKET, _SO_PEERCRED = int(socket.SOCK_CLOEXEC), socket.SOL_SOCKET, socket.SO_PEERCRED
_ACCEPT4, _GETSOCKOPT, _ERRNO, _CLOSE = range(4)
_PASSING = (errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH)
"""Errors of accept when a connection failed."""
_NONE_WAITS = (errno.EAGAIN, errno.EINVAL)
"""The latter of a listener that was ended."""
_NAMELESS: Sender = (TCP, NO_ID, NO_ID, NO_ID)
"""Of each message by TCP: a user is known of those connections only that are still open at the other end."""
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(eq=False, slots=True)
class Newcomer:
    """A connection without a buffer."""

    number: int
    """That the store of descriptors has it by: no buffer's."""
    sock: socket.socket
    sender: Sender
    user: User
    is_held: bool
    """Whether the store has it by now."""


class Newcomers:
    """Those of one stream worker."""

    def __init__(self, users: Users, store: FdStore) -> None:
        self._users, self._store = users, store
        self._acceptor = Acceptor()
        self._turns: RoundRobin[Newcomer] = RoundRobin()
        self._number = _FIRST
        self._unheld: dict[Newcomer, None] = {}
        """Those that the store does not have yet."""
        self._has_refused = False

    def __len__(self) -> int:
        return len(self._turns)

    def accepts(self) -> bool:
        """Whether another one can be accepted, or refused."""
        return self._most_now() > 0

    def _most_now(self) -> int:
        """How many more can be accepted before the next look at what there is room for."""
        # Beyond the limit of connections each costs another one its place.
        return self._room + 1 if self._room >= 0 else int(self._hoarder() is not None)

    def accept(self, listener: socket.socket) -> bool:
        """Accept waiting connections, ACCEPTS at most; whether none waits any more. Raises NoDescriptors."""
        now, left = time.monotonic(), ACCEPTS
        self._users.sweep(now)
        while left > 0 and (room := self._most_now()) > 0:
            peers, more = self._acceptor.accept(listener, min(left, room))
            for some in by_user(peers):
                self._enter(listener, some, now)
            if not more:
                return True
            left -= max(1, len(peers))
        return False

    def have_refused(self) -> bool:
        """Whether any was refused since the last call."""
        had, self._has_refused = self._has_refused, False
        return had

    def adopt(self, number: int, sock: socket.socket) -> None:
        """One of a predecessor, which the store has."""
        self._number = max(self._number, _behind(number))
        self._add(number, sock, sender_of(sock), self._users.enter(uid_of(sock)), is_held=True)

    def hold(self) -> None:
        """Have the store keep those that still wait."""
        for newcomer in self._unheld:
            self._store.keep(newcomer.number, newcomer.sock)
            newcomer.is_held = True
        self._unheld.clear()

    def next(self, *, crowded: bool) -> Newcomer | None:
        """The one that gets the next buffer, which the store may have under its number.

        `crowded`: only of a user who has fewer connections than the user with most.
        """
        most = self._users.most_of_one if crowded else 0
        found = self._turns.next(
            lambda user: not (user.offered.is_enough or (crowded and user.connections + 1 >= most))
        )
        if found:
            self._leave(found)
        return found

    def _leave(self, newcomer: Newcomer) -> None:
        newcomer.user.newcomers -= 1
        self._unheld.pop(newcomer, None)

    def _enter(self, listener: socket.socket, peers: npt.NDArray[np.void], now: float) -> None:
        """Let in what a user has connected, as far as it may connect so fast."""
        uid, kind = int(peers[0]["uid"]), kind_of(listener)
        user = self._users.enter(uid)
        count = user.allowance.take(now, len(peers))
        queue = NAMELESS_QUEUE if uid == NO_ID else QUEUE
        count = max(count, min(len(peers), queue - user.newcomers))
        for peer in peers[:count]:
            sock = socket.socket(listener.family, socket.SOCK_STREAM, 0, int(peer["fd"]))
            newcomer = self._add(self._number, sock, _sender(kind, peer), user, is_held=False)
            self._unheld[newcomer] = None
            self._number = _behind(self._number)
            if self._room < 0:
                self._close_newest()
        if len(peers) > count:
            self._refuse(user, _sender(kind, peers[-1]), len(peers) - count)
            self._acceptor.close(peers[count:])

    def _add(
        self,
        number: int,
        sock: socket.socket,
        sender: Sender,
        user: User,
        *,
        is_held: bool,
    ) -> Newcomer:
        newcomer = Newcomer(number, sock, sender, user, is_held)
        user.newcomers += 1
        self._turns.add(user, newcomer)
        return newcomer

    @property
    def _room(self) -> int:
        """How many more newcomers there may be; below 0 there are too many."""
        return max(QUEUE, self._users.most - self._users.connections) - len(self)

    def _hoarder(self) -> User | None:
        """The user whose newcomers are refused; None when there is none to blame."""
        user = self._users.greatest()
        return user if user.newcomers and self._users.hoards(user) else None

    def _refuse(self, user: User, sender: Sender, count: int) -> None:
        user.refuse(sender, count)
        self._has_refused = True

    def _close_newest(self) -> None:
        """Refuse the newest of that user, if there is one."""
        user = self._hoarder()
        if user is None:
            return
        newcomer = self._turns.pop_newest(user)
        self._leave(newcomer)
        self._refuse(user, newcomer.sender, 1)
        if newcomer.is_held:
            end(newcomer.sock)
            self._store.drop(newcomer.number)
        else:
            # No other process holds it: to close it is enough, and costs half.
            newcomer.sock.close()


def _behind(number: int) -> int:
    return _FIRST + (number + 1 - _FIRST) % _NUMBERS


class RoundRobin(Generic[Item]):
    """Items to be served, one user after the other. An item may be in it once."""

    def __init__(self) -> None:
        self._of: OrderedDict[User, OrderedDict[Item, None]] = OrderedDict()
        """Users with items, in the order of their turns."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, user: User) -> int:
        """Items of a user."""
        return len(self._of.get(user, ()))

    def add(self, user: User, item: Item) -> None:
        """To be done behind the user's others; one that is here stays where it is."""
        mine = self._of.setdefault(user, OrderedDict())
        self._count += item not in mine
        mine[item] = None

    def discard(self, user: User, item: Item) -> None:
        """Not to be done any more."""
        mine = self._of.get(user)
        if mine is not None and item in mine:
            del mine[item]
            self._left(user, mine)

    def pop_newest(self, user: User) -> Item:
        """Take out what a user added last. Raises KeyError without any."""
        mine = self._of[user]
        item, _ = mine.popitem()
        self._left(user, mine)
        return item

    def next(self, may: Callable[[User], bool]) -> Item | None:
        """Take out the next item of the next user who may have a turn; None when there is none."""
        for _ in range(len(self._of)):
            user, mine = next(iter(self._of.items()))
            self._of.move_to_end(user)
            if may(user):
                item, _none = mine.popitem(last=False)
                self._left(user, mine)
                return item
        return None

    def _left(self, user: User, mine: OrderedDict[Item, None]) -> None:
        self._count -= 1
        if not mine:
            del self._of[user]


class Acceptor:
    """Accepts what waits at a listener, with the process that connected, and closes it: each in one loop."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        names = ("accept4", "getsockopt", "__errno_location", "close")
        self._functions = np.array([function_address(libc[name]) for name in names], np.int64)
        self._peers = np.zeros(1 + ACCEPTS, _PEER)

    def accept(self, listener: socket.socket, most: int) -> tuple[npt.NDArray[np.void], bool]:
        """(_PEER rows of up to `most` connections, until the next call; whether more may wait).

        `most`: at most ACCEPTS. Raises NoDescriptors and OSError, before anything is accepted.
        """
        kind = kind_of(listener)
        count, code = accept_waiting(listener.fileno(), kind, most, address_of(self._peers), self._functions)
        if code and not count:
            if code in _LACKING:
                raise NoDescriptors(os.strerror(code))
            if code not in (*_NONE_WAITS, *_PASSING):
                raise OSError(code, os.strerror(code))
        peers = self._peers[1 : 1 + count]
        if kind == TCP and count:
            server = end_of(listener.getsockname(), listener.family)
            which = "address_6" if listener.family == socket.AF_INET6 else "address"
            clients = (End(port, bytes(ip)) for port, ip in peers[["port", which]].tolist())
            peers["uid"] = _uids([(client, server) for client in clients])
        return peers, code not in _NONE_WAITS

    def close(self, peers: npt.NDArray[np.void]) -> None:
        """Close connections that no other process holds. `peers` _PEER, as accept() gives them."""
        close_all(address_of(peers), len(peers), self._functions)


@kernel
def accept_waiting(
    listener: int, kind: int, most: int, peers: Address, functions: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Accept up to `most` connections: (how many, the errno that ended it; 0: there are so many).

    `peers` _PEER[1 + most], filled from the second one on. `functions` int64[4]: the addresses of accept4,
    getsockopt, __errno_location and close.
    """
    for count in range(most):
        at = Address(peers + (1 + count) * _PEER_BYTES)
        store_u32(peers, _NAME_BYTES)
        fd = call(functions[_ACCEPT4], listener, at + _NAME_AT, peers, _CLOEXEC) & INT_MASK
        if fd >= FAILED:
            return count, load_u32(call(functions[_ERRNO]))
        for field in range(_UCRED_AT, _NAME_AT, 4):
            store_u32(Address(at + field), NO_ID)
        store_u32(at, fd)
        if kind == UNIX:
            store_u32(peers, _UCRED_BYTES)
            call(functions[_GETSOCKOPT], fd, _SOL_SOCKET, _SO_PEERCRED, at + _UCRED_AT, peers)
    return most, 0


@kernel
def close_all(peers: Address, count: int, functions: npt.NDArray[np.int64]) -> None:
    """Close `count` connections. `peers` _PEER[count]; `functions` as for accept_waiting()."""
    for number in range(count):
        call(functions[_CLOSE], load_u32(Address(peers + number * _PEER_BYTES)))


def by_user(peers: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """The same rows, each user's by themselves, in their order. `peers` _PEER[any]."""
    if len(peers):
        ordered = peers[np.argsort(peers["uid"], kind="stable")]
        yield from np.split(ordered, np.flatnonzero(np.diff(ordered["uid"])) + 1)


def uid_of(sock: socket.socket) -> int:
    """The user of a connection, NO_ID if it is not known."""
    if sock.family == socket.AF_UNIX:
        return sender_of(sock)[1]
    try:
        return _uids([ends_of(sock)])[0]
    except OSError:
        return NO_ID


def _uids(connections: list[tuple[End, End]]) -> list[int]:
    return [NO_ID if uid is None else uid for uid in users_of(connections)]


def _sender(kind: int, peer: np.void) -> Sender:
    """Of an accepted connection, a row of _PEER."""
    return (kind, int(peer["uid"]), int(peer["pid"]), int(peer["gid"])) if kind == UNIX else _NAMELESS


def kind_of(listener: socket.socket) -> int:
    """UNIX or TCP."""
    return UNIX if listener.family == socket.AF_UNIX else TCP


def end(sock: socket.socket, reason: int = 0) -> None:
    """End a connection, also for other processes that hold it. `reason`: a byte that its client reads."""
    with suppress(OSError):
        if reason:
            sock.send(bytes([reason]), socket.MSG_DONTWAIT)
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def sender_of(sock: socket.socket) -> Sender:
    """The process that connected; a stream has no other sender."""
    if sock.family != socket.AF_UNIX:
        return _NAMELESS
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return UNIX, uid, pid, gid


def compile_kernels() -> None:
    """Compile."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind("")
        listener.listen(1)
        acceptor = Acceptor()
        acceptor.close(acceptor.accept(listener, 1)[0])
