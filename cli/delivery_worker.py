"""The delivery worker of the daemon: it delivers, or lends that to a job on Spark. The marks are its own.

With `[dispatch] engine = "live"` it delivers unless a job has the lease (spool.lease); with "spark" it never
starts a producer, and takes over what jobs delivered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cli.config import Config
from cli.delivery import Delivery, Orders, Place, Progress, Report
from dispatch.errors import DispatchError
from dispatch.options import SPARK
from router.adoption import Adoption
from router.eviction import Eviction
from router.job_discards import discard_file_of
from router.lending import Lender, has_work
from router.open_counts import Report as ShareReport
from spool.catalogue import Catalogue
from spool.layout import Layout
from spool.lease import Ask, Claims
from spool.lock import Lock
from spool.reader import Reader
from spool.record import Topics
from spool.segment import Identity

log = logging.getLogger("bruce.delivery")

RETRY_S = 2.0
"""Until a producer is tried again that could not be made."""
LOOK_S = 0.1
"""Between two looks for a job that asks, or for what one has delivered."""
_NO_JOB = (
    'no job delivers, which [dispatch] engine = "spark" leaves to them: start `brucectl spark run`, '
    'or set engine = "live"'
)
_UNSETTLED = (
    "the marks cannot be written, in which what jobs have delivered is to stand: nothing is sent before, "
    "or that would be sent again; make room on the spool's disk"
)


class DeliveryWorker:
    """The owner of one spool's marks. It starts threads: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        identity: Identity,
        config: Config,
        *,
        committed: Place,
        bell: int,
        report: Report,
        give_up: Callable[[], int],
        share: ShareReport,
        latency: npt.NDArray[np.int64],
        wants_metadata: Callable[[], bool],
        page: Path,
    ) -> None:
        """The arguments are those of Delivery. Raises SpoolBusy when somebody else owns the marks."""
        self.orders = Orders(asked=self._is_asked, wants_metadata=wants_metadata)
        self._layout, self._identity, self._config = layout, identity, config
        self._committed, self._bell, self._report = committed, bell, report
        self._give_up, self._share, self._latency = give_up, share, latency
        self._page = page
        self._owner = Lock(layout.owner, "delivering")
        self._claims, self._looked_at = Claims(layout, identity.boot), 0.0

    def run(self, end: Callable[[], int]) -> None:
        """Work until told to end; when stopping, deliver up to the sequence `end()` if that is ours to do."""
        while not (self.orders.stopping or self.orders.leaving):
            self._lend()
            if not (self.orders.stopping or self.orders.leaving):
                self._deliver(end)
        self._owner.release()

    def _is_asked(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        return self._claims.current() is not None

    def _deliver(self, end: Callable[[], int]) -> None:
        try:
            delivery = self._begin()
        except DispatchError:
            # It is told as a trouble. What is missing may be a file that comes: another try in a while.
            deadline = time.monotonic() + RETRY_S
            while time.monotonic() < deadline and not self.orders.end():
                time.sleep(LOOK_S)
        else:
            delivery.run(end)

    def _begin(self) -> Delivery:
        return Delivery(
            self._layout,
            self._identity.spool,
            self._config,
            committed=self._committed,
            bell=self._bell,
            report=self._report,
            give_up=self._give_up,
            share=self._share,
            orders=self.orders,
            latency=self._latency,
            page=self._page,
        )

    def _lend(self) -> None:
        """Take over what jobs have left, and lend while one asks, or for ever where only jobs deliver."""
        spark = self._config.dispatch.engine == SPARK
        if not spark and not has_work(self._layout, self._claims):
            return
        catalogue, topics = Catalogue(self._layout), Topics()
        eviction = Eviction(Reader(catalogue, topics), self._committed, self._give_up)
        file = discard_file_of(self._config.dispatch)
        adoption = Adoption(self._layout, self._identity.spool, eviction, file=file)
        lender, before = Lender(self._layout, self._claims, adoption), None
        while not (self.orders.stopping or self.orders.leaving):
            job = lender.step()
            self._say(before, job)
            before = job
            if job is None and not spark and lender.settled:
                break
            trouble = adoption.trouble or ("" if job else _NO_JOB if lender.settled else _UNSETTLED)
            self._report(Progress(adoption.floor, [], trouble, adoption.take_counts()))
            # Whatever lies above the floor counts as open.
            self._share(adoption.floor, np.zeros(len(self._config.spool.quotas), np.int64))
            time.sleep(LOOK_S)
        lender.close()

    def _say(self, before: Ask | None, job: Ask | None) -> None:
        if (before and before.token) == (job and job.token):
            return
        if before:
            log.info("delivery is taken back from process %d on %s", before.pid, before.host)
        if job:
            log.info("delivery is lent to process %d on %s", job.pid, job.host)
