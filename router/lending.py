"""Lending delivery to a job, for whoever owns `delivery/`, while nothing is handed over to Kafka here.

The marks keep their one writer: a job gets the right to send, and what it delivered is taken over as it
comes. So watermarks move, the status is right and delivered segments can go while it works; and when it dies
the owner has everything that it finished, and goes on from there.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from router.adoption import Adoption
from spool.crash_point import reach
from spool.disk import make_directory
from spool.frame import SEQUENCE
from spool.index import read_committed
from spool.layout import Layout
from spool.lease import Ask, Claims, Grant, read_grant, write_grant

_log = logging.getLogger("bruce.router")


def has_work(layout: Layout, claims: Claims) -> bool:
    """Whether a job asks for delivery, or one before has left something."""
    grant = read_grant(layout)
    return bool(claims.current() or (grant and grant.lent) or any(layout.outcomes.glob("*")))


class Lender:
    """The owner's answers. It starts a thread: make it after forking."""

    def __init__(self, layout: Layout, claims: Claims, adoption: Adoption) -> None:
        self._layout, self._claims, self.adoption = layout, claims, adoption
        self.settled = False
        """Whether what jobs have left is in the marks. Until then whoever delivers would send it again."""

    def step(self) -> Ask | None:
        """Lend, take back and take over what is due; the job that delivers now. Raises OSError."""
        ask, grant = self._claims.current(), read_grant(self._layout)
        if grant and grant.lent and (ask is None or ask.token != grant.token):
            # First: who was taken for dead and lives must know before others send what it has not finished.
            grant = dataclasses.replace(grant, lent=False)
            self._end(grant)
            reach("lend.ended")
        lent = ask is not None and grant is not None and grant.token == ask.token
        # Before the next job looks for what is open.
        self.settled = self.adoption.step(ask.token if ask and lent else "")
        if ask and not lent:
            if not self.settled:
                return None
            reach("lend.settled")
            if not self._lend(ask):
                return None
            reach("lend.granted")
        return ask

    def _lend(self, job: Ask) -> bool:
        """Say so; False when the disk does not take it."""
        try:
            make_directory(self._layout.outcomes / job.token)
            write_grant(self._layout, Grant(job.token, True, time.time_ns(), self._committed()))
        except OSError as error:
            _log.error("delivery cannot be lent to process %d on %s: %s", job.pid, job.host, error)
            self._claims.refuse(job.token)
            return False
        return True

    def _end(self, grant: Grant) -> None:
        """Say that it is over, on a full disk by taking away what said that it was lent."""
        self._claims.refuse(grant.token)
        try:
            write_grant(self._layout, grant)
        except OSError:
            self._layout.grant.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the marks. What is lent stays lent: the next owner sees to it."""
        self.adoption.close()

    def _committed(self) -> int:
        """The next sequence number that is not committed; 0 in an empty spool."""
        committed = read_committed(self._layout.index)
        if committed:
            return int(committed[1][SEQUENCE])
        return self.adoption.end()
