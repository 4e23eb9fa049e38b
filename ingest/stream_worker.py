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
import errno
import heapq
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence

from ingest import connections, line
from ingest.errors import NoDescriptors
from ingest.fd_store import DESCRIPTORS, FdStore, descriptors
from ingest.hold import StreamHold
from ingest.line_memory import LineMemory
from ingest.lines import MOST_LINES, Lines
from ingest.listener import accept, finish, refuse, sender_of
from ingest.stream_log import Said
from ingest.users import GRACE_S, Connection, Users, bytes_for, is_late, put
from spool.format import SAMPLE_BYTES
from spool.page import Field, Page, no_beat
from spool.wire import Reason

log = logging.getLogger("bruce.stream")

FINISH_S = 5.0
"""At the end, how long for runs to be taken."""
SPARE_LINES = 64
"""For connections that are over, until what they sent is in the log."""
_ACCEPTS = 64
"""Connections accepted between two looks at those that are there."""
_PAUSE_S = 0.1
"""Until the next try, where descriptors or memory are missing."""
_IDLE_S = 0.2
_LINGER_S = 0.3
"""So long nothing comes by TCP before its connections are ended."""
_LOOK_S = 1.0
"""Between two looks for messages that do not come."""


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
        self._hold = StreamHold(page)
        self.beat: Callable[[], None] = no_beat
        self._listeners, self._lines, self._store = {one.fileno(): one for one in listeners}, lines, store
        self._counts = page.address_of(Field.CONNECTIONS)
        self._poll = select.epoll()
        self._poll.register(lines.bells.taken, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        """By descriptor."""
        self._waiting: dict[int, Connection] = {}
        """Those that offer a run, by number."""
        memory = bytes_for(lines.path.parent, lines.side_bytes)
        most = min(MOST_LINES, descriptors() - DESCRIPTORS) - SPARE_LINES
        self.users = Users(most, memory, lines.side_bytes)
        self._memory, self._said = LineMemory(lines, self.users), Said(lines.limit)
        self._starving, self._look_at = False, 0.0
        """Whether any waits for memory; when to look for messages that do not come."""
        self._free = list(range(MOST_LINES))
        self._leaving: list[socket.socket] = []
        """Listeners that are no inputs any more, at which connections may wait."""
        self._paused = 0.0
        """When connections are accepted again; 0: they are."""
        for fd in self._listeners:
            self._poll.register(fd, select.EPOLLIN)
        self._take_over()

    def run(self) -> None:
        """Receive until told to stop; then take what is there, and end each connection."""
        while not self.stopping:
            self.beat()
            if not self._hold.lasts():
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
                self._receive(connection)

    def _step(self, wait_s: float) -> bool:
        """Wait for something, and do it; whether there was anything."""
        events = self._poll.poll(_PAUSE_S if self._paused or self._starving else wait_s)
        for fd, _event in events:
            if fd == self._lines.bells.taken:
                self._look_at_taken()
            elif fd in self._listeners:
                self._accept_some(self._listeners[fd])
            elif connection := self._connections.get(fd):
                self._receive(connection)
        if self._paused and time.monotonic() >= self._paused:
            self._resume()
        if self._starving:
            self._feed()
        if self._hold.now() >= self._look_at:
            self._look_for_late()
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
            self._pause("what was sent on connections that are over is not yet in the log; new ones wait")
            return False
        try:
            sock, more = accept(listener)
        except NoDescriptors as error:
            self._pause(f"no more connections can be accepted: {error}; they wait")
            return False
        if sock is None:
            return more
        number = heapq.heappop(self._free)
        self._lines.use(number)
        kind, uid, pid, gid = sender_of(sock)
        head = self._lines.head(number)
        connections.open_counted(self._counts, head, kind, uid, pid, gid)
        if self._is_succeeded:
            self._store.keep(number, sock)
        self._begin(Connection(number, head, sock, self.users.enter(kind, uid)))
        self._relieve()
        return True

    @property
    def _is_succeeded(self) -> bool:
        """Whether somebody goes on with the connections; at the end nobody attends to the store."""
        return self.giving_way or not self.stopping

    def _begin(self, connection: Connection) -> None:
        """Receive from a connection that has a line."""
        assert connection.sock
        self._connections[connection.sock.fileno()] = connection
        self.users.count(connection.user, 1)
        # By edges: a connection that waits for its run does not wake us all the time.
        self._poll.register(connection.sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._go_on(connection)

    def _pause(self, why: str) -> None:
        """Leave those who want to connect where they are for a moment."""
        self._said.say(why, why)
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
            user = self.users.enter(line.kind_of(head), line.uid_of(head))
            # One that is ended is closed, as it was to be.
            sock = None if line.is_ended(head) else held.pop(number, None)
            connection = Connection(number, head, sock, user)
            self._memory.adopt(connection)
            (self._begin if connection.sock else self._go_on)(connection)
        for number, sock in held.items():
            _end(sock)
            self._store.drop(number)
        self._relieve()

    # -- receiving --------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        """Receive what may be there, until a run is offered or nothing is left."""
        connection.readable = True
        if not connection.waiting and not connection.starved:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Offer what is whole; receive when nothing is. One that is over loses its line."""
        while not self._is_waiting(connection):
            if line.is_ended(connection.head):
                self._close(connection)
                return
            if self._offer(connection):
                continue
            if connection.sock is None:
                self._close(connection)
                return
            if not connection.readable:
                self._rest(connection)
                return
            if not self._memory.make_room(connection):
                self._said.say("memory", "senders on streams wait: there is no memory to receive into")
                put(connection, connection.user.starved)
                self._starving = True
                return
            self._take_in(connection, connection.sock.fileno())

    def _rest(self, connection: Connection) -> None:
        """All that came is received: the next bytes are its sender's to send."""
        user, got = connection.user, int(line.filled(connection.head) - line.consumed(connection.head))
        if connection.grant and got <= connection.least:
            self._memory.turn_over(connection)
        if not got:
            put(connection, user.idle)
        elif connection.among is not user.unfinished:
            put(connection, user.unfinished)
            connection.begun = connection.came = self._hold.now()
        elif got != connection.got:
            connection.came = self._hold.now()
        connection.got = got

    def _take_in(self, connection: Connection, fd: int) -> None:
        """Receive once, into the room that there is."""
        got = self._memory.receive(connection, fd)
        if got == -errno.EAGAIN:
            connection.readable = False
        elif got <= 0 and got != -errno.EINTR:
            # The end of the stream, or an error that is one.
            if got < 0:
                connections.count_error(self._counts, connection.head)
            self._disconnect(connection)

    def _is_waiting(self, connection: Connection) -> bool:
        connection.waiting = bool(line.waits(connection.head))
        if connection.waiting:
            put(connection, None)
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
        head, begin, end = connection.head, line.consumed(connection.head), line.filled(connection.head)
        until, count, reason = self._memory.cut(connection, begin, end)
        if not count and not reason and connection.sock is None and end > begin:
            reason = int(Reason.UNCLEAN)
        if not count and not reason:
            return False
        if reason:
            self._said.refuse(connection.user, reason, self._memory.side(connection) + until)
            self._disconnect(connection)
        line.offer(head, begin, until, count, end - until if reason else 0, reason)
        os.eventfd_write(self._lines.bells.offered, 1)
        return True

    # -- limits -----------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Go on with those that wait for memory, as far as there is some."""
        for user in self.users.hungry():
            while user.starved:
                connection = next(iter(user.starved))
                put(connection, None)
                self._go_on(connection)
                if not connection.starved:
                    continue
                user.starved.move_to_end(connection, last=False)
                victim = self.users.greediest(user, self._hold.now() - GRACE_S)
                if victim is None:
                    break
                if self._stays(victim):
                    self._said.give_up(victim)
                    self._expel(victim, Reason.USER_LIMIT)
        self._starving = bool(self.users.hungry())

    def _look_for_late(self) -> None:
        """End connections whose message does not come."""
        self._look_at = self._hold.now() + _LOOK_S
        for connection in self.users.late(self._hold.now()):
            # It may have come while this process stood still.
            if self._stays(connection) and is_late(connection, self._hold.now()):
                self._said.give_up_waiting(connection)
                self._expel(connection, Reason.TOO_SLOW)

    def _relieve(self) -> None:
        """Have no more connections than there may be."""
        while victim := self.users.crowding():
            if self._stays(victim):
                self._said.crowd(victim.user, self.users.most)
                self._expel(victim, Reason.USER_LIMIT)

    def _stays(self, connection: Connection) -> bool:
        """Receive what may be there; whether a connection is idle, or unfinished, all the same."""
        among = connection.among
        self._receive(connection)
        return connection.among is among

    def _expel(self, connection: Connection, reason: Reason) -> None:
        """End a connection that offers nothing, with what it has begun."""
        head, begin = connection.head, int(line.consumed(connection.head))
        tail = min(int(line.filled(head)) - begin, SAMPLE_BYTES)
        # The run first: a successor of who is killed here finds why the connection ended.
        line.offer(head, begin, begin, 0, tail, int(reason))
        os.eventfd_write(self._lines.bells.offered, 1)
        self._disconnect(connection)
        # It may be taken by now; the bell that says so has not been heard.
        put(connection, None)
        connection.waiting, self._waiting[connection.number] = True, connection
        self._memory.cut_off(connection, begin)

    # -- ending -----------------------------------------------------------------------------------------

    def _disconnect(self, connection: Connection) -> None:
        """The connection is gone; its line is not."""
        if connection.sock is None:
            return
        self._poll.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        _end(connection.sock)
        connection.sock = None
        self.users.count(connection.user, -1)
        if self._is_succeeded:
            self._store.drop(connection.number)

    def _close(self, connection: Connection) -> None:
        """All of it is taken: its line is free."""
        self._disconnect(connection)
        self._memory.free(connection)
        connections.free_counted(self._counts, connection.head)
        heapq.heappush(self._free, connection.number)


def _end(sock: socket.socket) -> None:
    """End a connection, whoever holds it too."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
