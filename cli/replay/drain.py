"""Waiting until a spool is empty: a daemon that lives is watched; without one this process delivers.

`Alone` does the daemon's work, except receiving: it commits what was written, appends what waits in staging,
delivers, and seals. It takes the locks of the daemon, so neither starts beside the other. If it is killed,
the spool is that of a daemon that was killed.

    done = drain(config, progress.show, timeout_s=60.0)
    done.drained, done.left
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cli.config.config import EMBEDDED, Config
from cli.daemon.delivery import Delivery, Orders, Progress
from cli.status.snapshot import list_workers, take_snapshot
from cli.terminal.errors import BadArgument, NobodyListens
from cli.terminal.progress import Show
from dispatch.client import check
from dispatch.tables import State
from ingest.buffers.staging import SUFFIX, Staging, slots_for
from ingest.pause import IntakePause
from ingest.worker.worker import IngestWorker
from router.cluster.brokers import BrokerView
from router.lease import LeaseManager
from router.outcome_import import OutcomeImport
from router.outcomes.rejects import discard_file_of
from router.partition import Partitioners
from spool.errors import MarksFailed, SegmentsGone, SpoolBusy, SpoolFull, SyncFailed
from spool.format.batch import Topics
from spool.format.frame import POSITION, SEQUENCE, STORED
from spool.format.segment import create_spare
from spool.index.identity import read_identity
from spool.index.index import Index
from spool.index.segment_list import SegmentList
from spool.layout import SPARE, Layout
from spool.log.committer import Committer
from spool.log.recovery import OpenSpool, boot_id, open_spool
from spool.log.retention import Stock
from spool.log.writer import Writer
from spool.marks.lease import Claims
from spool.read.files import Span
from spool.read.overview import SpoolTotals, take_totals
from spool.read.selection import Selection, Sought, read_resolved
from spool.shared.ledger import Ledger
from spool.shared.runtime import own_runtime, own_shared_state_path, runtime_of, shared_state_path
from spool.shared.state import Field, SharedState, read_shared_state
from spool.storage.lock import Lock, read_holder
from spool.storage.ownership import believed
from spool.words import agreeing
from status.report import Snapshot

LOOK_S = 0.3
"""Between two looks at a daemon's work."""
ABSENCE_S = 10.0
"""The time to wait for a daemon that is being restarted."""
PAUSE_S = 60.0
"""An intake that has room stops within a second or two; that of an earlier release never does."""
_DRAINING = "(brucectl drain)"


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain."""

    drained: bool
    """Everything that this was to wait for is delivered, or discarded with a reason."""
    delivered: int
    """Messages, since it began."""
    discarded: int
    left: int
    """Of what this was to wait for."""
    backlog: int
    """All that is left in the spool, messages accepted meanwhile and those of other topics included."""
    seconds: float
    by_daemon: bool
    reachable: bool
    """At the end there was a broker that takes messages, or the time was over before one was asked."""
    trouble: str | None
    """At the end, why nothing could be sent."""


class Goal(Protocol):
    """The messages to wait for."""

    total: int

    def left(self, now: Snapshot) -> int:
        """How much of it is not done."""


class Everything:
    """All messages that had been accepted at one moment."""

    def __init__(self, before: Snapshot) -> None:
        self._before, self.total = before, before.backlog

    def left(self, now: Snapshot) -> int:
        """How much of it is not done; how much at least while others come in behind it."""
        before = self._before
        if now.backlog == 0 or now.watermarks.delivered >= before.watermarks.accepted:
            return 0
        done = now.received - now.backlog - (before.received - before.backlog)
        return max(1, before.backlog - max(0, done))


class OfTopics:
    """The messages of some topics that had been accepted at one moment."""

    def __init__(self, layout: Layout, topics: frozenset[bytes], end: int) -> None:
        """`end`: messages below it are meant, and committed."""
        self._layout = layout
        self._sought = seek(layout, topics, end)
        self.total = self._sought.left(read_resolved(layout))

    def left(self, now: Snapshot) -> int:  # noqa: ARG002
        """How much of it is not done."""
        return self._sought.left(read_resolved(self._layout))


def seek(layout: Layout, topics: frozenset[bytes], end: int) -> Sought:
    """The messages of these topics from the low watermark up to `end`. Raises OSError."""
    while True:
        low_watermark, _ = read_resolved(layout)
        try:
            return _seek(layout, Span(low_watermark, end, topics=topics))
        except SegmentsGone:
            # Delivered, and removed while they were read: the low watermark is behind them now.
            continue


def _seek(layout: Layout, span: Span) -> Sought:
    found, reader = Sought(), Selection(SegmentList(layout), Topics(), span)
    try:
        while batch := reader.next():
            found.add(reader.segment_list, batch.sequence[span.rows(batch)])
    finally:
        reader.close()
    return found


def _is_reachable(now: Snapshot) -> bool:
    """Whether a broker takes messages, or nothing says that none does: the daemon may have asked none."""
    healthy = any(broker.state == State.HEALTHY.name.lower() for broker in now.brokers)
    return healthy or not (now.brokers or now.trouble)


class Watch:
    """A daemon at work."""

    def __init__(
        self,
        layout: Layout,
        show: Show,
        deadline: float,
        topics: frozenset[bytes] = frozenset(),
        pause: IntakePause | None = None,
        *,
        absence_s: float = ABSENCE_S,
    ) -> None:
        self._layout, self._show, self._deadline = layout, show, deadline
        self._absence_s = absence_s
        self._topics, self._pause = topics, pause
        self._seen = self._started = time.monotonic()

    def run(self, before: Snapshot) -> Drained:
        """Look now and then, until all is done. Raises NobodyListens."""
        goal, now, left = None if self._pause else self._goal(before), before, before.backlog
        while True:
            stopped = self._pause is None or self._pause.in_force()
            now = take_snapshot(self._layout.directory)
            self._notice(now.backlog, alive=bool(now.workers))
            if not stopped:
                # Messages that come until it stops count, too.
                goal = None
                self._notice_deaf(now)
            elif goal is None:
                goal = self._goal(now if self._pause else before)
            left = now.backlog if goal is None else goal.left(now)
            if (goal and not left) or time.monotonic() >= self._deadline:
                break
            if goal:
                self._show(max(0, goal.total - left), goal.total, now.trouble or "")
            time.sleep(LOOK_S)
        return Drained(
            drained=goal is not None and left == 0,
            delivered=now.delivered - before.delivered,
            discarded=sum(now.discarded.values()) - sum(before.discarded.values()),
            left=left,
            backlog=now.backlog,
            seconds=time.monotonic() - self._started,
            by_daemon=True,
            reachable=_is_reachable(now),
            trouble=now.trouble,
        )

    def _goal(self, start: Snapshot) -> Goal | None:
        """The messages to wait for; None while they are not all committed."""
        if not self._topics:
            return Everything(start)
        end = start.watermarks.accepted
        if take_snapshot(self._layout.directory).watermarks.synced < end:
            return None
        return OfTopics(self._layout, self._topics, end)

    def _notice(self, backlog: int, *, alive: bool) -> None:
        """Stop waiting for a daemon that is gone for good."""
        if alive:
            self._seen = time.monotonic()
        if time.monotonic() - self._seen < self._absence_s:
            return
        try:
            Lock(self._layout.lock, "draining").release()
        except SpoolBusy:
            self._seen = time.monotonic()
            return
        open_ones = agreeing(backlog, "message", "was", "were")
        sentence = f"the daemon ended while {open_ones} waiting; drain again to deliver without it"
        raise NobodyListens(sentence, 0)

    def _notice_deaf(self, now: Snapshot) -> None:
        """Stop waiting for an intake that does not stop. Raises NobodyListens."""
        # One without room looks up only when there is some.
        if now.full or not now.workers or time.monotonic() - self._started < PAUSE_S:
            return
        raise NobodyListens(
            "the daemon does not stop its intake: it may be of an earlier release, and wants to be restarted",
            0,
        )


class Alone:
    """All of a daemon's work on a spool that is ours, except receiving."""

    def __init__(
        self, config: Config, own: OpenSpool, show: Show, deadline: float, topics: frozenset[bytes]
    ) -> None:
        self._config, self._show, self._deadline, self._topics = config, show, deadline, topics
        self._layout, self._identity = own.layout, own.identity
        spool, boot = own.identity.spool, own.identity.boot
        self._page_path = own_shared_state_path(
            own_runtime(own.layout.directory, spool, boot), own.layout.directory, spool, boot
        )
        # A copy has no staging of its own, and must not take what waits in that of its original.
        self._staging = self._page_path.with_suffix(SUFFIX)
        self._shared = SharedState(self._page_path)
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
            committer = Committer(self._layout, index, self._shared)
            committer.commit_all()
            self._salvage()
            committer.ended = True
            # After a failed sync once more, from a fresh file.
            if not (committer.commit_all() or committer.commit_all()):
                reason = os.strerror(int(self._shared.words[Field.SYNC_ERROR]))
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

    def _account(self) -> SpoolTotals:
        """The totals, nothing being left in staging."""
        return take_totals(self._layout, list)

    def _salvage(self) -> None:
        """Append what was received and not written when the daemon was killed."""
        if not self._staging.exists():
            return
        staging = Staging(self._staging, self._identity.spool, slots_for(self._config.spool.segment_bytes))
        writer = Writer(self._layout, self._identity, self._shared)
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # No program sends to this socket; the worker is made for the messages in staging.
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
        self._shared.words[Field.SPARE], self._shared.words[Field.FULL] = number, 0

    def _deliver(self, committer: Committer) -> int:
        """Deliver until everything is, or the time is over; the low watermark. Raises SpoolBusy."""
        owner = Lock(self._layout.owner, "delivering")
        try:
            self._settle_jobs()
            return self._deliver_all(committer)
        finally:
            owner.release()

    def _settle_jobs(self) -> None:
        """Take over what jobs on Spark have delivered. Raises SpoolBusy while one is at it, MarksFailed."""
        file = discard_file_of(self._config.dispatch)
        outcome_import = OutcomeImport(self._layout, self._identity.spool, file=file)
        lender = LeaseManager(self._layout, Claims(self._layout, self._identity.boot), outcome_import)
        try:
            job = lender.step()
            if job is None and not lender.settled:
                raise MarksFailed(
                    f"the marks of {self._layout.directory} cannot be written, which must hold what jobs "
                    "have delivered: it would be sent again; make room on its disk"
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
        segment_list = SegmentList(self._layout)
        sought = seek(self._layout, self._topics, sequence) if self._topics else None
        delivery = Delivery(
            self._layout,
            self._identity.spool,
            self._config,
            committed=lambda: place,
            bell=bell,
            report=self._note,
            only=self._topics,
            orders=Orders(wants_marks=lambda: True),
        )

        def left() -> int:
            """The number of messages that are not delivered, or not marked so."""
            return (
                delivery.left_of(sought)
                if sought
                else end - segment_list.stored_below(delivery.low_watermark)
            )

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
        return delivery.low_watermark

    def _note(self, progress: Progress) -> None:
        self._brokers, self._trouble = progress.brokers, progress.trouble or progress.unread


def drain(
    config: Config,
    show: Show,
    timeout_s: float | None,
    topics: frozenset[bytes] = frozenset(),
    *,
    stop_intake: bool = False,
    elsewhere: bool = False,
) -> Drained:
    """Wait until everything is delivered, or the time is over. `topics`: only theirs; none: all.

    `stop_intake`: a daemon receives nothing meanwhile, and what it had received until then counts, too.
    `elsewhere`: to another Kafka than the configuration names, which is for a spool without a daemon.
    Raises NoSpool, BadArgument when only a daemon could deliver, NobodyListens when it ends meanwhile,
    SpoolBusy when another drain is at it.
    """
    started = time.monotonic()
    deadline = started + timeout_s if timeout_s is not None else float("inf")
    drained = _drain(config, show, deadline, topics, stop_intake=stop_intake, elsewhere=elsewhere)
    # Finding the deliverer takes a while, too.
    return dataclasses.replace(drained, seconds=time.monotonic() - started)


def _drain(
    config: Config,
    show: Show,
    deadline: float,
    topics: frozenset[bytes],
    *,
    stop_intake: bool,
    elsewhere: bool,
) -> Drained:
    layout = Layout(config.spool.directory)
    spool = read_identity(layout)
    before = take_snapshot(layout.directory)
    try:
        own = _own(config)
    except SpoolBusy:
        _refuse_second(layout)
        if elsewhere:
            raise BadArgument(
                "a daemon delivers this spool, where its own configuration says: stop it first, or leave "
                "--kafka out"
            ) from None
        with ExitStack() as stack:
            shared = _page_of_daemon(layout, spool)
            pause = stack.enter_context(IntakePause(layout, shared)) if stop_intake else None
            return Watch(layout, show, deadline, topics, pause).run(before)
    try:
        _refuse_copy(layout, spool)
        return Alone(config, own, show, deadline, topics).run()
    finally:
        own.lock.release()


def _own(config: Config) -> OpenSpool:
    """Take the daemon's place. Raises SpoolBusy if there is a daemon, or another drain."""
    if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
        Lock(Layout(config.spool.directory).lock, "draining").release()
        raise BadArgument(
            "the embedded Kafka lives and dies with `bruce run`: start that, "
            'or name brokers in [kafka] "bootstrap.servers"'
        )
    Partitioners(config.partitioners)
    check(config.dispatch)
    return open_spool(config.spool, _DRAINING)


def _refuse_second(layout: Layout) -> None:
    """Raises SpoolBusy when it is no daemon that has the spool."""
    if (holder := read_holder(layout.lock)).endswith(_DRAINING):
        raise SpoolBusy(f"process {holder} drains {layout.directory} already: wait for it")


def _refuse_copy(layout: Layout, spool: bytes) -> None:
    """Raises SpoolBusy beside the daemon of the original, whose page is found by the spool's identity."""
    shared = read_shared_state(_page_of_daemon(layout, spool), believed(layout.directory))
    if shared is not None and (workers := list_workers(shared)):
        raise SpoolBusy(
            f"{layout.directory} is a copy of a spool whose daemon lives on this host (process "
            f"{workers[0].pid}), which delivers the same: stop that first, or drain the original"
        )


def _page_of_daemon(layout: Layout, spool: bytes) -> Path:
    """The shared state of the spool's daemon; for a copy, that of the original's."""
    boot = boot_id()
    return shared_state_path(runtime_of(layout.directory, spool, boot), spool, boot)
