"""What each user may have of the stream worker: connections, and memory for messages that are not finished.

A user is a uid, as SO_PEERCRED has it, or all of TCP, which tells nobody apart. The rules:

Connections   When there are more than `most`, the user who has the most loses one: that which has been idle
              for longest, else its oldest message that is not finished. So a connection is closed only in
              favour of another, and a user who has fewer than the greediest always gets in.
Memory        Each line has two pages, BASE on each side. It takes more from two pools: room for many small
              messages at once, and, for a message that is larger than its room, room for all of it. A line
              does without the first when it gets none; for the second it waits. So a line that has the second
              needs nothing else to finish, and one whose messages are small waits for nothing. Half of a pool
              is for whoever comes; beyond that a user has at most a quarter. Those who wait are served by
              user, who has least first. Where all is given away (to three users or more), the user who has
              most loses its oldest message, if that began more than GRACE_S ago: one that comes as fast as
              its sender can is left alone.
Time          A message that is not finished has to come: some byte within QUIET_S, and from PATIENCE_S on
              RATE bytes a second. The time in which we do not receive does not count.

So lines take at most MOST_LINES * 2 * BASE + bytes_for() bytes of their tmpfs, beside their heads.
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from pathlib import Path

from ingest.line import TCP

BASE = 4096
ROOM = 32 << 10
"""Bytes of a side that are received into at once, where there is memory for that."""
MOST_BYTES = 192 << 20
"""Of both pools, or a quarter of the tmpfs; but at least what four of the largest messages take."""
GRACE_S, QUIET_S, PATIENCE_S = 1.0, 60.0, 60.0
RATE = 16 << 10
SHARES = 4
TCP_USER = -1


class Pool:
    """Memory to be given away."""

    def __init__(self, most: int) -> None:
        self.bytes, self.share, self.given = most, most // SHARES, 0

    def is_full(self, more: int) -> bool:
        """Whether it has not so much more."""
        return self.given + more > self.bytes

    def gives(self, has: int, more: int) -> bool:
        """Whether a user who has so much may have more of it."""
        return not self.is_full(more) and (has + more <= self.share or 2 * (self.given + more) <= self.bytes)


class User:
    """What one user has."""

    def __init__(self, key: int) -> None:
        self.key, self.connections = key, 0
        self.small = self.large = 0
        """Bytes of the pools."""
        self.idle: OrderedDict[Connection, None] = OrderedDict()
        """In the order of use."""
        self.unfinished: OrderedDict[Connection, None] = OrderedDict()
        """In the order of beginning."""
        self.starved: OrderedDict[Connection, None] = OrderedDict()
        """Those that wait for memory, in order."""

    def __str__(self) -> str:
        return "TCP" if self.key == TCP_USER else f"uid {self.key}"


class Connection:
    """One that is accepted, and its line."""

    def __init__(self, number: int, head: int, sock: socket.socket | None, user: User) -> None:
        """`sock`: None when the connection is gone, and only its line is left."""
        self.number, self.head, self.sock, self.user = number, head, sock, user
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
        self.readable = self.waiting = False

    @property
    def starved(self) -> bool:
        """Whether it waits for memory."""
        return self.among is self.user.starved


class Users:
    """All of them, and what they share."""

    def __init__(self, most: int, memory: int, side_bytes: int) -> None:
        """`most` connections, and `memory` bytes for both pools, of lines with sides of so many bytes."""
        self.most, self._side_bytes = most, side_bytes
        self.small = Pool(min(memory // SHARES, memory - SHARES * side_bytes))
        self.large = Pool(memory - self.small.bytes)
        self.connections = 0
        self._users: dict[int, User] = {}

    def enter(self, kind: int, uid: int) -> User:
        """The user of a line; `uid` counts for those of UNIX sockets."""
        key = TCP_USER if kind == TCP else uid
        return self._users.setdefault(key, User(key))

    def count(self, user: User, more: int) -> None:
        """So many more connections."""
        user.connections += more
        self.connections += more

    def forget(self, connection: Connection) -> None:
        """Its line is free, and has no memory."""
        user = connection.user
        put(connection, None)
        self.release(connection)
        if connection.least > BASE:
            self.small.given -= 2 * connection.least
            user.small -= 2 * connection.least
        if not (user.connections or user.small or user.large):
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
        """Users whose connections wait for memory, those who have least first."""
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
    """Have it among these of its user, as the newest; who has begun stays where it began."""
    user = connection.user
    if connection.among is among and among is not user.idle:
        return
    if connection.among is not None:
        del connection.among[connection]
    if among is not None:
        among[connection] = None
    connection.among = among


def bytes_for(directory: Path, side_bytes: int) -> int:
    """Bytes of both pools, for lines in this directory."""
    system = os.statvfs(directory)
    return max(min(MOST_BYTES, system.f_blocks * system.f_frsize // 4), SHARES * side_bytes)
