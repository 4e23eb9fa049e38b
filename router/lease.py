"""The delivery lease: a job delivers instead of the process that owns `delivery/`, which sends nothing then.

The marks keep their one writer: a job gets the right to send, and its outcomes are imported as they come. So
watermarks move, the status is right and delivered segments can go while it works. When it dies, the owner has
everything that it finished, and goes on from there.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from router.outcome_import import OutcomeImport
from spool.format.frame import SEQUENCE
from spool.index.committed import read_committed
from spool.layout import Layout
from spool.marks.lease import Claims, LeaseGrant, LeaseRequest, read_grant, write_grant
from spool.storage.disk import make_directory
from spool.storage.failpoint import reach

_log = logging.getLogger("bruce.router")


def has_work(layout: Layout, claims: Claims) -> bool:
    """Whether a job asks for delivery, or one before has left something."""
    grant = read_grant(layout)
    return bool(claims.current() or (grant and grant.lent) or any(layout.outcomes.glob("*")))


class LeaseManager:
    """Answers requests for the lease, for the owner. It starts a thread: make it after forking."""

    def __init__(
        self, layout: Layout, claims: Claims, outcome_import: OutcomeImport, *, beside_keeper: bool = False
    ) -> None:
        """`beside_keeper`: another process syncs the log, and says how far."""
        self._beside_keeper = beside_keeper
        self._layout, self._claims, self.outcome_import = layout, claims, outcome_import
        self.settled = False
        """Whether all that jobs have left is in the marks. Before, another deliverer would send it again."""

    def step(self) -> LeaseRequest | None:
        """LeaseGrant, revoke and import what is due; the job that delivers now. Raises OSError."""
        ask, grant = self._claims.current(), read_grant(self._layout)
        if grant and grant.lent and (ask is None or ask.token != grant.token):
            # First: a job that was taken for dead and lives must know before others send what it has not
            # finished.
            grant = dataclasses.replace(grant, lent=False)
            self._end(grant)
            reach("lend.ended")
        lent = ask is not None and grant is not None and grant.token == ask.token
        # Before the next job looks for what is open.
        self.settled = self.outcome_import.step(ask.token if ask and lent else "")
        if ask and not lent:
            if not self.settled:
                return None
            reach("lend.settled")
            if not self._lend(ask):
                return None
            reach("lend.granted")
        return ask

    def _lend(self, job: LeaseRequest) -> bool:
        """Grant the lease; False when the disk does not take it, or if it is not known what is committed."""
        end = self._committed()
        if end is None:
            return False
        try:
            make_directory(self._layout.outcomes / job.token)
            write_grant(self._layout, LeaseGrant(job.token, True, time.time_ns(), end))
        except OSError as error:
            _log.error("delivery cannot be lent to process %d on %s: %s", job.pid, job.host, error)
            self._claims.refuse(job.token)
            return False
        return True

    def _end(self, grant: LeaseGrant) -> None:
        """Revoke it, on a full disk by removing the file that granted it."""
        self._claims.refuse(grant.token)
        try:
            write_grant(self._layout, grant)
        except OSError:
            self._layout.grant.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the marks. A lease that was granted stays so: the next owner sees to it."""
        self.outcome_import.close()

    def _committed(self) -> int | None:
        """The next sequence number that is not committed, 0 in an empty spool; None: not known yet."""
        committed = read_committed(self._layout.index)
        if committed:
            return int(committed[1][SEQUENCE])
        end = self.outcome_import.end()
        # Beside a daemon that has just started, written is not yet synced.
        return None if end and self._beside_keeper else end
