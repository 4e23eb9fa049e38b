"""The acknowledger: a process that takes messages on a socket of its own, and tells senders how far they are.

It does not touch the log. It passes the messages on to the datagram socket, as any program would, and then
reads the committed log for them. So the ingest worker does nothing for it, and no process waits for it.

It recognises its messages by pid and digest: the kernel gives each datagram the pid of its sender, frames
keep it, and messages that are passed on one after the other are in the log in that order. So a message in the
log that has our pid and the digest of one that was passed on is that one, and those passed on before it will
not come any more.

A reply is true, because only committed messages are read (spool.read.reader), and a message counts as
delivered by marks that are synced (spool.marks.marks). All else that this process knows is in its memory
and dies with it: then there is no reply, and the sender sends again.

Replies wait in an outbox (ingest.outbox), and the acknowledger waits for no client.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest import reply
from ingest.access import NO_ID, Rules, is_permitted
from ingest.errors import BadSocket
from ingest.outbox import Client, Outbox
from ingest.reply import WHEN_DELIVERED, WHEN_SYNCED, Status
from spool.format.batch import Topics
from spool.format.wire import MAX_DATAGRAM_BYTES, Reason, check
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.log.quotas import is_over
from spool.marks.outcomes import DELIVERED, OPEN, UNTOLD, OutcomeReader, open_outcomes
from spool.native.digest import digest
from spool.native.memory import Address, address_of
from spool.options import WhenFull
from spool.read.reader import Reader
from spool.shared.state import Field, SharedState, no_beat

log = logging.getLogger("bruce.ack")

MOST = 65_536
"""Messages that are waited for at one level; beyond that senders wait, or the user with most loses one."""
GIVE_UP_S = 30.0
"""Until a message that has not come into the log is answered as unknown."""
FINISH_S = 5.0
"""At the end, how long what was received is still passed on, should the datagram socket be full."""
LAST_S = 1.0
"""After that, how long the log is still read for it, and replies are tried."""
_BURST = 256
"""Messages taken between two looks at the log."""
_TICK_S = 0.05
"""Between two looks at the marks."""
_IDLE_S = 0.2
"""Between two looks at whether to stop."""
_FAR = 1 << 20
"""Messages of others that are rather jumped over than gone through."""
ACK_WORDS = 5
TAKEN, REPLIED, DROPPED, WAITING, REFUSED = range(ACK_WORDS)
"""Words of Field.ACK: messages taken, replies, replies without room or client, messages waited for now,
messages refused while the spool was full, or their topic was over its quota, or by a rule of [access]."""
_CREDENTIALS = struct.Struct("3I")
_TOLD_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)


@dataclass(slots=True)
class Request:
    """A message or batch that was passed on."""

    client: Client | None
    """The address to answer to; None for none, or none any more."""
    wants: int
    """Flags."""
    tag: bytes
    """The part of the reply that identifies the message."""
    first: int
    """The digest of its first message."""
    messages: int
    """How many it has: of a batch they are in the log one behind the other."""
    whole: int
    """The hash of the digests of all of them."""
    due: float
    """When it is given up."""
    uid: int = NO_ID
    """Of its sender."""

    def is_at(self, found: tuple[int, ...], at: int) -> bool:
        """Whether its messages are those with the digests `found`, from `at` on."""
        return self.first == found[at] and (
            self.messages == 1 or self.whole == hash(found[at : at + self.messages])
        )


class Acknowledger:
    """One process's hold of the acknowledgement socket. Make it after forking."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        receiver: socket.socket,
        datagram_socket: str | bytes,
        layout: Layout,
        shared: SharedState,
        *,
        bell: int,
        last_reader: bool,
        knows_delivery: bool,
        rules: Rules | None = None,
        most: int = MOST,
    ) -> None:
        """`datagram_socket`: its address. `bell`: an eventfd that rings when more is committed.

        `last_reader`: no other process keeps the socket when we stop. `knows_delivery`: that marks say what
        the broker has acknowledged. `most`: messages waited for at one level. Raises BadSocket.
        """
        self.stopping = self.giving_way = False
        self.beat: Callable[[], None] = no_beat
        self._rules = rules or Rules({})
        self.leaving: list[socket.socket] = []
        """No inputs any more, and to be emptied before anything else is taken."""
        self._receiver, self._layout, self._shared, self._bell = receiver, layout, shared, bell
        self._last_reader, self._knows_delivery, self._most = last_reader, knows_delivery, most
        self._onward = _connect(datagram_socket)
        self._pid = os.getpid()
        self._buffer = np.zeros(MAX_DATAGRAM_BYTES + 1, np.uint8)
        self._view = self._buffer.data
        self._reader = Reader(SegmentList(layout), Topics())
        self._reader.seek(self._written())
        self._held: tuple[bytes, Request | None] | None = None
        """Received, while the datagram socket has no room for it."""
        self._passed: deque[Request] = deque()
        """In the order in which they will be in the log."""
        self._synced: dict[int, Request] = {}
        """By sequence, a batch by that of its first message: requests to answer when delivered."""
        self._awaited = 0
        """How many messages these have."""
        self._of: dict[int, dict[int, None]] = {}
        """Their sequences by uid."""
        self._outcomes: OutcomeReader | None = None
        self._inode, self._looked = 0, 0.0
        self._outbox = Outbox(receiver)
        self._counted = self._words()[REPLIED : DROPPED + 1].copy()

    def run(self) -> None:
        """Take, pass on and answer until END; then refuse senders, and finish the messages that were taken.

        One that gives way, or whose socket another process keeps, refuses no sender and takes no more.
        """
        while not self.stopping:
            self.beat()
            self.step()
            self._wait()
        empties = self._last_reader and not self.giving_way
        if empties:
            self._receiver.shutdown(socket.SHUT_RD)
        latest = time.monotonic() + FINISH_S
        while (self._held or (empties and self._take())) and time.monotonic() < latest:
            self._follow()
            self._pass_on_held()
            if self._held:
                self._wait()
        deadline = time.monotonic() + LAST_S
        while (self._passed or self._outbox) and time.monotonic() < deadline:
            self._wait()
            self._follow()
            self._outbox.retry()
        self._look()
        self.close()

    def step(self) -> None:
        """Do what can be done without waiting."""
        self._pass_on_held()
        self._take()
        self._follow()
        self._tick()
        self._outbox.retry()

    def close(self) -> None:
        """Let go of everything but the socket."""
        self._outbox.close()
        self._onward.close()
        self._reader.close()
        if self._outcomes:
            self._outcomes.close()

    def _wait(self) -> None:
        """Until something comes, or the next look at the marks is due."""
        poll = select.poll()
        if self._passed:
            poll.register(self._bell, select.POLLIN)
        if self._held:
            poll.register(self._onward, select.POLLOUT)
        elif len(self._passed) < self._most and not self.stopping:
            poll.register(self._receiver, select.POLLIN)
        wait = _TICK_S if self._passed or self._synced else _IDLE_S
        due = self._outbox.due()
        poll.poll(1000 * (wait if due is None else min(wait, due)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    # -- taking -----------------------------------------------------------------------------------------

    def _take(self) -> bool:
        """Receive what is there, or as much as may wait; False when there was nothing."""
        for taken in range(_BURST):
            if self._held or len(self._passed) >= self._most:
                return taken > 0
            try:
                size, client, sender = self._receive()
            except BlockingIOError:
                return taken > 0
            self._accept(self._view[:size], client, sender)
        return True

    def _receive(self) -> tuple[int, Client | None, tuple[int, int]]:
        """(bytes, client, its uid and gid)."""
        while self.leaving:
            try:
                return self._receive_from(self.leaving[0])
            except BlockingIOError:
                self.leaving = self.leaving[1:]
        return self._receive_from(self._receiver)

    def _receive_from(self, one: socket.socket) -> tuple[int, Client | None, tuple[int, int]]:
        size, told, _, client = one.recvmsg_into([self._view], _TOLD_BYTES, socket.MSG_DONTWAIT)
        # A reply that came here by a path that leads here is not answered again, and again.
        return size, None if client == one.getsockname() else client, _sender_in(told)

    def _accept(self, datagram: memoryview, client: Client | None, sender: tuple[int, int]) -> None:
        """Pass a message on, and refuse what will not be stored. Malformed ones are counted where all are."""
        self._count(TAKEN)
        wants, crc32 = reply.read_flags(datagram), zlib.crc32(datagram)
        reply.clear_flags(datagram)
        reason = self._judge(datagram)
        messages = [datagram] if reason else reply.list_messages(datagram)
        marked = reply.tag(0 if reason else reply.read_timestamp(messages[0]), len(datagram), crc32)
        due = time.monotonic() + GIVE_UP_S
        digests = tuple(map(digest, messages))
        known = digests[0], len(digests), hash(digests)
        request = Request(_answerable(client), wants, marked, *known, due, sender[0])
        if reason:
            self._answer(request, Status.DISCARDED, reason=reason)
            self._pass_on(datagram, None)
        elif refusal := self._refusal(len(datagram), messages, *sender):
            self._count(REFUSED)
            self._answer(request, Status.DISCARDED, reason=refusal)
        else:
            self._pass_on(datagram, request)

    def _refusal(self, size: int, messages: list[memoryview], uid: int, gid: int) -> int:
        """The Reason for which well-formed messages, `size` bytes in the buffer, are not passed on; 0: none.

        The log would not have them, and others would wait behind them in vain.
        """
        words = self._shared.words
        if self._rules.address and not self._permits(size, messages, uid, gid):
            # It would be let in with our name.
            return Reason.NOT_PERMITTED
        if words[Field.FULL] and words[Field.WHEN_FULL] != WhenFull.BLOCK:
            return Reason.SPOOL_FULL
        if words[Field.QUOTAS] and any(is_over(words, bytes(reply.read_topic(one))) for one in messages):
            return Reason.OVER_QUOTA
        return 0

    def _permits(self, size: int, messages: list[memoryview], uid: int, gid: int) -> bool:
        """Whether the sender may write all of these, the last of the `size` bytes in the buffer."""
        at = address_of(self._buffer) + size - sum(map(len, messages))
        for message in messages:
            if not is_permitted(self._rules.address, Address(at), uid, gid):
                return False
            at += len(message)
        return True

    def _judge(self, datagram: memoryview) -> int:
        """The Reason for which this will not be stored; 0 for none."""
        if len(datagram) > MAX_DATAGRAM_BYTES:
            return Reason.TRUNCATED
        return check(address_of(self._buffer), len(datagram))

    def _pass_on(self, datagram: memoryview | bytes, request: Request | None) -> None:
        """Send it to where all messages go; wait for it to come into the log, if it will."""
        if not self._passed and not self._held:
            self._jump()
        try:
            self._onward.send(datagram)
        except BlockingIOError:
            self._held = bytes(datagram), request
            return
        self._held = None
        if request:
            self._passed.append(request)

    def _pass_on_held(self) -> None:
        if self._held:
            self._pass_on(*self._held)

    # -- following the log ------------------------------------------------------------------------------

    def _written(self) -> int:
        """Nothing that is passed on from now on has a lower sequence."""
        return int(self._shared.words[Field.WRITTEN_SEQUENCE])

    def _jump(self) -> None:
        """Skip messages that were written while no client waited."""
        written = self._written()
        if written - self._reader.sequence > _FAR:
            self._reader.seek(written)
        self._reader.sequence = max(written, self._reader.sequence)

    def _follow(self) -> None:
        """Find what was passed on in what is committed."""
        if not self._passed:
            return
        self._reader.allow(*self._shared.place(Field.SYNCED))
        while self._passed and (batch := self._reader.next()) is not None:
            rows = np.flatnonzero(batch.pid == self._pid).tolist()
            found, at = tuple(digest(batch.datagram(row)) for row in rows), 0
            while at < len(rows):
                at += self._find(int(batch.sequence[rows[at]]), found, at)
        self._reader.take_damage()

    def _find(self, first: int, found: tuple[int, ...], at: int) -> int:
        """Messages of ours are committed, with the digests `found`; how many from `at` on are one request.

        `first`: the sequence of the one at `at`.
        """
        request = next((one for one in self._passed if one.is_at(found, at)), None)
        if request is None:
            return 1
        while (passed := self._passed.popleft()) is not request:
            self._answer(passed, Status.UNKNOWN)
        self._take_in(request, first)
        return request.messages

    def _take_in(self, request: Request, first: int) -> None:
        """A request is committed, from the sequence `first` on."""
        if request.wants & WHEN_SYNCED:
            self._answer(request, Status.SYNCED, sequence=first)
        if not request.client or not request.wants & WHEN_DELIVERED:
            return
        if not self._knows_delivery:
            self._answer(request, Status.UNKNOWN, sequence=first)
            return
        while self._synced and self._awaited + request.messages > self._most:
            # One sender's messages do not push out another's.
            most: dict[int, None] = max(self._of.values(), key=len)
            oldest = next(iter(most))
            self._answer(self._let_go(oldest), Status.UNKNOWN, sequence=oldest)
        self._synced[first] = request
        self._awaited += request.messages
        self._of.setdefault(request.uid, {})[first] = None

    def _let_go(self, sequence: int) -> Request:
        """Wait no longer for this one to be delivered."""
        request = self._synced.pop(sequence)
        self._awaited -= request.messages
        mine = self._of[request.uid]
        del mine[sequence]
        if not mine:
            del self._of[request.uid]
        return request

    def _tick(self) -> None:
        """Every _TICK_S: look at the marks, give up late requests, and update the counts."""
        now = time.monotonic()
        if now - self._looked < _TICK_S:
            return
        self._looked = now
        self._look()
        for request in self._passed:
            if request.due > now:
                break
            # It keeps its place: should it still come, it is not taken for a later one.
            self._answer(request, Status.UNKNOWN)
            request.client = None
        if len(self._passed) >= self._most:
            while self._passed and self._passed[0].due <= now:
                self._passed.popleft()
        words = self._words()
        words[REPLIED] = self._counted[0] + self._outbox.sent
        words[DROPPED] = self._counted[1] + self._outbox.dropped
        words[WAITING] = len(self._passed) + len(self._synced) + len(self._outbox)

    # -- following the marks ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Answer for what is resolved by now."""
        if not self._synced:
            return
        self._shared.want_marks(Field.ACK_WANTS_MARKS_NS)
        if not self._open_fates():
            return
        assert self._outcomes
        firsts = np.fromiter(self._synced, np.int64, len(self._synced))
        counts = np.array([request.messages for request in self._synced.values()])
        starts = np.cumsum(counts) - counts
        outcomes = self._outcomes.of(np.arange(counts.sum()) + np.repeat(firsts - starts, counts))
        is_open = np.add.reduceat(outcomes == OPEN, starts) > 0
        for row in np.flatnonzero(~is_open).tolist():
            sequence, found = int(firsts[row]), outcomes[starts[row] :][: counts[row]]
            request = self._let_go(sequence)
            given_up = found[(found != DELIVERED) & (found != UNTOLD)]
            if len(given_up):
                self._answer(request, Status.DISCARDED, sequence=sequence, reason=int(given_up[0]))
            elif (found == DELIVERED).all():
                self._answer(request, Status.DELIVERED, sequence=sequence)
            else:
                self._answer(request, Status.UNKNOWN, sequence=sequence)

    def _open_fates(self) -> bool:
        """Read the marks that are there now: a deliverer that cannot read them begins others."""
        try:
            inode = (self._layout.delivery / "data.mdb").stat().st_ino
        except FileNotFoundError:
            return False
        if self._outcomes and inode != self._inode:
            self._outcomes.close()
            self._outcomes = None
        if not self._outcomes:
            self._outcomes, self._inode = open_outcomes(self._layout), inode
        return self._outcomes is not None

    # -- answering --------------------------------------------------------------------------------------

    def _answer(self, request: Request, status: Status, *, sequence: int = -1, reason: int = 0) -> None:
        """Send a reply, if one is wanted."""
        if not request.client or not request.wants & (WHEN_SYNCED | WHEN_DELIVERED):
            return
        said = reply.encode(status, request.tag, sequence=sequence, reason=reason)
        self._outbox.send(request.client, said, request.uid)

    def _count(self, which: int) -> None:
        self._words()[which] += 1

    def _words(self) -> npt.NDArray[np.int64]:
        return self._shared.words[Field.ACK :][:ACK_WORDS]


def _connect(address: str | bytes) -> socket.socket:
    onward = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        onward.connect(address)
    except OSError as error:
        onward.close()
        raise BadSocket(f"messages cannot be passed on to {address!r}: {error.strerror or error}") from error
    onward.setblocking(False)
    return onward


def _sender_in(told: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """(uid, gid) of the sender of a datagram, from its control messages."""
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            _, uid, gid = _CREDENTIALS.unpack(data)
            return uid, gid
    return NO_ID, NO_ID


def _answerable(client: Client | None) -> Client | None:
    """The address to answer to; None when there is none, or one that means something else to us."""
    if isinstance(client, bytes):
        return client or None
    return client if client and client.startswith("/") else None
