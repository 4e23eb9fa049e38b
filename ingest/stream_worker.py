"""The stream worker: accepts connections, receives into their lines, and offers what is whole.

What it does not do is store: the log has one writer, the ingest worker, which takes the runs that are offered
(ingest.line, ingest.lines). It waits for sockets, and for runs to be taken. A connection whose run is not
taken yet is not read meanwhile: its sender waits in the kernel's buffer.

Killed, it has a successor that goes on with the same connections (ingest.fd_store) and the same lines. A
daemon that is killed as a whole loses the connections; of the lines, whole messages are stored by the next
one, and what had only begun counts as unclean.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import heapq
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence

from ingest import connections, line
from ingest.fd_store import FdStore
from ingest.hold import held_until
from ingest.lines import MOST_LINES, Lines
from ingest.listener import finish, refuse, sender_of
from spool.kernel import function_address
from spool.page import Field, Page, no_beat
from spool.wire import Reason, reason_name

log = logging.getLogger("bruce.stream")

ROOM = 32 << 10
"""Bytes of a side that are received into, where it has so many; more for a larger message, as it comes."""
FINISH_S = 5.0
"""At the end, how long for runs to be taken."""
_ACCEPTS = 64
"""Connections accepted between two looks at those that are there."""
_PAUSE_S = 0.1
"""Until the next try, where descriptors or memory are missing."""
_IDLE_S = 0.2
_HELD_S = 0.01
_LINGER_S = 0.3
"""So long nothing comes by TCP before its connections are ended."""
_QUIET_S = 30.0
"""Between two lines in the log about the same thing."""
_PASSING = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH)
"""What accept says when it is the connection that failed, or there is none."""


class Connection:
    """One that is accepted, and its line."""

    __slots__ = ("head", "number", "readable", "room", "sock", "starved", "waiting")

    def __init__(self, number: int, head: int, sock: socket.socket | None) -> None:
        """`sock`: None when the connection is gone, and only its line is left."""
        self.number, self.head, self.sock = number, head, sock
        self.room = 0
        """Bytes of the present side that are reserved."""
        self.readable, self.waiting, self.starved = False, False, False


class StreamWorker:
    """One process's hold of listeners, connections and lines. Make it after forking."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        lines: Lines,
        store: FdStore,
        page: Page,
        *,
        kept: Collection[int] = (),
    ) -> None:
        """`kept`: descriptors of the listeners that somebody else keeps, too, when we stop."""
        self.stopping, self.giving_way, self._page, self._kept = False, False, page, kept
        self.beat: Callable[[], None] = no_beat
        self._listeners, self._lines, self._store = {one.fileno(): one for one in listeners}, lines, store
        self._counts = page.address_of(Field.CONNECTIONS)
        libc = ctypes.CDLL(None)
        self._recvmmsg = function_address(libc.recvmmsg)
        self._errno = function_address(libc["__errno_location"])
        self._poll = select.epoll()
        self._poll.register(lines.bells.taken, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        """By descriptor."""
        self._waiting: dict[int, Connection] = {}
        """Those that offer a run, by number."""
        self._starved: list[Connection] = []
        """Those that found no memory to receive into."""
        self._free = list(range(MOST_LINES))
        self._leaving: list[socket.socket] = []
        """Listeners that are no inputs any more, at which connections may wait."""
        self._paused = 0.0
        """When connections are accepted again; 0: they are."""
        self._said: dict[str, float] = {}
        for fd in self._listeners:
            self._poll.register(fd, select.EPOLLIN)
        self._take_over()

    def run(self) -> None:
        """Receive until told to stop; then take what is there, and end each connection."""
        while not self.stopping:
            self.beat()
            if not self._is_held():
                self._step(_IDLE_S)
        if not self.giving_way:
            self._take_rest()

    def _take_rest(self) -> None:
        for fd, listener in self._listeners.items():
            if fd in self._kept:
                continue
            refuse(listener)
            while self._accept(listener):
                continue
        deadline = time.monotonic() + FINISH_S
        # What was written to a UNIX stream is with us; by TCP it may still come, until it is quiet.
        self._end_all(tcp=False)
        while self._connections and time.monotonic() < deadline and self._step(_LINGER_S):
            continue
        self._end_all(tcp=True)
        while (self._connections or self._waiting) and time.monotonic() < deadline:
            self._step(_PAUSE_S)

    def finish(self, leaving: Sequence[socket.socket]) -> None:
        """Take the connections that wait at listeners which are no inputs any more, now or when one can."""
        self._leaving = [*leaving]
        self._finish_leaving()

    def _finish_leaving(self) -> None:
        while self._leaving:
            while self._accept(self._leaving[0]):
                continue
            if self._paused:
                return
            finish(self._leaving.pop(0))

    def _end_all(self, *, tcp: bool) -> None:
        """End streams behind what was received: senders are refused, and what is there stays readable."""
        for connection in list(self._connections.values()):
            if connection.sock and (connection.sock.family != socket.AF_UNIX) == tcp:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RD)
                connection.readable = True
                self._receive(connection)

    def _is_held(self) -> bool:
        """Whether an operator wants nothing to be received (ingest.hold); then a while is over."""
        until = held_until(self._page)
        self._page.words[Field.STREAMS_HELD] = until or 1
        if until:
            time.sleep(_HELD_S)
        return until > 0

    def _step(self, wait_s: float) -> bool:
        """Wait for something, and do it; whether there was anything."""
        events = self._poll.poll(_PAUSE_S if self._paused or self._starved else wait_s)
        for fd, _event in events:
            if fd == self._lines.bells.taken:
                self._look_at_taken()
            elif fd in self._listeners:
                self._accept_some(self._listeners[fd])
            elif connection := self._connections.get(fd):
                connection.readable = True
                self._receive(connection)
        if self._paused and time.monotonic() >= self._paused:
            self._resume()
        starved, self._starved = self._starved, []
        for connection in starved:
            self._go_on(connection)
        return bool(events)

    # -- accepting --------------------------------------------------------------------------------------

    def _accept_some(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            if not self._accept(listener):
                return

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one; False when there is none, or none can be accepted now."""
        if self._paused:
            return False
        if not self._free:
            self._pause(f"{MOST_LINES} connections are open; more wait")
            return False
        try:
            sock, _address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause(f"no more connections can be accepted: {error.strerror}; they wait")
                return False
            if error.errno not in _PASSING:
                raise
            return error.errno != errno.EAGAIN
        number = heapq.heappop(self._free)
        self._lines.use(number)
        connections.open_counted(self._counts, self._lines.head(number), *sender_of(sock))
        if self._is_succeeded:
            self._store.keep(number, sock)
        self._begin(number, sock)
        return True

    @property
    def _is_succeeded(self) -> bool:
        """Whether somebody goes on with the connections; at the end nobody attends to the store."""
        return self.giving_way or not self.stopping

    def _begin(self, number: int, sock: socket.socket) -> None:
        """Receive from a connection that has a line."""
        connection = Connection(number, self._lines.head(number), sock)
        self._connections[sock.fileno()] = connection
        # By edges: a connection that waits for its run does not wake us all the time.
        self._poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._go_on(connection)

    def _pause(self, why: str) -> None:
        """Leave those who want to connect where they are for a moment."""
        self._say(why)
        self._paused = time.monotonic() + _PAUSE_S
        for fd in self._listeners:
            self._poll.unregister(fd)

    def _resume(self) -> None:
        self._paused = 0.0
        for fd in self._listeners:
            self._poll.register(fd, select.EPOLLIN)
        self._finish_leaving()

    def _take_over(self) -> None:
        """Go on with the lines of the one before, and with those connections that are left."""
        held = self._store.take_over()
        heads = [self._lines.head(number) for number in range(self._lines.used)]
        connections.settle(self._page.words[Field.CONNECTIONS :], heads)
        for number, head in enumerate(heads):
            if line.kind_of(head) == line.FREE:
                continue
            self._free.remove(number)
            if number in held:
                self._begin(number, held.pop(number))
            else:
                self._go_on(Connection(number, head, None))
        for number, sock in held.items():
            # Its line was free already.
            _end(sock)
            self._store.drop(number)

    # -- receiving --------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        """Receive what is there, until a run is offered or nothing is left."""
        if not connection.waiting and not connection.starved:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Offer what is whole; receive when nothing is. One that is over loses its line."""
        connection.starved = False
        while not self._is_waiting(connection):
            if line.is_ended(connection.head):
                self._close(connection)
                return
            if self._offer(connection):
                continue
            if connection.sock is None:
                self._close(connection)
                return
            if not connection.readable or not self._make_room(connection):
                return
            self._take_in(connection, connection.sock.fileno())

    def _take_in(self, connection: Connection, fd: int) -> None:
        """Receive once, into the room that there is."""
        head, side = connection.head, self._side(connection)
        got = line.receive(head, fd, side, connection.room, self._recvmmsg, self._errno)
        if got == -errno.EAGAIN:
            connection.readable = False
        elif got <= 0 and got != -errno.EINTR:
            # The end of the stream, or an error that is one.
            if got < 0:
                connections.count_error(self._counts, head)
            self._disconnect(connection)

    def _is_waiting(self, connection: Connection) -> bool:
        connection.waiting = bool(line.waits(connection.head))
        if connection.waiting:
            self._waiting[connection.number] = connection
        return connection.waiting

    def _look_at_taken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._lines.bells.taken)
        for connection in [one for one in self._waiting.values() if not line.waits(one.head)]:
            del self._waiting[connection.number]
            self._go_on(connection)

    def _offer(self, connection: Connection) -> bool:
        """Offer whole messages, or what ends the connection; whether there was anything to offer."""
        head, begin = connection.head, line.consumed(connection.head)
        end = line.filled(head)
        kind = line.kind_of(head)
        limit, room = self._lines.limit, self._lines.room
        until, count, reason, _ = line.cut(self._side(connection), begin, end, limit, kind, room)
        if not count and not reason and connection.sock is None and end > begin:
            reason = int(Reason.UNCLEAN)
        if not count and not reason:
            return False
        if reason:
            self._refuse(connection, reason)
        line.offer(head, begin, until, count, end - until if reason else 0, reason)
        os.eventfd_write(self._lines.bells.offered, 1)
        return True

    def _refuse(self, connection: Connection, reason: int) -> None:
        """Nothing more is read from it."""
        if reason in (Reason.TLS, Reason.HTTP):
            self._say(f"somebody speaks {Reason(reason).name} to [ingest] tcp_port; it takes bare messages")
        elif reason != Reason.UNCLEAN:
            self._say(f"a connection is closed for what it sent: {reason_name(reason)}")
        self._disconnect(connection)

    def _make_room(self, connection: Connection) -> bool:
        """Have memory to receive into, behind what is there; False when there is none now."""
        head, lines = connection.head, self._lines
        side, number, begin = int(line.side_of(head)), connection.number, int(line.consumed(head))
        end, least = int(line.filled(head)), min(ROOM, lines.side_bytes)
        if begin:
            left = end - begin
            if not lines.reserve(number, 1 - side, 0, max(least, left)):
                return self._starve(connection)
            line.turn_over(head, lines.side(number, side), lines.side(number, 1 - side))
            if connection.room > ROOM:
                lines.give_back(number, side, ROOM)
            side, end, connection.room = 1 - side, left, max(least, left)
        if connection.room > end:
            return True
        # As it comes: a size field is easily written.
        room = min(max(least, 2 * end), lines.side_bytes)
        if not lines.reserve(number, side, connection.room, room):
            return self._starve(connection)
        connection.room = room
        return True

    def _starve(self, connection: Connection) -> bool:
        self._say("there is no memory to receive into (tmpfs is full); senders on streams wait")
        connection.starved = True
        self._starved.append(connection)
        return False

    def _side(self, connection: Connection) -> int:
        return self._lines.side(connection.number, int(line.side_of(connection.head)))

    # -- ending -----------------------------------------------------------------------------------------

    def _disconnect(self, connection: Connection) -> None:
        """The connection is gone; its line is not."""
        if connection.sock is None:
            return
        self._poll.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        _end(connection.sock)
        connection.sock = None
        if self._is_succeeded:
            self._store.drop(connection.number)

    def _close(self, connection: Connection) -> None:
        """All of it is taken: its line is free."""
        self._disconnect(connection)
        for side in range(2):
            self._lines.give_back(connection.number, side, 0)
        connections.free_counted(self._counts, connection.head)
        heapq.heappush(self._free, connection.number)

    def _say(self, what: str) -> None:
        """Log, but not the same again and again."""
        now = time.monotonic()
        if now - self._said.get(what, -_QUIET_S) >= _QUIET_S:
            self._said[what] = now
            log.warning("%s", what)


def _end(sock: socket.socket) -> None:
    """End a connection, whoever holds it too."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
