"""Delivery on lease: a job's driver beside a live daemon, and on a spool whose daemon is dead.

    with delivery_lease(layout, file=discard_file_of(options)) as lease:
        ...                    deliver what is committed below lease.end and not delivered
        write_outcomes(lease.outcomes, task, lease.spool, sequences, reasons)      on executors, once
                                                                                   acknowledged
        lease.check()          between stages: whether it is still ours

While it is held nobody else sends from this spool; messages go on coming in. Behind it everything that tasks
wrote down is in the marks. A live daemon takes it over as it comes; without one the driver does: at the end,
and when told to settle. It must have no marks of this spool open then. Driver and tasks run as the user or in
the group of bruce, which has to read and remove what they write.

What tasks discarded goes into the discard file of who takes it over: of the daemon by its own configuration,
else of the driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JobFailed, LeaseLost, NotLent
from router.adoption import Adoption
from router.lending import Lender
from spool.discard_file import DiscardFile
from spool.errors import SpoolBusy
from spool.identity import read_identity
from spool.layout import Layout
from spool.lease import Claim, Claims, Grant
from spool.lock import Lock
from spool.outcome_file import forget_taken, list_outcomes
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
    file: DiscardFile | None = None
    """Where discards go, beside being counted, when there is no daemon to take them over."""

    def check(self) -> None:
        """Raises LeaseLost when delivery was taken back: then send no more."""
        if self.claim.grant() is None:
            raise LeaseLost(
                f"delivery from {self.layout.directory} was taken back, since this job gave no sign of life: "
                "what it has written down counts; run it again for the rest"
            )

    def settle(self) -> None:
        """Take over what tasks have written down so far, where no daemon does.

        No task that has begun may be tried again behind it. Raises LeaseLost, OSError, and JobFailed when the
        discard file cannot be written.
        """
        _own(self.layout, self.spool, self.file)
        self.check()
        forget_taken(self.outcomes)


@contextlib.contextmanager
def delivery_lease(
    layout: Layout, *, patience_s: float = PATIENCE_S, file: DiscardFile | None = None
) -> Iterator[DeliveryLease]:
    """Hold delivery from a spool; at the end, wait until what was delivered is in the marks.

    `file`: for discards, where there is no daemon. Raises NoSpool, SpoolBusy when another job delivers,
    NotLent when the owner of the marks does not answer in time: at the end everything is written down all the
    same, and taken over when there is an owner. Raises JobFailed when the discard file cannot be written.
    """
    spool = read_identity(layout)
    claim = Claim(layout, boot_id())
    try:
        grant = _await_grant(layout, spool, claim, patience_s, file)
        lease = DeliveryLease(layout, spool, grant.end, layout.outcomes / claim.token, claim, file)
        yield lease
        _await_taken(lease, patience_s)
    finally:
        claim.release()
    _await_end(lease, patience_s)


def _await_grant(
    layout: Layout, spool: bytes, claim: Claim, patience_s: float, file: DiscardFile | None
) -> Grant:
    end = time.monotonic() + patience_s
    while (grant := claim.grant()) is None:
        if time.monotonic() > end:
            raise NotLent(
                f"whoever delivers from {layout.directory} does not lend that within {patience_s:.0f} s: see "
                "`brucectl status`"
            )
        if not _own(layout, spool, file):
            time.sleep(LOOK_S)
    return grant


def _await_taken(lease: DeliveryLease, patience_s: float) -> None:
    """Wait until everything is taken over: behind the lease, discards that cannot be filed are open again."""
    _await(lambda: not list_outcomes(lease.outcomes), lease, patience_s)


def _await_end(lease: DeliveryLease, patience_s: float) -> None:
    """Wait until the job's directory is gone, and with it what came late."""
    _await(lambda: not lease.outcomes.exists(), lease, patience_s)


def _await(done: Callable[[], bool], lease: DeliveryLease, patience_s: float) -> None:
    layout, end = lease.layout, time.monotonic() + patience_s
    while not done():
        if time.monotonic() > end:
            raise NotLent(
                f"what became of messages from {layout.directory} stands in {layout.outcomes}, and was "
                f"not taken over within {patience_s:.0f} s: the daemon does that when it can; see `brucectl "
                "status`"
            )
        if not _own(layout, lease.spool, lease.file):
            time.sleep(LOOK_S)


def _own(layout: Layout, spool: bytes, file: DiscardFile | None) -> bool:
    """Be the owner of the marks for a moment, where no daemon is; whether that was so.

    Raises JobFailed when discards wait for the file.
    """
    try:
        owner = Lock(layout.owner, "delivering", patience_s=0)
    except SpoolBusy:
        return False
    try:
        adoption = Adoption(layout, spool, file=file)
        lender = Lender(layout, Claims(layout, boot_id()), adoption)
        try:
            lender.step()
        finally:
            lender.close()
    finally:
        owner.release()
    if adoption.trouble:
        raise JobFailed(adoption.trouble)
    return True
