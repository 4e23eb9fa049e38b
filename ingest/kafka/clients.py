"""The connections of the Kafka input: requests in, answers out, and whose connections are closed.

A client may send several requests without waiting; they are taken one after the other, and answered in their
order. Requests and answers take memory of ours: so a client with MOST_ANSWERS to come, or with UNREAD_BYTES
of them that it does not read, is not read from, and waits. The memory for requests is a pool; a user who
has its share of it waits when another needs it (`Memory`).

A connection is closed when its bytes are no request; when a request that has begun does not come (QUIET_S,
and then RATE_BYTES a second); when its client reads no answer for QUIET_S; when nothing comes for IDLE_S, as
brokers do; and, of too many connections, that which was idle longest of the user who has most.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ingest.access import NO_ID
from ingest.kafka.errors import BadRequest
from ingest.kafka.produce import write_answer
from ingest.kafka.protocol import Where, frame_of
from ingest.kafka.storing import Storing

MOST_REQUEST_BYTES = 16 << 20
RECEIVE_BYTES = 256 << 10
"""In one call."""
MOST_ANSWERS, PART_BYTES = 64, 256
UNREAD_BYTES = 1 << 20
QUIET_S, IDLE_S = 30.0, 600.0
RATE_BYTES = 16 << 10
SMALL_BYTES = 64 << 10
"""Of requests of a client, without asking for memory."""
_SIZE = struct.Struct(">i")
_TLS_HANDSHAKE = b"\x16\x03"
_received = memoryview(bytearray(RECEIVE_BYTES))
"""By the last call: memory that the processor's caches have."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one Kafka input."""

    allow_unknown: bool = False
    waits_for_delivery: bool = False


@dataclass(slots=True)
class Reply:
    """An answer that waits for its turn, or for what it says to be true."""

    data: bytes = b""
    storing: Storing | None = None
    correlation: int = 0
    version: int = 0
    not_before: float = 0.0
    """When it may be given."""
    resume_at: float = 0.0
    """When its request goes on, that had nothing to offer in its turn."""

    def encode(self) -> bytes:
        """The answer, to be sent."""
        if self.storing is None:
            return self.data
        answers = [(one.part, one.answer) for one in self.storing.parts]
        return frame_of(self.correlation, write_answer(self.version, answers))

    def is_synced(self, end: int) -> bool:
        """Whether no commit is awaited, if the log is synced up to sequence `end`: something else may be."""
        return self.storing is None or self.storing.end <= end

    @property
    def bytes(self) -> int:
        """About as many bytes as it takes."""
        return len(self.data) + (PART_BYTES * len(self.storing.parts) if self.storing else 0)


@dataclass(eq=False, slots=True)
class Client:
    """One connection."""

    sock: socket.socket
    where: Where
    options: Options
    uid: int = NO_ID
    """NO_ID if the kernel does not know it: the program has closed its end by then."""
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    replies: deque[Reply] = field(default_factory=deque)
    owed: int = 0
    """About as many bytes as these take."""
    storing: Reply | None = None
    """The request that is being stored."""
    is_over: bool = False
    """It is closed; what it sent is still stored."""
    sends_no_more: bool = False
    """It is answered, and not read from."""
    watched: int = 0
    """The events that wake us."""
    came: float = 0.0
    """When something came last, or was sent."""
    begun: float = 0.0
    """When the request began that is not there whole; 0: there is none."""
    held: int = 0
    """Bytes of the request that is being stored."""
    granted: int = 0
    """Bytes of the pool."""
    starved: bool = False
    """It waits for memory."""

    def next_frame(self) -> memoryview | None:
        """The next request, if it is there whole. Raises BadRequest."""
        if len(self.inbox) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self.inbox)
        if not 0 < size <= MOST_REQUEST_BYTES:
            if self.speaks_tls:
                raise BadRequest("the client speaks TLS: set its security.protocol to PLAINTEXT")
            raise BadRequest(f"a request of {size} bytes: expected 1 to {MOST_REQUEST_BYTES}")
        if len(self.inbox) < _SIZE.size + size:
            return None
        if len(self.inbox) == _SIZE.size + size:
            # A large one is not copied.
            frame, self.inbox = self.inbox, bytearray()
        else:
            frame = self.inbox[: _SIZE.size + size]
            del self.inbox[: _SIZE.size + size]
        self.begun = time.monotonic() if self.inbox else 0.0
        return memoryview(frame)[_SIZE.size :]

    @property
    def speaks_tls(self) -> bool:
        """Whether it begins as TLS does."""
        return self.inbox.startswith(_TLS_HANDSHAKE)

    @property
    def missing(self) -> int:
        """Bytes of the request that has begun which have not come; 0 if it is not known."""
        if len(self.inbox) < _SIZE.size:
            return 0
        (size,) = _SIZE.unpack_from(self.inbox)
        return max(0, min(size, MOST_REQUEST_BYTES) + _SIZE.size - len(self.inbox))

    @property
    def user(self) -> str:
        """The user, in words."""
        return "of an unknown user" if self.uid == NO_ID else f"of user {self.uid}"

    @property
    def may_send(self) -> bool:
        """Whether it is read from."""
        return not (
            self.is_over
            or self.sends_no_more
            or self.starved
            or self.storing
            or len(self.replies) >= MOST_ANSWERS
            or len(self.outbox) + self.owed >= UNREAD_BYTES
        )

    def owe(self, reply: Reply) -> None:
        """Answer with it, behind the others."""
        self.replies.append(reply)
        self.owed += reply.bytes

    def take_reply(self) -> Reply:
        """The first of them."""
        reply = self.replies.popleft()
        self.owed -= reply.bytes
        return reply

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing."""
        return not (self.inbox or self.outbox or self.replies or self.storing)

    def receive(self) -> bool:
        """Receive what is there, RECEIVE_BYTES at most, and of no other request than one that has begun.

        False at the connection's end, or by an error.
        """
        try:
            count = self.sock.recv_into(_received, min(self.missing, RECEIVE_BYTES) or RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        self.came = time.monotonic()
        if count and not self.inbox:
            self.begun = self.came
        self.inbox += _received[:count]
        return bool(count)

    def send(self) -> bool:
        """Send what the kernel takes; False when the connection is gone."""
        while self.outbox:
            try:
                sent = self.sock.send(self.outbox)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            self.came = time.monotonic()
            del self.outbox[:sent]
        return True

    def halt(self, now: float) -> None:
        """Its time begins again: until now it was not read from."""
        self.came, self.begun = now, now if self.begun else 0.0

    def is_late(self, now: float) -> str:
        """Why it is closed for the time that it takes; empty: it is not."""
        if self.outbox and now - self.came > QUIET_S:
            return f"it has not read an answer for {QUIET_S:.0f} s"
        if self.is_idle and now - self.came > IDLE_S:
            return "idle"
        if not self.may_send:
            # Nothing is read from it: the rest may be there.
            self.begun = now if self.begun else 0.0
        elif self.begun and now - self.begun > QUIET_S + len(self.inbox) / RATE_BYTES:
            return "the rest of a request does not come"
        return ""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Turns:
    """Clients with something to be done, by turns of their users."""

    def __init__(self) -> None:
        self._of: OrderedDict[int, OrderedDict[Client, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, client: Client) -> bool:
        return client in self._of.get(client.uid, ())

    def add(self, client: Client) -> None:
        """To have a turn behind the user's others; one that waits keeps its place."""
        self._of.setdefault(client.uid, OrderedDict())[client] = None

    def next(self) -> Client | None:
        """The next client of the next user."""
        if not self._of:
            return None
        uid, mine = next(iter(self._of.items()))
        client, _none = mine.popitem(last=False)
        self._of.move_to_end(uid)
        if not mine:
            del self._of[uid]
        return client


class Memory:
    """The pool for requests: a user may have half of it, and a quarter when it is half given away."""

    def __init__(self, most: int) -> None:
        self._most, self._given = most, 0
        self._of: dict[int, int] = {}
        self._waiting: dict[Client, None] = {}

    def grant(self, client: Client, wanted: int) -> bool:
        """Let a client have so many bytes; False when it is to wait for others."""
        more = wanted - client.granted
        if more > 0:
            has = self._of.get(client.uid, 0)
            fits = self._given + more <= self._most
            if not fits or (2 * (self._given + more) > self._most and 4 * (has + more) > self._most):
                return False
        self._given += more
        self._of[client.uid] = self._of.get(client.uid, 0) + more
        if not self._of[client.uid]:
            del self._of[client.uid]
        client.granted = wanted
        return True

    def serve(self, client: Client) -> None:
        """Let a client have the memory that it needs and no more, or have it wait: it is `starved` then."""
        wanted = client.held + len(client.inbox) + client.missing
        client.starved = not self.grant(client, wanted if wanted > SMALL_BYTES else 0)
        if client.starved:
            # Those that wait for one another would wait for ever.
            here = client.held + len(client.inbox)
            self.grant(client, min(client.granted, here if here > SMALL_BYTES else 0))
            self._waiting[client] = None
        else:
            self._waiting.pop(client, None)

    def feed(self) -> list[Client]:
        """Those that waited, and have memory now: of a user in their order, until one has to wait on."""
        fed, full = list[Client](), set[int]()
        for client in list(self._waiting):
            if client.uid in full:
                continue
            self.serve(client)
            if client.starved:
                full.add(client.uid)
            else:
                fed.append(client)
        return fed

    def forget(self, client: Client) -> None:
        """It waits for none."""
        self._waiting.pop(client, None)
