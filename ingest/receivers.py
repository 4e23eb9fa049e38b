"""The datagram sockets of an ingest worker: one that it waits in, or several that it takes turns at."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

from ingest.lines import Lines

_IDLE_MS = 200
"""Between two looks for what nobody rings for."""


class Receivers:
    """Those of one worker, and whatever else it waits for."""

    def __init__(self, first: socket.socket, *, last_reader: bool) -> None:
        """`last_reader`: nobody else keeps the socket when we stop."""
        self.all, self.last_of = [first], [first] if last_reader else []
        self.leaving: Sequence[socket.socket] = ()
        """No inputs any more, and to be emptied before anything else."""
        self._poll: select.poll | None = None
        """Where there is more than one thing to wait for."""
        self._streams: Lines | None = None

    def join(self, receiver: socket.socket, *, last_reader: bool) -> None:
        """Have one more."""
        self.all.append(receiver)
        self.last_of += [receiver] if last_reader else []
        self.take_turns(self._streams)

    def take_turns(self, streams: Lines | None) -> None:
        """Wait for all of them at once, and for what connections offer."""
        self._poll, self._streams = select.poll(), streams
        for one in self.all:
            self._poll.register(one, select.POLLIN)
        if streams:
            self._poll.register(streams.bells.offered, select.POLLIN)

    @property
    def takes_turns(self) -> bool:
        """Whether nobody may wait in one of them."""
        return self._poll is not None

    def wait(self) -> None:
        """Until any of what can come has come; who has one socket waits in that."""
        if self._poll:
            self._poll.poll(_IDLE_MS)
        if self._streams:
            self._streams.hush()

    def shut_down(self) -> None:
        """Refuse senders where nobody else reads; what they sent before stays readable."""
        for one in self.last_of:
            one.shutdown(socket.SHUT_RD)
