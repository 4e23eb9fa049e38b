"""The stream worker: accepts connections, receives into their buffers, and offers whole messages.

It does not store: the log has one writer, the ingest worker, which takes the offered runs
(ingest.buffers.connection_buffer). It waits for sockets, and for runs to be taken. A connection whose run is
not taken yet is not read meanwhile: its sender waits in the kernel's buffer.

Killed, it has a successor that goes on with the same connections (ingest.sockets.holding) and the same
buffers. A daemon that is killed as a whole loses the connections; of the buffers, the next one stores whole
messages, and a message that had only begun counts as unclean.
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

import numpy as np

from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffers import MOST_BUFFERS, ConnectionBuffers
from ingest.errors import NoDescriptors
from ingest.pause import StreamPause
from ingest.sockets.holding import DESCRIPTORS, FdStore, descriptors
from ingest.sockets.listening import finish, refuse
from ingest.streams.newcomers import Newcomer, Newcomers, RoundRobin, end, uid_of
from ingest.streams.users import (
    GRACE_S,
    BufferMemory,
    Connection,
    Offered,
    RefusalLog,
    User,
    Users,
    bytes_for,
    is_late,
    put,
)
from spool.format.segment_format import MAX_BURST, ROW_BYTES, SAMPLE_BYTES
from spool.format.wire import Reason
from spool.native.memory import Address
from spool.shared.state import Field, SharedState, no_beat

log = logging.getLogger("bruce.stream")

FINISH_S = 5.0
"""At the end, how long for runs to be taken."""
SPARE_BUFFERS = 64
"""For connections that are over, until what they sent is in the log."""
_RESERVED = SPARE_BUFFERS // 2
"""Of them, at the limit of connections, for users who have fewer than another one."""
MOST_CONNECTIONS = MOST_BUFFERS - SPARE_BUFFERS
"""Of one stream worker."""
_BUFFERS_AT_ONCE = 64
"""Given out between two looks at the connections that are there."""
_TURNS = 32
"""Connections received from between two looks at what is offered or new, by turns of the users."""
_PAUSE_S = 0.1
"""Until the next try, where descriptors or memory are missing."""
_BREATH_S = 0.003
"""Until the next look at the listeners, where connections were refused: those who connect so fast would have
a look for each, and one for many costs little more."""
_IDLE_S = 0.2
_LINGER_S = 0.3
"""So long nothing comes by TCP before its connections are ended."""
_LOOK_S = 1.0
"""Between two looks for messages that do not come."""


class StreamWorker:
    """The listeners, connections and buffers of one process. Make it after forking."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        buffers: ConnectionBuffers,
        store: FdStore,
        shared: SharedState,
        *,
        kept: Collection[int] = (),
        most: int = MOST_CONNECTIONS,
    ) -> None:
        """`kept`: descriptors of the listeners that another process keeps when we stop.

        `most`: connections; fewer where the process may not have so many descriptors.
        """
        self.stopping, self.giving_way, self._shared, self._kept = False, False, shared, kept
        self._intake = StreamPause(shared)
        self.beat: Callable[[], None] = no_beat
        self._listeners, self._buffers, self._store = {one.fileno(): one for one in listeners}, buffers, store
        self._counts = shared.address_of(Field.CONNECTIONS)
        self._poll = select.epoll()
        self._poll.register(buffers.bells.taken, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        """By descriptor."""
        self._waiting: dict[int, Connection] = {}
        """Those that offer a run, by number."""
        self._offers = np.zeros(MOST_BUFFERS, np.bool_)
        """The same."""
        memory = bytes_for(buffers.path.parent, buffers.side_bytes)
        most = min(most, descriptors() - DESCRIPTORS - SPARE_BUFFERS)
        self.users = Users(most, memory, buffers.side_bytes)
        self._memory, self._refusals = BufferMemory(buffers, self.users), RefusalLog(buffers.limit)
        self._starving, self._look_at = False, 0.0
        """Whether any waits for memory; when to look for messages that do not come."""
        self._free = list(range(MOST_BUFFERS))
        self._newcomers = Newcomers(self.users, store)
        self._ready: RoundRobin[Connection] = RoundRobin()
        """Those that may have something to receive, or to be offered."""
        self._heard: set[int] = set()
        """Descriptors of the listeners at which new connections wake us."""
        self._is_behind = self._is_offering = False
        """Whether there is something to do without waiting; whether the store is to be told of new runs."""
        self._leaving: list[socket.socket] = []
        """Listeners that are no inputs any more, at which connections may wait."""
        self._paused = 0.0
        """When connections are accepted again; 0: they are."""
        self._take_over()
        self._listen(wanted=True)

    def run(self) -> None:
        """Receive until stopped; then take what is there, and end each connection."""
        while not self.stopping:
            self.beat()
            if not self._intake.is_paused():
                self._step(_IDLE_S)
        if not self.giving_way:
            self._take_rest()

    def _take_rest(self) -> None:
        self._listen(wanted=False)
        self._leaving += [one for fd, one in self._listeners.items() if fd not in self._kept]
        self._listeners.clear()
        for listener in self._leaving:
            refuse(listener)
        deadline = time.monotonic() + FINISH_S
        self._finish_leaving()
        while (self._leaving or self._newcomers) and time.monotonic() < deadline:
            self._step(_PAUSE_S)
        # Bytes written to a UNIX stream are here; by TCP they may still come, until it is quiet.
        self._end_all(tcp=False)
        heard = True
        while self._connections and time.monotonic() < deadline and heard:
            # While a run waits for the log, its connection is not read: that is not its sender's silence.
            heard = self._step(_LINGER_S) or bool(self._waiting)
        self._end_all(tcp=True)
        while (self._connections or self._waiting) and time.monotonic() < deadline:
            self._step(_PAUSE_S)

    def finish(self, leaving: Sequence[socket.socket]) -> None:
        """Take the connections that wait at listeners which are no inputs any more, now or when one can."""
        self._leaving = [*leaving]
        self._finish_leaving()

    def _finish_leaving(self) -> bool:
        """Accept connections that wait there; returns as _give_buffers."""
        while self._leaving and self._accept(self._leaving[0]):
            finish(self._leaving.pop(0))
        return self._give_buffers()

    def _end_all(self, *, tcp: bool) -> None:
        """End streams behind what was received: senders are refused, and what is there stays readable."""
        for connection in list(self._connections.values()):
            if connection.sock and (connection.sock.family != socket.AF_UNIX) == tcp:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RD)
                self._receive(connection)

    def _step(self, wait_s: float) -> bool:
        """Wait for something, and do it; whether there was anything."""
        self._ring()
        events = self._poll.poll(0 if self._is_behind else self._wait(wait_s), MOST_BUFFERS)
        for fd, _event in events:
            self._attend(fd)
        # After that, so that a user is refused for connections that are still silent by now.
        self._accept_at([self._listeners[fd] for fd, _event in events if fd in self._listeners])
        self._is_behind = self._finish_leaving()
        self._ring()
        self._listen(wanted=not self._paused)
        done = self._take_turns()
        self._is_behind |= done == _TURNS
        if self._starving:
            self._feed()
        if self._intake.now() >= self._look_at:
            self._look_for_late()
        return bool(events) or done > 0

    def _wait(self, wait_s: float) -> float:
        """Until the next look, in s, when nothing wakes us."""
        if self._paused:
            return min(_PAUSE_S, max(0.0, self._paused - time.monotonic()))
        return _PAUSE_S if self._starving else wait_s

    def _ring(self) -> None:
        """Wake the ingest worker once for all that is offered: it takes what it finds, however much."""
        if self._is_offering:
            self._is_offering = False
            os.eventfd_write(self._buffers.bells.offered, 1)

    def _attend(self, fd: int) -> None:
        """Runs are taken, or a connection has something to say."""
        if fd == self._buffers.bells.taken:
            self._look_at_taken()
        elif connection := self._connections.get(fd):
            connection.readable = True
            if connection.among is connection.user.idle:
                put(connection, None)
            if not connection.waiting and not connection.starved:
                self._ready.add(connection.user, connection)

    def _take_turns(self) -> int:
        """Receive from some connections, and offer what is whole, by turns of the users; from how many."""
        for done in range(_TURNS):
            connection = self._ready.next(_may_offer)
            if connection is None:
                return done
            self._go_on(connection)
        return _TURNS

    # -- accepting --------------------------------------------------------------------------------------

    def _accept_at(self, listeners: Sequence[socket.socket]) -> None:
        """Accept at each of them; all have their look before a pause for one that refuses."""
        for listener in listeners:
            self._accept(listener)
        if self._newcomers.have_refused():
            self._paused = max(self._paused, time.monotonic() + _BREATH_S)
        elif self._paused and time.monotonic() >= self._paused:
            self._paused = 0.0

    def _accept(self, listener: socket.socket) -> bool:
        """Accept some connections; whether none waits any more."""
        if self._paused:
            return False
        try:
            return self._newcomers.accept(listener)
        except NoDescriptors as error:
            # New connections stay in the kernel's queue for a moment.
            why = f"no more connections can be accepted: {error}; they wait"
            self._refusals.say(why, why)
            self._paused = time.monotonic() + _PAUSE_S
            return False

    def _listen(self, *, wanted: bool) -> None:
        """Let new connections wake us, where another one can be accepted; or none."""
        wanted = wanted and self._newcomers.accepts()
        for fd in self._listeners:
            if wanted == (fd in self._heard):
                continue
            if fd in self._heard:
                self._heard.remove(fd)
                self._poll.unregister(fd)
            else:
                self._heard.add(fd)
                self._poll.register(fd, select.EPOLLIN)

    def _give_buffers(self) -> bool:
        """Give buffers to newcomers, by turns of the users; whether there are more of both."""
        for user in self.users.refusing():
            self._tell_refused(user)
        more = True
        for _ in range(_BUFFERS_AT_ONCE):
            newcomer = self._newcomers.next(crowded=self._is_crowded) if self._free else None
            if newcomer is None:
                more = False
                break
            self._admit(newcomer)
        if self._is_succeeded:
            self._newcomers.hold()
        return more

    @property
    def _is_crowded(self) -> bool:
        """Whether only users with fewer connections than others get buffers."""
        return self.users.connections >= self.users.most and len(self._free) <= _RESERVED

    def _admit(self, newcomer: Newcomer) -> None:
        """Give it a buffer."""
        number, head = self._open(newcomer.sender)
        connection = Connection(number, head, newcomer.sock, newcomer.user)
        connection.is_held = newcomer.is_held and self._is_succeeded
        if connection.is_held:
            self._store.renumber(newcomer.number, number)
        self._begin(connection)
        self._relieve()

    def _open(self, sender: tuple[int, int, int, int]) -> tuple[int, Address]:
        """(number, head) of a buffer that was free."""
        number = heapq.heappop(self._free)
        self._buffers.use(number)
        head = self._buffers.head(number)
        connection_buffer.open_counted(self._counts, head, *sender)
        return number, head

    def _tell_refused(self, user: User) -> None:
        """Have the log say that newcomers of a user were refused."""
        if len(self._free) <= _RESERVED or not _may_offer(user):
            return
        if self.users.connections < self.users.most:
            self._refusals.hurry(user)
        else:
            self._refusals.crowd(user, self.users.most)
        kind, (refused, sender) = next(iter(user.refused.items()))
        number, head = self._open(sender)
        count = min(refused, MAX_BURST, self._buffers.room // ROW_BYTES)
        del user.refused[kind]
        if refused > count:
            user.refuse(sender, refused - count)
        connection_buffer.offer(head, 0, 0, count - 1, 0, int(Reason.USER_LIMIT))
        connection_buffer.count_accepted(self._counts, head, count - 1)
        self._is_offering = True
        self._wait_for(Connection(number, head, None, user))

    @property
    def _is_succeeded(self) -> bool:
        """Whether a successor goes on with the connections; at the end no process attends to the store."""
        return self.giving_way or not self.stopping

    def _begin(self, connection: Connection) -> None:
        """Receive from a connection that has a buffer."""
        assert connection.sock
        fd = connection.sock.fileno()
        self._connections[fd] = connection
        self.users.count(connection.user, 1)
        connection.readable = _may_offer(connection.user)
        self._go_on(connection)
        if fd not in self._connections or connection.is_over:
            # A message or two, and the end: neither epoll nor the store has to know of it.
            return
        # By edges: a connection that waits for its run does not wake us all the time.
        self._poll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        connection.is_watched = True
        if not connection.is_held and self._is_succeeded:
            self._store.keep(connection.number, connection.sock)
            connection.is_held = True

    def _take_over(self) -> None:
        """Go on with the buffers of the one before, and with those connections that are left."""
        held = self._store.take_over()
        heads = [self._buffers.head(number) for number in range(self._buffers.used)]
        connection_buffer.settle(self._shared.words[Field.CONNECTIONS :], heads)
        for number, head in enumerate(heads):
            if connection_buffer.kind_of(head) == connection_buffer.FREE:
                continue
            self._free.remove(number)
            # One that is ended is closed, as it was to be.
            sock = None if connection_buffer.is_ended(head) else held.pop(number, None)
            uid = uid_of(sock) if sock else connection_buffer.uid_of(head)
            connection = Connection(number, head, sock, self.users.enter(uid))
            connection.is_held = sock is not None
            self._memory.adopt(connection)
            (self._begin if connection.sock else self._go_on)(connection)
        for number, sock in held.items():
            if number >= MOST_BUFFERS:
                self._newcomers.adopt(number, sock)
            else:
                end(sock)
                self._store.drop(number)
        self._relieve()

    # -- receiving --------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        """Receive what may be there, outside of the user's turn."""
        connection.readable = True
        if not connection.waiting and not connection.starved:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Offer what is whole; receive when nothing is. One that is over loses its buffer."""
        self._ready.discard(connection.user, connection)
        while not self._is_waiting(connection):
            if connection_buffer.is_ended(connection.head):
                self._close(connection)
                return
            if self._offer(connection):
                self._wait_for(connection)
                return
            if connection.sock is None or connection.is_over:
                self._close(connection)
                return
            if not connection.readable:
                self._rest(connection)
                return
            if not self._memory.make_room(connection):
                self._refusals.say("memory", "senders on streams wait: there is no memory to receive into")
                put(connection, connection.user.starved)
                self._starving = True
                return
            self._take_in(connection, connection.sock.fileno())

    def _rest(self, connection: Connection) -> None:
        """All that came is received: the next bytes are its sender's to send."""
        user, got = (
            connection.user,
            int(connection_buffer.filled(connection.head) - connection_buffer.consumed(connection.head)),
        )
        if connection.grant and got < connection.least:
            self._memory.turn_over(connection)
        if not got:
            put(connection, user.idle)
        elif connection.among is not user.unfinished:
            put(connection, user.unfinished)
            connection.begun = connection.came = self._intake.now()
        elif got != connection.got:
            connection.came = self._intake.now()
        connection.got = got

    def _take_in(self, connection: Connection, fd: int) -> None:
        """Receive once, into the room that there is; twice where that may find a new one's end.

        To its sender the close says that all is in the log: it comes when what was received is taken.
        """
        got = self._memory.receive(connection, fd)
        if (
            got > 0
            and not connection.is_watched
            and connection_buffer.filled(connection.head) < connection.room
        ):
            got = self._memory.receive(connection, fd)
            connection.is_over = got == 0
        if connection.is_over:
            return
        if got == -errno.EAGAIN:
            connection.readable = False
        elif got < 0 and got != -errno.EINTR and not connection.has_failed:
            # recvmmsg tells of an error before the bytes that came, which are still there: then it is over.
            connection.has_failed = True
            connection_buffer.count_error(self._counts, connection.head)
        elif got <= 0 and got != -errno.EINTR:
            self._disconnect(connection)

    def _is_waiting(self, connection: Connection) -> bool:
        """Whether it offers a run of a predecessor, or has offered one."""
        if not connection.waiting and connection_buffer.waits(connection.head):
            self._wait_for(connection)
        return connection.waiting

    def _wait_for(self, connection: Connection) -> None:
        """It offers a run."""
        put(connection, None)
        self._ready.discard(connection.user, connection)
        self._waiting[connection.number], connection.waiting = connection, True
        self._offers[connection.number] = True
        head = connection.head
        held = int(connection_buffer.filled(head) - connection_buffer.consumed(head))
        connection.offered = Offered(1, int(connection_buffer.messages(head)), held)
        connection.user.offered.add(connection.offered)

    def _look_at_taken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._buffers.bells.taken)
        for number in self._buffers.list_taken(self._offers):
            connection = self._waiting.pop(number)
            connection.waiting = False
            connection.user.offered.add(connection.offered, -1)
            if connection.sock is None or connection.is_over or connection_buffer.is_ended(connection.head):
                # Another connection gets its buffer next.
                self._go_on(connection)
            else:
                self._ready.add(connection.user, connection)

    def _offer(self, connection: Connection) -> bool:
        """Offer whole messages, or what ends the connection; whether there was anything to offer."""
        head, begin, end = (
            connection.head,
            connection_buffer.consumed(connection.head),
            connection_buffer.filled(connection.head),
        )
        until, count, reason = self._memory.cut(connection, begin, end)
        if not count and not reason and (connection.sock is None or connection.is_over) and end > begin:
            reason = int(Reason.UNCLEAN)
        if not count and not reason:
            return False
        if reason:
            at = Address(self._memory.side(connection) + until)
            self._refusals.refuse(connection.user, reason, at)
            self._disconnect(connection, reason)
        connection_buffer.offer(head, begin, until, count, end - until if reason else 0, reason)
        self._is_offering = True
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
                victim = self.users.greediest(user, self._intake.now() - GRACE_S)
                if victim is None:
                    break
                if self._stays(victim):
                    self._refusals.give_up(victim)
                    self._expel(victim, Reason.USER_LIMIT)
        self._starving = bool(self.users.hungry())

    def _look_for_late(self) -> None:
        """End connections whose message does not come."""
        self._look_at = self._intake.now() + _LOOK_S
        for connection in self.users.late(self._intake.now()):
            # It may have come while this process stood still.
            if self._stays(connection) and is_late(connection, self._intake.now()):
                self._refusals.give_up_waiting(connection)
                self._expel(connection, Reason.TOO_SLOW)
        # While all of them waited for the log, none could go.
        self._relieve()

    def _relieve(self) -> None:
        """Have no more connections than there may be."""
        while victim := self.users.crowding():
            if self._stays(victim):
                self._refusals.crowd(victim.user, self.users.most)
                self._expel(victim, Reason.USER_LIMIT)

    def _stays(self, connection: Connection) -> bool:
        """Receive what may be there; whether a connection is idle, or unfinished, all the same."""
        among = connection.among
        self._receive(connection)
        return connection.among is among

    def _expel(self, connection: Connection, reason: Reason) -> None:
        """End a connection that offers nothing, with what it has begun."""
        head, begin = connection.head, int(connection_buffer.consumed(connection.head))
        tail = min(int(connection_buffer.filled(head)) - begin, SAMPLE_BYTES)
        # The run first: the successor of a worker that is killed here finds why the connection ended.
        connection_buffer.offer(head, begin, begin, 0, tail, int(reason))
        self._is_offering = True
        self._disconnect(connection, int(reason))
        # It may be taken by now; the bell that says so has not been heard.
        self._wait_for(connection)
        self._memory.cut_off(connection, begin)

    # -- ending -----------------------------------------------------------------------------------------

    def _disconnect(self, connection: Connection, reason: int = 0) -> None:
        """The connection is gone; its buffer is not. `reason`: the Reason that its client hears."""
        if connection.sock is None:
            return
        if connection.is_watched:
            self._poll.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        end(connection.sock, reason)
        connection.sock = None
        self.users.count(connection.user, -1)
        if connection.is_held and self._is_succeeded:
            self._store.drop(connection.number)

    def _close(self, connection: Connection) -> None:
        """All of it is taken: its buffer is free."""
        self._disconnect(connection)
        self._memory.free(connection)
        connection_buffer.free_counted(self._counts, connection.head)
        heapq.heappush(self._free, connection.number)


def _may_offer(user: User) -> bool:
    """Whether a user may have another run that waits to be taken."""
    return not user.offered.is_enough
