"""Waiting until a spool is empty: a daemon's work is watched; without a daemon the work is done here.

Without a daemon this process is all of one in turn: it commits what was written, appends what waits in
staging, delivers, and seals. The locks are those of the daemon, so neither starts beside the other.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from cli.config import EMBEDDED, Config
from cli.daemon import slots_for
from cli.delivery import Delivery
from cli.errors import BadArgument, NobodyListens
from cli.snapshot import take_snapshot
from dispatch.brokers import State
from dispatch.client import check
from ingest.staging import Staging, staging_path
from ingest.worker import IngestWorker
from router.adoption import Adoption
from router.brokers import BrokerView
from router.lending import Lender
from router.partition import Partitioners
from spool.account import Account, take_account
from spool.catalogue import Catalogue
from spool.committer import Committer
from spool.errors import SpoolBusy, SpoolFull, SyncFailed
from spool.frame import POSITION, STORED
from spool.identity import read_identity
from spool.index import Index
from spool.layout import SPARE, Layout
from spool.lease import Claims
from spool.ledger import Ledger
from spool.lock import Lock
from spool.page import Field, Page, page_path, runtime_directory
from spool.recovery import OpenSpool, open_spool
from spool.retention import Stock
from spool.segment import create_spare
from spool.writer import Writer
from status.snapshot import Snapshot

LOOK_S = 0.3
"""Between two looks at a daemon's work."""
ABSENCE_S = 10.0
"""A daemon that is being started again is waited for so long."""

Show = Callable[[int, int], None]
"""Is told how many messages are done, of how many."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What came of it."""

    drained: bool
    """Everything that had been accepted when it began is delivered, or discarded with a reason."""
    delivered: int
    """Messages, since it began."""
    discarded: int
    backlog: int
    """What is left, messages accepted meanwhile included."""
    seconds: float
    by_daemon: bool
    reachable: bool
    """At the end there was a broker that takes messages."""
    trouble: str | None
    """At the end, why nothing could be sent."""


def drain(config: Config, show: Show, timeout_s: float | None) -> Drained:
    """Wait until everything is delivered, or the time is over.

    Raises NoSpool, BadArgument when only a daemon could deliver, NobodyListens when it ends meanwhile.
    """
    deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    layout = Layout(config.spool.directory)
    read_identity(layout)
    before = take_snapshot(layout.directory)
    try:
        own = _own(config)
    except SpoolBusy:
        return _Watch(layout, show, deadline).run(before)
    try:
        return _Alone(config, own, show, deadline).run()
    finally:
        own.lock.release()


def _own(config: Config) -> OpenSpool:
    """Take the daemon's place. Raises SpoolBusy when there is one."""
    if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
        Lock(Layout(config.spool.directory).lock, "draining").release()
        raise BadArgument(
            "the embedded Kafka lives and dies with `bruce run`: start that, "
            'or name brokers in [kafka] "bootstrap.servers"'
        )
    Partitioners(config.partitioners)
    check(config.dispatch)
    return open_spool(config.spool)


class _Watch:
    """A daemon at work."""

    def __init__(self, layout: Layout, show: Show, deadline: float) -> None:
        self._layout, self._show, self._deadline = layout, show, deadline
        self._seen = time.monotonic()

    def run(self, before: Snapshot) -> Drained:
        """Look now and then, until all is done that `before` shows as accepted. Raises NobodyListens."""
        started, now = time.monotonic(), take_snapshot(self._layout.directory)
        end = before.watermarks.accepted
        while not (drained := now.backlog == 0 or now.watermarks.delivered >= end):
            done = now.received - now.backlog - (before.received - before.backlog)
            self._show(min(done, before.backlog), before.backlog)
            if time.monotonic() >= self._deadline:
                break
            time.sleep(LOOK_S)
            now = take_snapshot(self._layout.directory)
            self._notice(now.backlog, alive=bool(now.workers))
        return Drained(
            drained=drained,
            delivered=now.delivered - before.delivered,
            discarded=sum(now.discarded.values()) - sum(before.discarded.values()),
            backlog=now.backlog,
            seconds=time.monotonic() - started,
            by_daemon=True,
            reachable=any(broker.state == State.HEALTHY.name.lower() for broker in now.brokers),
            trouble=now.trouble,
        )

    def _notice(self, backlog: int, *, alive: bool) -> None:
        """Stop waiting for a daemon that is gone for good."""
        if alive:
            self._seen = time.monotonic()
        if time.monotonic() - self._seen < ABSENCE_S:
            return
        try:
            Lock(self._layout.lock, "draining").release()
        except SpoolBusy:
            self._seen = time.monotonic()
            return
        sentence = (
            f"the daemon ended while {backlog} messages were waiting; drain again to deliver without it"
        )
        raise NobodyListens(sentence, 0)


class _Alone:
    """All of a daemon's work on a spool that is ours, except receiving."""

    def __init__(self, config: Config, own: OpenSpool, show: Show, deadline: float) -> None:
        self._config, self._own, self._show, self._deadline = config, own, show, deadline
        self._layout, self._identity = own.layout, own.identity
        runtime, spool, boot = runtime_directory(), own.identity.spool, own.identity.boot
        self._page_path, self._staging = page_path(runtime, spool, boot), staging_path(runtime, spool, boot)
        self._page = Page(self._page_path)
        self._stock = Stock(own.layout, own.identity, config.spool)
        self._brokers: list[BrokerView] = []
        self._trouble = ""

    def run(self) -> Drained:
        """Commit, salvage, deliver, seal. Raises what the packages raise, with everything closed."""
        started = time.monotonic()
        index = Index(self._layout.index, self._identity.boot)
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
            drained=after.backlog == 0,
            delivered=after.delivered - before.delivered,
            discarded=sum(after.by_reason().values()) - sum(before.by_reason().values()),
            backlog=after.backlog,
            seconds=time.monotonic() - started,
            by_daemon=False,
            reachable=any(broker.state == State.HEALTHY for broker in self._brokers),
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
        """Take over what jobs on Spark have delivered. Raises SpoolBusy while one is at it."""
        adoption = Adoption(self._layout, self._identity.spool)
        lender = Lender(self._layout, Claims(self._layout, self._identity.boot), adoption)
        try:
            job = lender.step()
        finally:
            lender.close()
        if job:
            raise SpoolBusy(
                f"process {job.pid} on {job.host} delivers from {self._layout.directory} already: wait for it"
            )

    def _deliver_all(self, committer: Committer) -> int:
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        end, catalogue = int(committer.tail[STORED]), Catalogue(self._layout)
        place = committer.number, int(committer.tail[POSITION])
        delivery = Delivery(
            self._layout,
            self._identity.spool,
            self._config,
            committed=lambda: place,
            bell=bell,
            report=self._note,
        )
        try:
            first = below = catalogue.stored_below(delivery.floor)
            while below < end and time.monotonic() < self._deadline:
                self._show(below - first, end - first)
                delivery.turn()
                below = catalogue.stored_below(delivery.floor)
        finally:
            delivery.close()
            os.close(bell)
        return delivery.floor

    def _note(self, _floor: int, brokers: list[BrokerView], trouble: str) -> None:
        self._brokers, self._trouble = brokers, trouble
