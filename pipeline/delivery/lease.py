"""Delivery on lease: a job's driver beside a live daemon, and on a spool whose daemon is dead.

    with delivery_lease(layout, file=discard_file_of(options)) as lease:
        ...                    deliver what is committed below lease.end and not delivered
        write_outcomes(lease.outcomes, task, lease.spool, sequences, reasons)      on executors, once
                                                                                   acknowledged
        lease.check()          between stages: whether it is still ours

While a job holds it, no other process sends from this spool; messages go on coming in. After it, all outcomes
that tasks wrote are in the marks. A live daemon takes outcome files over as they come; without one the driver
does, at the end and at `settle`. The driver must have no marks of this spool open then. Driver and tasks run
as the user or in the group of bruce, which has to read and remove their files.

The process that takes an outcome file over writes its discards into its discard file: the daemon into that of
its own configuration, else the driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JobFailed, LeaseLost, NotLent
from router.lease import LeaseManager
from router.outcome_import import OutcomeImport
from spool.errors import SpoolBusy
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.marks.discard_file import DiscardFile
from spool.marks.lease import Claim, Claims, LeaseGrant
from spool.marks.outcome_file import forget_taken, list_outcomes
from spool.storage.lock import Lock

PATIENCE_S = 60.0
"""A daemon waits some seconds for acknowledgements before it lends, and may be being started again."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class DeliveryLease:
    """Delivery from one spool, until a daemon takes it back."""

    layout: Layout
    spool: bytes
    """Its uuid."""
    end: int
    """Messages below this sequence number were committed when the lease began."""
    outcomes: Path
    """The directory of the tasks' outcome files (spool.marks.outcome_file). The daemon removes it when it
    takes delivery back: a late task fails, and its messages are sent again."""
    claim: Claim
    file: DiscardFile | None = None
    """The file for discards, beside their counts, when no daemon takes them over."""

    def check(self) -> None:
        """Raises LeaseLost when the daemon took delivery back: then send no more."""
        if self.claim.grant() is None:
            raise LeaseLost(
                f"delivery from {self.layout.directory} was taken back, since this job gave no sign of life: "
                "what it has written down counts; run it again for the rest"
            )

    def settle(self) -> None:
        """Take over the outcome files that tasks wrote so far, when no daemon does.

        No task that has begun may be tried again after it. Raises LeaseLost, OSError, and JobFailed when the
        discard file cannot be written.
        """
        _own(self.layout, self.spool, self.file)
        self.check()
        forget_taken(self.outcomes)


@contextlib.contextmanager
def delivery_lease(
    layout: Layout, *, patience_s: float = PATIENCE_S, file: DiscardFile | None = None
) -> Iterator[DeliveryLease]:
    """Hold delivery from a spool; at the end, wait until all outcomes are in the marks.

    `file`: for discards, when there is no daemon. Raises NoSpool, SpoolBusy when another job delivers,
    NotLent when the owner of the marks does not answer in time: then the outcome files are complete all the
    same, and the next owner takes them over. Raises JobFailed when the discard file cannot be written.
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
) -> LeaseGrant:
    end = time.monotonic() + patience_s
    while (grant := claim.grant()) is None:
        if time.monotonic() > end:
            raise NotLent(
                f"the daemon of {layout.directory} does not lend delivery within {patience_s:.0f} s: see "
                "`brucectl status`"
            )
        if not _own(layout, spool, file):
            time.sleep(LOOK_S)
    return grant


def _await_taken(lease: DeliveryLease, patience_s: float) -> None:
    """Wait until everything is taken over: after the lease, discards that cannot be filed are open again."""
    _await(lambda: not list_outcomes(lease.outcomes), lease, patience_s)


def _await_end(lease: DeliveryLease, patience_s: float) -> None:
    """Wait until the job's directory is gone, with all late files in it."""
    _await(lambda: not lease.outcomes.exists(), lease, patience_s)


def _await(done: Callable[[], bool], lease: DeliveryLease, patience_s: float) -> None:
    layout, end = lease.layout, time.monotonic() + patience_s
    while not done():
        if time.monotonic() > end:
            raise NotLent(
                f"the outcomes of messages from {layout.directory} are in {layout.outcomes}, and were "
                f"not taken over within {patience_s:.0f} s: the daemon does that when it can; see `brucectl "
                "status`"
            )
        if not _own(layout, lease.spool, lease.file):
            time.sleep(LOOK_S)


def _own(layout: Layout, spool: bytes, file: DiscardFile | None) -> bool:
    """Own the marks for a moment, when there is no daemon; whether that was so.

    Raises JobFailed when discards wait for the file.
    """
    try:
        owner = Lock(layout.owner, "delivering", patience_s=0)
    except SpoolBusy:
        return False
    try:
        outcome_import = OutcomeImport(layout, spool, file=file)
        lender = LeaseManager(layout, Claims(layout, boot_id()), outcome_import)
        try:
            lender.step()
        finally:
            lender.close()
    finally:
        owner.release()
    if outcome_import.trouble:
        raise JobFailed(outcome_import.trouble)
    return True
