"""What the stream worker says of refused senders in the log: who, and by which limit; not again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from ingest.users import PATIENCE_S, QUIET_S, Connection, User
from spool.wire import Reason, load_be32

log = logging.getLogger("bruce.stream")

_QUIET_S = 30.0
"""Between two lines about the same thing."""
_MOST = 64
"""Different things in that time: a host may have many users."""


class Said:
    """The lines of one stream worker."""

    def __init__(self, limit: int) -> None:
        """`limit`: of a message, in bytes."""
        self._limit = limit
        self._said: dict[Hashable, float] = {}

    def say(self, what: Hashable, text: str) -> None:
        """Log a text, but not about the same again within a while."""
        now = time.monotonic()
        if what in self._said or len(self._said) >= _MOST:
            self._said = {what: when for what, when in self._said.items() if now - when < _QUIET_S}
        if what not in self._said and len(self._said) < _MOST:
            self._said[what] = now
            log.warning("%s", text)

    def refuse(self, user: User, reason: int, at: int) -> None:
        """A connection ends for what it sent, which is at this address."""
        if reason in (Reason.TLS, Reason.HTTP):
            name = Reason(reason).name
            self.say(reason, f"somebody speaks {name} to [ingest] tcp_port; it takes bare messages")
        elif reason == Reason.BAD_SIZE:
            self._end(user, reason, f"a size field of {load_be32(at)}, which is less than its own 4 bytes")
        elif reason == Reason.TOO_LONG:
            limit = f"[ingest] max_stream_message_bytes is {self._limit}"
            self._end(user, reason, f"a message of {load_be32(at) - 4} bytes; {limit}")

    def crowd(self, user: User, most: int) -> None:
        """There are too many connections, and this user has most of them."""
        text = f"{user} has {user.connections} of {most} connections, more than any other user; each new one"
        self.say(("connections", user.key), f"{text} closes its oldest idle one (user_limit)")

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
