"""The delivery worker of the daemon: it delivers, or lends that to a job on Spark; it alone owns the marks.

With `[dispatch] engine = "live"` it delivers unless a job has the lease (spool.marks.lease); with "spark" it
never starts a producer, and takes over what jobs delivered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cli.config.config import Config
from cli.daemon.delivery import Delivery, Orders, Progress, ReadCommittedEnd, Report
from cli.daemon.delivery_log import DeliveryLog, room_left
from cli.daemon.footprint import let_go
from cli.status.snapshot import ROLES
from dispatch.errors import DispatchError
from dispatch.options import SPARK
from router.cluster.trouble import Cause
from router.lease import LeaseManager, has_work
from router.outcome_import import OutcomeImport
from router.outcomes.counts import Report as ShareReport
from router.outcomes.outcome_table import Eviction
from router.outcomes.rejects import discard_file_of
from spool.format.batch import Topics
from spool.format.segment import Identity
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.lease import Claims, LeaseRequest
from spool.read.reader import Reader
from spool.shared.histogram import LATENCY_WORDS
from spool.shared.state import BROKER_ROWS, BROKER_WORDS, Field, SharedState
from spool.shared.topics import read_wanted
from spool.storage.lock import Lock

log = logging.getLogger("bruce.delivery")

RETRY_S = 2.0
"""Until a producer is tried again that could not be made."""
LOOK_S = 0.1
"""Between two looks for what a job has delivered."""
ASK_S = 0.5
"""Between two looks for a job that asks, while this process delivers."""
_NO_JOB = (
    'no job delivers, which [dispatch] engine = "spark" leaves to them: start `brucectl spark run`, '
    'or set engine = "live"'
)
_UNSETTLED = (
    "the marks cannot be written, which must hold what jobs have delivered: nothing is sent before, or it "
    "would be sent again; make room on the spool's disk"
)


class DeliveryWorker:
    """The owner of one spool's marks. It starts threads: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        identity: Identity,
        config: Config,
        *,
        committed: ReadCommittedEnd,
        bell: int,
        report: Report,
        give_up: Callable[[], int],
        share: ShareReport,
        latency: npt.NDArray[np.int64],
        orders: Orders,
        shared: Path,
    ) -> None:
        """The arguments are those of Delivery. Raises SpoolBusy when another process owns the marks."""
        self.orders = orders
        orders.asked = self._is_asked
        self._layout, self._identity, self._config = layout, identity, config
        self._committed, self._bell, self._report = committed, bell, report
        self._give_up, self._share, self._latency = give_up, share, latency
        self._shared = shared
        self._owner = Lock(layout.owner, "delivering")
        self._claims, self._looked_at = Claims(layout, identity.boot), 0.0

    def run(self, end: Callable[[], int]) -> None:
        """Work until `orders` say to end; when stopping, deliver up to `end()` if no job has the lease.

        `end` returns a sequence number.
        """
        while not (self.orders.stopping or self.orders.leaving):
            self._lend()
            if not (self.orders.stopping or self.orders.leaving):
                self._deliver(end)
        self._owner.release()

    def _is_asked(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < ASK_S:
            return False
        self._looked_at = now
        return self._claims.current() is not None

    def _deliver(self, end: Callable[[], int]) -> None:
        # Here, and not before `run`: a stop that comes meanwhile still delivers what is stored.
        try:
            delivery = self._begin()
        except DispatchError:
            # The report has it as a trouble. A file that is missing may still come: try again in a while.
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
            shared=self._shared,
        )

    def _lend(self) -> None:
        """Take over what jobs have left, and lend while one asks, or for ever where only jobs deliver."""
        spark = self._config.dispatch.engine == SPARK
        if not spark and not has_work(self._layout, self._claims):
            return
        segment_list, topics = SegmentList(self._layout), Topics()
        eviction = Eviction(Reader(segment_list, topics), self._committed, self._give_up)
        file = discard_file_of(self._config.dispatch)
        outcome_import = OutcomeImport(self._layout, self._identity.spool, eviction, file=file)
        lender = LeaseManager(self._layout, self._claims, outcome_import, beside_keeper=True)
        before = None
        while not (self.orders.stopping or self.orders.leaving):
            job = lender.step()
            self._say(before, job)
            before = job
            if job is None and not spark and lender.settled:
                break
            trouble = outcome_import.trouble or ("" if job else _NO_JOB if lender.settled else _UNSETTLED)
            self._report(Progress(outcome_import.low_watermark, [], trouble, outcome_import.take_counts()))
            # Everything above the low watermark counts as open.
            self._share(outcome_import.low_watermark, np.zeros(len(self._config.spool.quotas), np.int64))
            time.sleep(LOOK_S)
        lender.close()

    def _say(self, before: LeaseRequest | None, job: LeaseRequest | None) -> None:
        if (before and before.token) == (job and job.token):
            return
        if before:
            log.info("delivery is taken back from process %d on %s", before.pid, before.host)
        if job:
            log.info("delivery is lent to process %d on %s", job.pid, job.host)


class DeliveryPage:
    """The delivery worker's part of the shared state, for `status` and others that look on."""

    def __init__(self, shared: SharedState, layout: Layout, path: Path) -> None:
        """Clear what an earlier worker wrote, if it holds only while a worker lives. `path`: of `shared`."""
        self._shared, self._path = shared, path
        self._topics_wanted = 0
        for field in (Field.TROUBLE, Field.AWAITED, Field.UNREAD):
            shared.write_text(field, "")
        self._trouble = self._awaited = self._unread = ""
        self._metadata_asked = int(shared.words[Field.METADATA_WANTED])
        self._log = DeliveryLog(lambda: room_left(layout, shared.words))

    @property
    def latency(self) -> npt.NDArray[np.int64]:
        """The histogram of latencies (spool.shared.histogram), to be added to."""
        return self._shared.words[Field.LATENCY :][:LATENCY_WORDS]

    def report(self, progress: Progress) -> None:
        """Publish what only the deliverer knows; it calls this again and again."""
        self._shared.beat(ROLES.index("delivery"))
        # A topic that may still come is no trouble.
        awaits = progress.cause is Cause.ABSENT
        self._say_trouble("" if awaits else progress.trouble)
        if (awaited := progress.trouble if awaits else "") != self._awaited:
            self._awaited = awaited
            self._shared.write_text(Field.AWAITED, awaited)
        if progress.unread != self._unread:
            self._unread = progress.unread
            self._shared.write_text(Field.UNREAD, progress.unread)
        begun = self._log.begun
        self._log.note(progress)
        if self._log.begun and not begun:
            # Of librdkafka and OpenSSL, half was to begin with.
            let_go()
        words = self._shared.words
        words[Field.LOW_WATERMARK] = progress.low_watermark
        words[[Field.DELIVERED, Field.DISCARDED]] += progress.counts
        rows = [(b.id, b.state, b.offset, b.in_flight, b.acked) for b in progress.brokers[:BROKER_ROWS]]
        if rows:
            words[Field.BROKERS + 1 :][: BROKER_WORDS * len(rows)] = np.array(rows, np.int64).ravel()
        words[Field.BROKERS] = len(rows)
        if progress.times is not None:
            times = progress.times[:BROKER_ROWS].ravel()
            words[Field.BROKER_TIMES :][: len(times)] = times
        words[Field.HANDED_OVER] += progress.handed_over
        words[[Field.METADATA_NS, Field.METADATA_CHANGED_NS]] = progress.metadata
        words[[Field.METADATA_ANSWERS, Field.METADATA_FAILURES]] += progress.asked

    def wants_metadata(self) -> bool:
        """Whether the status worker was asked for a fetch since the last call."""
        before, self._metadata_asked = self._metadata_asked, int(self._shared.words[Field.METADATA_WANTED])
        return self._metadata_asked != before

    def wanted_topics(self) -> list[bytes]:
        """The topics that clients of the Kafka input want, if they asked for others since the last call."""
        before, self._topics_wanted = self._topics_wanted, int(self._shared.words[Field.TOPICS_WANTED])
        return read_wanted(self._path) if self._topics_wanted != before else []

    def _say_trouble(self, trouble: str) -> None:
        """Publish why nothing can be sent; the last reason stays there to be read when it is over."""
        if trouble:
            self._shared.words[Field.LAST_TROUBLE_NS] = time.time_ns()
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._shared.write_text(Field.TROUBLE, trouble)
        if trouble:
            self._shared.write_text(Field.LAST_TROUBLE, trouble)
