"""The memory of lines: what of their sides is reserved, by what their users may have (ingest.users)."""

from __future__ import annotations

import ctypes

from ingest import line
from ingest.lines import Lines
from ingest.users import BASE, Connection, Users
from spool.format import SAMPLE_BYTES
from spool.kernel import function_address


class LineMemory:
    """Of the lines of one stream worker, which alone reserves it and gives it back."""

    def __init__(self, lines: Lines, users: Users) -> None:
        self._lines, self._users = lines, users
        libc = ctypes.CDLL(None)
        self._recvmmsg = function_address(libc.recvmmsg)
        self._errno = function_address(libc["__errno_location"])

    def adopt(self, connection: Connection) -> None:
        """Take over what a line of a predecessor has."""
        head, lines, number = connection.head, self._lines, connection.number
        end, side = int(line.filled(head)), int(line.side_of(head))
        self._users.furnish(connection)
        if end > connection.least:
            # What has begun there was given all of its memory.
            self.cut(connection, int(line.consumed(head)), end)
            self._users.give(connection, self._users.wanted(max(connection.size, end)))
        connection.room = self._users.wanted(end)
        lines.give_back(number, side, max(connection.least, connection.grant))
        lines.give_back(number, 1 - side, connection.least)

    def side(self, connection: Connection) -> int:
        """The address of what it receives into."""
        return self._lines.side(connection.number, int(line.side_of(connection.head)))

    def receive(self, connection: Connection, fd: int) -> int:
        """Receive once, into the room that there is: bytes, or a negative errno."""
        side = self.side(connection)
        return int(line.receive(connection.head, fd, side, connection.room, self._recvmmsg, self._errno))

    def cut(self, connection: Connection, begin: int, end: int) -> tuple[int, int, int]:
        """Where whole messages in [begin, end) end, how many, and the Reason of what is behind."""
        limit, kind, room = self._lines.limit, line.kind_of(connection.head), self._lines.room
        until, count, reason, size = line.cut(self.side(connection), begin, end, limit, kind, room)
        connection.size = int(size)
        return until, count, reason

    def make_room(self, connection: Connection) -> bool:
        """Have memory to receive into, behind what is there; False when there is none now."""
        if line.consumed(connection.head) and not self.turn_over(connection):
            return False
        end = int(line.filled(connection.head))
        if connection.room > end:
            return True
        self._users.furnish(connection)
        if end >= connection.least and not self._users.grant(connection, self._users.wanted(connection.size)):
            return False
        # As it comes: a size field is easily written.
        room = max(connection.least, min(2 * end, connection.grant))
        side = int(line.side_of(connection.head))
        if not self._lines.reserve(connection.number, side, connection.room, room):
            return False
        connection.room = room
        return True

    def turn_over(self, connection: Connection) -> bool:
        """Bring what is not consumed to the other side, and give back what a message took.

        False, with nothing changed, when there is no memory for it.
        """
        head, lines, number = connection.head, self._lines, connection.number
        side, left = int(line.side_of(head)), int(line.filled(head)) - int(line.consumed(head))
        room = max(connection.least, self._users.wanted(left))
        if not lines.reserve(number, 1 - side, 0, room):
            return False
        line.turn_over(head, lines.side(number, side), lines.side(number, 1 - side))
        if connection.room > connection.least:
            lines.give_back(number, side, connection.least)
        if left <= connection.least:
            self._users.release(connection)
        connection.room = room
        return True

    def free(self, connection: Connection) -> None:
        """Its line needs none any more."""
        for side in range(2):
            self._lines.give_back(connection.number, side, 0)
        self._users.forget(connection)

    def cut_off(self, connection: Connection, begin: int) -> None:
        """It is over: nothing behind the sample of what lies from `begin` on is needed."""
        behind = (begin + SAMPLE_BYTES + BASE - 1) & -BASE
        if connection.room > behind:
            self._lines.give_back(connection.number, int(line.side_of(connection.head)), behind)
        self._users.release(connection)
