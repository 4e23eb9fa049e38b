"""The shares of users in the stream worker: connections, and memory for messages that are not finished.

A user is a uid: by UNIX stream as SO_PEERCRED has it, by TCP as spool.native.peers has it. Connections by TCP
that their programs have closed by then have no uid: all of them are one user. The rules:

Connections   When there are more than `most`, the user with most loses one: the one that has been idle for
              longest, else its oldest message that is not finished. So a connection is closed only in
              favour of another, and a user who has fewer than the greediest always gets in.
Newcomers     A user who opens more than CONNECTS connections, and CONNECTS_A_S a second, loses those for
              which no buffer is ready.
Memory        Each buffer has two pages, BASE on each side. It takes more from two pools: room for many small
              messages at once, and, for a message that is larger than its room, room for all of it. A buffer
              does without the first when it gets none; for the second it waits. So a buffer that has the
              second needs nothing else to finish, and one with small messages waits for nothing. Half of a
              pool is for every user; beyond that a user has at most a quarter. Waiting connections are served
              by user, the user with least first. When all is given away (to three users or more), the user
              with most loses its oldest message, if that began more than GRACE_S ago: one that comes as fast
              as its sender can is left alone.
Time          A message that is not finished has to come: some byte within QUIET_S, and from PATIENCE_S on
              RATE bytes a second. The time in which we do not receive does not count.

So buffers take at most MOST_BUFFERS * 2 * BASE + bytes_for() bytes of their tmpfs, beside their heads.

`RefusalLog` warns about refused senders: which user, and by which limit; each at most once within a while.
"""

from __future__ import annotations

import ctypes
import logging
import socket
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from ingest.access import NO_ID
from ingest.buffers import connection_buffer, connection_buffers
from ingest.buffers.connection_buffers import ConnectionBuffers
from ingest.sockets.listening import BACKLOG
from spool.format.segment_format import MAX_BURST, SAMPLE_BYTES
from spool.format.wire import Reason, load_be32
from spool.native.memory import Address, function_address
from spool.storage.disk import free_bytes
from spool.throttle import Throttle
from spool.words import counted

BASE = 4096
ROOM = 32 << 10
"""Bytes of a side that are received into at once, where there is memory for that."""
MOST_BYTES = 192 << 20
"""Of both pools, or a quarter of the tmpfs; but at least what four of the largest messages take."""
GRACE_S, QUIET_S, PATIENCE_S = 1.0, 60.0, 60.0
RATE = 16 << 10
CONNECTS, CONNECTS_A_S = BACKLOG, 1000
"""New connections of a user beyond which others may be closed at once: at a time, and a second. After a pause
all that wait in the kernel's queue come at a time."""
SWEEP_S = 1.0
"""Between two looks for allowances that are full."""
SHARES = 4
Sender = tuple[int, int, int, int]
"""kind, uid, pid, gid of the process that connected, as its messages have them: none by TCP."""
log = logging.getLogger("bruce.stream")
_LINE_S = 30.0
"""Between two warnings about the same thing."""
_MOST_LINES = 64
"""Different things in that time: a host may have many users."""


class Pool:
    """Memory to be given away."""

    def __init__(self, most: int) -> None:
        self.bytes, self.share, self.given = most, most // SHARES, 0

    def is_full(self, more: int) -> bool:
        """Whether it has not so much more."""
        return self.given + more > self.bytes

    def gives(self, has: int, more: int) -> bool:
        """Whether a user with `has` bytes may have `more`."""
        return not self.is_full(more) and (has + more <= self.share or 2 * (self.given + more) <= self.bytes)


@dataclass(slots=True)
class Offered:
    """Runs that wait to be taken."""

    runs: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, other: Offered, sign: int = 1) -> None:
        """More of them; fewer with a `sign` of -1."""
        self.runs += sign * other.runs
        self.messages += sign * other.messages
        self.bytes += sign * other.bytes

    @property
    def is_enough(self) -> bool:
        """Whether they are as many as one user's may be: about those of two bursts."""
        full = self.runs >= 2 * connection_buffers.MOST_RUNS or self.messages >= 2 * MAX_BURST
        return full or self.bytes >= 2 * connection_buffers.MOST_BYTES


class Allowance:
    """How many connections a user may still open: `most` at once, and CONNECTS_A_S a second."""

    def __init__(self, most: int = CONNECTS) -> None:
        self._most = self._left = float(most)
        self._counted_at = 0.0

    def take(self, now: float, count: int = 1) -> int:
        """Count newcomers; how many of them it may open."""
        self._left, self._counted_at = self._at(now), now
        taken = min(count, int(self._left))
        self._left -= taken
        return taken

    def is_full(self, now: float) -> bool:
        """Whether a new one would say the same."""
        return self._at(now) >= self._most

    def _at(self, now: float) -> float:
        return min(self._most, self._left + (now - self._counted_at) * CONNECTS_A_S)


class User:
    """The connections and memory of one user."""

    def __init__(self, key: int, allowance: Allowance) -> None:
        self.allowance = allowance
        self.key, self.connections, self.newcomers, self.buffers = key, 0, 0, 0
        self.refused: dict[int, tuple[int, Sender]] = {}
        """By kind: newcomers that were refused, and that no run has counted yet; the last of them."""
        self.offered = Offered()
        """Of all its connections."""
        self.small = self.large = 0
        """Bytes of the pools."""
        self.idle: OrderedDict[Connection, None] = OrderedDict()
        """In the order of use."""
        self.unfinished: OrderedDict[Connection, None] = OrderedDict()
        """In the order of beginning."""
        self.starved: OrderedDict[Connection, None] = OrderedDict()
        """Those that wait for memory, in order."""

    @property
    def waited_for(self) -> int:
        """Connections whose sender has the next word: all that came was received and taken."""
        return len(self.idle) + len(self.unfinished)

    def refuse(self, sender: Sender, count: int) -> None:
        """Count refused newcomers; `sender`: of one of them."""
        kind = sender[0]
        self.refused[kind] = self.refused.get(kind, (0, sender))[0] + count, sender

    def __str__(self) -> str:
        return "TCP (user not known)" if self.key == NO_ID else f"uid {self.key}"


class Connection:
    """One that is accepted, and its buffer."""

    def __init__(self, number: int, head: Address, sock: socket.socket | None, user: User) -> None:
        """`sock`: None when the connection is gone, and only its buffer is left."""
        self.number, self.head, self.sock, self.user = number, head, sock, user
        user.buffers += 1
        self.room = 0
        """Bytes of the present side that are reserved."""
        self.least = BASE
        """Bytes of each side that it may reserve, whatever comes."""
        self.grant = 0
        """Bytes of the large pool: for the message that has begun."""
        self.size = 0
        """Of that message, its size field included; 0: not known."""
        self.among: OrderedDict[Connection, None] | None = None
        """Of its user's: idle, unfinished or starved; None while it offers a run, or is over."""
        self.begun, self.came, self.got = 0.0, 0.0, 0
        """Of a message that is not finished: when it began, when a byte came last, how many there are."""
        self.offered = Offered()
        self.readable = self.waiting = False
        self.is_held = self.is_watched = self.is_over = self.has_failed = False
        """Whether the store of descriptors has it; the kernel tells us of it; all has come; an error came."""

    @property
    def starved(self) -> bool:
        """Whether it waits for memory."""
        return self.among is self.user.starved


class Users:
    """All of them, and what they share."""

    def __init__(self, most: int, memory: int, side_bytes: int) -> None:
        """`most` connections, and `memory` bytes for both pools, of buffers with sides of so many bytes."""
        self.most, self._side_bytes = most, side_bytes
        self.small = Pool(min(memory // SHARES, memory - SHARES * side_bytes))
        self.large = Pool(memory - self.small.bytes)
        self.connections = 0
        self._users: dict[int, User] = {}
        self._allowances: dict[int, Allowance] = {}
        """Kept until they are full: a user without a connection is forgotten."""
        self._swept_at = 0.0

    def enter(self, uid: int) -> User:
        """The user of a connection; NO_ID for one that is not known."""
        found = self._users.get(uid)
        if found is None:
            found = self._users[uid] = User(uid, self._allowances.setdefault(uid, Allowance()))
        return found

    def sweep(self, now: float) -> None:
        """Forget the allowances that are full."""
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._allowances = {
                key: one
                for key, one in self._allowances.items()
                if key in self._users or not one.is_full(now)
            }

    def count(self, user: User, more: int) -> None:
        """So many more connections."""
        user.connections += more
        self.connections += more

    def forget(self, connection: Connection) -> None:
        """Its buffer is free, and has no memory."""
        user = connection.user
        put(connection, None)
        self.release(connection)
        if connection.least > BASE:
            self.small.given -= 2 * connection.least
            user.small -= 2 * connection.least
        user.buffers -= 1
        self.leave(user)

    def leave(self, user: User) -> None:
        """Forget a user who has nothing any more."""
        if not (user.buffers or user.newcomers or user.refused):
            self._users.pop(user.key, None)

    # -- memory -----------------------------------------------------------------------------------------

    def furnish(self, connection: Connection) -> None:
        """Give it room for many messages at once, if there is any."""
        room, user = min(ROOM, self._side_bytes), connection.user
        if connection.least < room and self.small.gives(user.small, 2 * room):
            connection.least = room
            self.small.given += 2 * room
            user.small += 2 * room

    def wanted(self, size: int) -> int:
        """Bytes of a side that a message of `size` takes: whole pages."""
        return min((size + BASE - 1) & -BASE, self._side_bytes)

    def grant(self, connection: Connection, wanted: int) -> bool:
        """Let it have so much for its message; False when it has to wait."""
        more = wanted - connection.grant
        if more > 0 and not self.large.gives(connection.user.large, more):
            return False
        self.give(connection, max(wanted, connection.grant))
        return True

    def give(self, connection: Connection, wanted: int) -> None:
        """The same, of memory that it has in any case."""
        more = wanted - connection.grant
        connection.grant += more
        connection.user.large += more
        self.large.given += more

    def release(self, connection: Connection) -> None:
        """Its message is finished."""
        self.give(connection, 0)

    def hungry(self) -> list[User]:
        """Users whose connections wait for memory, those with least first."""
        return sorted((one for one in self._users.values() if one.starved), key=lambda one: one.large)

    def greediest(self, hungry: User, before: float) -> Connection | None:
        """When all memory is given away: the message that is to go for one of `hungry`, begun before then."""
        wanted = self.wanted(next(iter(hungry.starved)).size)
        if hungry.large + wanted > self.large.share or not self.large.is_full(wanted):
            return None
        begun = [one for user in self._users.values() for one in user.unfinished]
        old = [one for one in begun if one.grant and one.begun < before]
        found = max(old, key=lambda one: (one.user.large, -one.begun), default=None)
        return found if found and found.user.large - found.grant >= hungry.large else None

    # -- connections, and time --------------------------------------------------------------------------

    @property
    def most_of_one(self) -> int:
        """Connections of the user with most."""
        return max((one.connections for one in self._users.values()), default=0)

    def greatest(self) -> User:
        """The user with most connections, including newcomers."""
        return max(self._users.values(), key=lambda one: (one.connections + one.newcomers, one.newcomers))

    def hoards(self, user: User) -> bool:
        """Whether one keeps an equal share of all connections open without sending, or half of them."""
        return user.waited_for * max(2, len(self._users)) >= self.most

    def refusing(self) -> list[User]:
        """Users with refused newcomers that no run has counted yet."""
        return [one for one in self._users.values() if one.refused]

    def crowding(self) -> Connection | None:
        """Of too many connections, that which is to go; None when there is none that can."""
        if self.connections <= self.most:
            return None
        user = max(self._users.values(), key=lambda one: one.connections)
        return next((next(iter(some)) for some in (user.idle, user.unfinished, user.starved) if some), None)

    def late(self, now: float) -> list[Connection]:
        """Those whose message does not come."""
        return [one for user in self._users.values() for one in user.unfinished if is_late(one, now)]


def is_late(connection: Connection, now: float) -> bool:
    """Whether the message that it has begun does not come, or too slowly."""
    if connection.among is not connection.user.unfinished:
        return False
    slow = now - connection.begun > PATIENCE_S + connection.got / RATE
    return slow or now - connection.came > QUIET_S


def put(connection: Connection, among: OrderedDict[Connection, None] | None) -> None:
    """Move it to this group of its user, as the newest; within a group only an idle one moves."""
    user = connection.user
    if connection.among is among and among is not user.idle:
        return
    if connection.among is not None:
        del connection.among[connection]
    if among is not None:
        among[connection] = None
    connection.among = among


def bytes_for(directory: Path, side_bytes: int) -> int:
    """Bytes of both pools, for buffers in this directory."""
    return max(min(MOST_BYTES, free_bytes(directory)[1] // 4), SHARES * side_bytes)


class BufferMemory:
    """The memory of the buffers of one stream worker, which alone reserves it and gives it back."""

    def __init__(self, buffers: ConnectionBuffers, users: Users) -> None:
        self._buffers, self._users = buffers, users
        libc = ctypes.CDLL(None)
        self._recvmmsg = function_address(libc.recvmmsg)
        self._errno = function_address(libc["__errno_location"])

    def adopt(self, connection: Connection) -> None:
        """Take over what a buffer of a predecessor has."""
        head, buffers, number = connection.head, self._buffers, connection.number
        end, side = int(connection_buffer.filled(head)), int(connection_buffer.side_of(head))
        self._users.furnish(connection)
        if end > connection.least:
            # A message that has begun there was given all of its memory.
            self.cut(connection, int(connection_buffer.consumed(head)), end)
            self._users.give(connection, self._users.wanted(max(connection.size, end)))
        connection.room = self._users.wanted(end)
        buffers.give_back(number, side, max(connection.least, connection.grant))
        buffers.give_back(number, 1 - side, connection.least)

    def side(self, connection: Connection) -> Address:
        """The address of what it receives into."""
        return self._buffers.side(connection.number, int(connection_buffer.side_of(connection.head)))

    def receive(self, connection: Connection, fd: int) -> int:
        """Receive once, into the room that there is: bytes, or a negative errno."""
        side = self.side(connection)
        return int(
            connection_buffer.receive(connection.head, fd, side, connection.room, self._recvmmsg, self._errno)
        )

    def cut(self, connection: Connection, begin: int, end: int) -> tuple[int, int, int]:
        """(Where whole messages in [begin, end) end, how many, the Reason of the bytes behind)."""
        limit, kind, room = (
            self._buffers.limit,
            connection_buffer.kind_of(connection.head),
            self._buffers.room,
        )
        until, count, reason, size = connection_buffer.cut(
            self.side(connection), begin, end, limit, kind, room
        )
        connection.size = int(size)
        return until, count, reason

    def make_room(self, connection: Connection) -> bool:
        """Have memory to receive into, behind what is there; False when there is none now."""
        if connection_buffer.consumed(connection.head) and not self.turn_over(connection):
            return False
        end = int(connection_buffer.filled(connection.head))
        if connection.room > end:
            return True
        self._users.furnish(connection)
        if end >= connection.least and not self._users.grant(connection, self._users.wanted(connection.size)):
            return False
        # As it comes: a size field is easily written.
        room = max(connection.least, min(2 * end, connection.grant))
        side = int(connection_buffer.side_of(connection.head))
        if not self._buffers.reserve(connection.number, side, connection.room, room):
            return False
        connection.room = room
        return True

    def turn_over(self, connection: Connection) -> bool:
        """Bring what is not consumed to the other side, and give back what a message took.

        False when there is no memory for it: nothing is moved then.
        """
        head, buffers, number = connection.head, self._buffers, connection.number
        side, left = (
            int(connection_buffer.side_of(head)),
            int(connection_buffer.filled(head)) - int(connection_buffer.consumed(head)),
        )
        room = max(connection.least, self._users.wanted(left))
        if not left:
            # Also without memory for the other side: nothing of this one is read again.
            self._shrink(connection, side, left)
        if not buffers.reserve(number, 1 - side, 0, room):
            return False
        connection_buffer.turn_over(head, buffers.side(number, side), buffers.side(number, 1 - side))
        self._shrink(connection, side, left)
        connection.room = room
        return True

    def _shrink(self, connection: Connection, side: int, left: int) -> None:
        """Give back what a message took of a side, of which so many bytes go on."""
        if connection.room > connection.least:
            self._buffers.give_back(connection.number, side, connection.least)
            connection.room = connection.least
        if left <= connection.least:
            self._users.release(connection)

    def free(self, connection: Connection) -> None:
        """Its buffer needs none any more."""
        for side in range(2):
            self._buffers.give_back(connection.number, side, 0)
        self._users.forget(connection)

    def cut_off(self, connection: Connection, begin: int) -> None:
        """Give back the memory of an ended connection behind the sample that begins at `begin`."""
        behind = (begin + SAMPLE_BYTES + BASE - 1) & -BASE
        if connection.room > behind:
            self._buffers.give_back(
                connection.number, int(connection_buffer.side_of(connection.head)), behind
            )
        self._users.release(connection)


class RefusalLog:
    """The warnings of one stream worker."""

    def __init__(self, limit: int) -> None:
        """`limit`: of a message, in bytes."""
        self._limit = limit
        self._throttle = Throttle(_LINE_S)

    def say(self, what: Hashable, text: str) -> None:
        """Log a text, but not about the same again within a while."""
        if self._throttle.has_room(what, _MOST_LINES) and self._throttle.due(what):
            log.warning("%s", text)

    def refuse(self, user: User, reason: int, at: Address) -> None:
        """A connection ends for what it sent, which is at this address."""
        if reason in (Reason.TLS, Reason.HTTP):
            name = Reason(reason).name
            self.say(reason, f"a client speaks {name} to [ingest] tcp_port, which takes bare messages")
        elif reason == Reason.BAD_SIZE:
            self._end(user, reason, f"a size field of {load_be32(at)}, which is less than its own 4 bytes")
        elif reason == Reason.TOO_LONG:
            limit = f"[ingest] max_stream_message_bytes is {self._limit}"
            self._end(user, reason, f"a message of {load_be32(at) - 4} bytes; {limit}")

    def crowd(self, user: User, most: int) -> None:
        """There are too many connections, and this user has most of them."""
        count = counted(user.connections + user.newcomers, "connection")
        text = f"{user} has {count} with new ones, most of all users, who may have {most} together"
        self.say(
            ("connections", user.key), f"{text}: its oldest idle ones, or new ones, are closed (user_limit)"
        )

    def hurry(self, user: User) -> None:
        """This user connects too fast."""
        text = f"{user} opens more than {CONNECTS_A_S} connections a second, and sooner than they are served"
        self.say(("newcomers", user.key), f"{text}: new ones are closed (user_limit)")

    def give_up(self, connection: Connection) -> None:
        """There is no memory for another user, and this one has most of it."""
        user = connection.user
        text = (
            f"{user} holds {user.large} bytes of unfinished messages, more than any other user, and another"
        )
        self.say(("memory", user.key), f"{text} has no memory: its oldest one is given up (user_limit)")

    def give_up_waiting(self, connection: Connection) -> None:
        """A message does not come."""
        size = f" of {connection.size}" if connection.size else ""
        text = f"the beginning of a message, {connection.got}{size} bytes, and the rest too slowly: after"
        rule = f"{PATIENCE_S:.0f} s a minimum rate holds, and no pause may take {QUIET_S:.0f} s"
        self._end(connection.user, Reason.TOO_SLOW, f"{text} {rule}")

    def _end(self, user: User, reason: int, what: str) -> None:
        name = Reason(reason).name.lower()
        self.say((reason, user.key), f"{user} sent {what}; its connection is closed ({name})")
