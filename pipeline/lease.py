"""Delivery on lease: a job's driver beside a live daemon, and on a spool whose daemon is dead.

    with delivery_lease(layout) as lease:
        ...                    deliver what is committed below lease.end and not delivered
        write_outcomes(lease.outcomes, task, lease.spool, sequences, reasons)      on executors, once
                                                                                   acknowledged
        lease.check()          between stages: whether it is still ours

While it is held nobody else sends from this spool; messages go on coming in. Behind it everything that tasks
wrote down is in the marks. A live daemon takes it over as it comes; without one the driver does: at the end,
and when told to settle. It must have no marks of this spool open then. Driver and tasks run as the user or in
the group of bruce, which has to read and remove what they write.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import LeaseLost, NotLent
from router.adoption import Adoption
from router.lending import Lender
from spool.errors import SpoolBusy
from spool.identity import read_identity
from spool.layout import Layout
from spool.lease import Claim, Claims, Grant
from spool.lock import Lock
from spool.outcome_file import forget_taken
from spool.recovery import boot_id

PATIENCE_S = 60.0
"""A daemon waits some seconds for acknowledgements before it lends, and may be being started again."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class DeliveryLease:
    """Delivery from one spool, as long as nobody takes it back."""

    layout: Layout
    spool: bytes
    """Its uuid."""
    end: int
    """Messages below this sequence number were committed when delivery was lent."""
    outcomes: Path
    """Where tasks write what they delivered (spool.outcome_file). It goes when delivery is taken back: who is
    late fails, and what he delivered is sent again."""
    claim: Claim

    def check(self) -> None:
        """Raises LeaseLost when delivery was taken back: then send no more."""
        if self.claim.grant() is None:
            raise LeaseLost(
                f"delivery from {self.layout.directory} was taken back, since this job gave no sign of life: "
                "what it has written down counts; run it again for the rest"
            )

    def settle(self) -> None:
        """Take over what tasks have written down so far, where no daemon does. Raises LeaseLost, OSError.

        No task that has begun may be tried again behind it.
        """
        _own(self.layout, self.spool)
        self.check()
        forget_taken(self.outcomes)


@contextlib.contextmanager
def delivery_lease(layout: Layout, *, patience_s: float = PATIENCE_S) -> Iterator[DeliveryLease]:
    """Hold delivery from a spool; at the end, wait until what was delivered is in the marks.

    Raises NoSpool, SpoolBusy when another job delivers, NotLent when the owner of the marks does not answer
    in time: at the end everything is written down all the same, and taken over when there is an owner.
    """
    spool = read_identity(layout)
    claim = Claim(layout, boot_id())
    try:
        grant = _await_grant(layout, spool, claim, patience_s)
        yield DeliveryLease(layout, spool, grant.end, layout.outcomes / claim.token, claim)
    finally:
        claim.release()
    _await_end(layout, spool, claim, patience_s)


def _await_grant(layout: Layout, spool: bytes, claim: Claim, patience_s: float) -> Grant:
    end = time.monotonic() + patience_s
    while (grant := claim.grant()) is None:
        if time.monotonic() > end:
            raise NotLent(
                f"whoever delivers from {layout.directory} does not lend that within {patience_s:.0f} s: see "
                "`brucectl status`"
            )
        if not _own(layout, spool):
            time.sleep(LOOK_S)
    return grant


def _await_end(layout: Layout, spool: bytes, claim: Claim, patience_s: float) -> None:
    """Wait until everything in the job's directory is in the marks, and the directory is gone."""
    end = time.monotonic() + patience_s
    while (layout.outcomes / claim.token).exists():
        if time.monotonic() > end:
            raise NotLent(
                f"what was delivered from {layout.directory} stands in {layout.outcomes}, and was "
                f"not taken over within {patience_s:.0f} s: the daemon does that when it can"
            )
        if not _own(layout, spool):
            time.sleep(LOOK_S)


def _own(layout: Layout, spool: bytes) -> bool:
    """Be the owner of the marks for a moment, where no daemon is; whether that was so."""
    try:
        owner = Lock(layout.owner, "delivering", patience_s=0)
    except SpoolBusy:
        return False
    try:
        lender = Lender(layout, Claims(layout, boot_id()), Adoption(layout, spool))
        try:
            lender.step()
        finally:
            lender.close()
    finally:
        owner.release()
    return True
