"""A drain in the place of a daemon that is dead: this process is all of one in turn, except receiving.

It commits what was written, appends what waits in staging, delivers, and seals. The locks are those of the
daemon, so neither starts beside the other. Killed, it is a daemon that was killed: the marks say the rest.
"""

from __future__ import annotations

import os
import socket
import time

from cli.config import Config
from cli.delivery import Delivery, Progress
from cli.drain_watch import seek
from cli.drained import Drained
from cli.progress import Show
from dispatch.brokers import State
from ingest.staging import SUFFIX, Staging, slots_for
from ingest.worker import IngestWorker
from router.adoption import Adoption
from router.brokers import BrokerView
from router.job_discards import discard_file_of
from router.lending import Lender
from spool.account import Account, take_account
from spool.catalogue import Catalogue
from spool.committer import Committer
from spool.errors import MarksFailed, SpoolBusy, SpoolFull, SyncFailed
from spool.frame import POSITION, SEQUENCE, STORED
from spool.index import Index
from spool.layout import SPARE
from spool.lease import Claims
from spool.ledger import Ledger
from spool.lock import Lock
from spool.page import Field, Page
from spool.recovery import OpenSpool
from spool.retention import Stock
from spool.runtime import own_page_path, own_runtime
from spool.segment import create_spare
from spool.writer import Writer


class Alone:
    """All of a daemon's work on a spool that is ours, except receiving."""

    def __init__(
        self, config: Config, own: OpenSpool, show: Show, deadline: float, topics: frozenset[bytes]
    ) -> None:
        self._config, self._show, self._deadline, self._topics = config, show, deadline, topics
        self._layout, self._identity = own.layout, own.identity
        spool, boot = own.identity.spool, own.identity.boot
        self._page_path = own_page_path(
            own_runtime(own.layout.directory, spool, boot), own.layout.directory, spool, boot
        )
        # Of a copy there is none: what waits in that of its original is not the copy's to take.
        self._staging = self._page_path.with_suffix(SUFFIX)
        self._page = Page(self._page_path)
        self._stock = Stock(own.layout, own.identity, config.spool)
        self._brokers: list[BrokerView] = []
        self._trouble, self._left = "", 0
        self._asked = False
        """Whether there was time to look for brokers."""

    def run(self) -> Drained:
        """Commit, salvage, deliver, seal. Raises what the packages raise, with everything closed."""
        started = time.monotonic()
        index = Index(self._layout.index, self._identity.spool, self._identity.boot)
        try:
            committer = Committer(self._layout, index, self._page)
            committer.commit_all()
            self._salvage()
            committer.ended = True
            # After a failed sync once more, from a fresh file.
            if not (committer.commit_all() or committer.commit_all()):
                reason = os.strerror(int(self._page.words[Field.SYNC_ERROR]))
                raise SyncFailed(f"{self._layout.segments} could not be synced: {reason}; see to the disk")
            before = self._account()
            self._stock.retire(self._deliver(committer))
            committer.seal_last()
        finally:
            index.close()
        # Nothing waits in them any more.
        self._staging.unlink(missing_ok=True)
        self._page_path.unlink(missing_ok=True)
        after = self._account()
        return Drained(
            drained=self._left == 0,
            delivered=after.delivered - before.delivered,
            discarded=sum(after.by_reason().values()) - sum(before.by_reason().values()),
            left=self._left,
            backlog=after.backlog,
            seconds=time.monotonic() - started,
            by_daemon=False,
            reachable=not self._asked or any(broker.state == State.HEALTHY for broker in self._brokers),
            trouble=self._trouble or None,
        )

    def _account(self) -> Account:
        """The books, nothing being left in staging."""
        return take_account(self._layout, list)

    def _salvage(self) -> None:
        """Append what was received and not written when the daemon was killed."""
        if not self._staging.exists():
            return
        staging = Staging(self._staging, self._identity.spool, slots_for(self._config.spool.segment_bytes))
        writer = Writer(self._layout, self._identity, self._page)
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Nobody sends to this socket; the worker is made for what lies in staging.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            ledger = Ledger(self._layout.ledger)
            worker = IngestWorker(receiver, staging, writer, ledger, bell=bell, last_reader=False)
            while worker.waits is not None:
                self._offer_spare(writer.number + 1)
                worker.salvage_next()
        writer.close()
        os.close(bell)

    def _offer_spare(self, number: int) -> None:
        """Have a segment ready, beyond max_bytes if need be: these messages were accepted."""
        if not self._layout.segment(number, SPARE).exists():
            try:
                self._stock.make_spare(number)
            except SpoolFull:
                create_spare(self._layout, self._identity, number, self._config.spool.segment_bytes)
        self._page.words[Field.SPARE], self._page.words[Field.FULL] = number, 0

    def _deliver(self, committer: Committer) -> int:
        """Deliver until everything is, or the time is over; the floor. Raises SpoolBusy."""
        owner = Lock(self._layout.owner, "delivering")
        try:
            self._settle_jobs()
            return self._deliver_all(committer)
        finally:
            owner.release()

    def _settle_jobs(self) -> None:
        """Take over what jobs on Spark have delivered. Raises SpoolBusy while one is at it, MarksFailed."""
        file = discard_file_of(self._config.dispatch)
        adoption = Adoption(self._layout, self._identity.spool, file=file)
        lender = Lender(self._layout, Claims(self._layout, self._identity.boot), adoption)
        try:
            job = lender.step()
            if job is None and not lender.settled:
                raise MarksFailed(
                    f"the marks of {self._layout.directory} cannot be written, in which what jobs have "
                    "delivered is to stand: it would be sent again; make room on its disk"
                )
        finally:
            lender.close()
        if job:
            raise SpoolBusy(
                f"process {job.pid} on {job.host} delivers from {self._layout.directory} already: wait for it"
            )

    def _deliver_all(self, committer: Committer) -> int:
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        sequence, end = int(committer.tail[SEQUENCE]), int(committer.tail[STORED])
        place = committer.number, int(committer.tail[POSITION])
        catalogue = Catalogue(self._layout)
        sought = seek(self._layout, self._topics, sequence) if self._topics else None
        delivery = Delivery(
            self._layout,
            self._identity.spool,
            self._config,
            committed=lambda: place,
            bell=bell,
            report=self._note,
            only=self._topics,
        )

        def left() -> int:
            """What is not delivered, and marked so."""
            return delivery.left_of(sought) if sought else end - catalogue.stored_below(delivery.floor)

        try:
            self._left = total = left()
            while self._left and time.monotonic() < self._deadline:
                self._show(total - self._left, total, self._trouble)
                self._asked = True
                delivery.turn()
                self._left = left()
        finally:
            delivery.close()
            self._left = left()
            os.close(bell)
        return delivery.floor

    def _note(self, progress: Progress) -> None:
        self._brokers, self._trouble = progress.brokers, progress.trouble or progress.unread
