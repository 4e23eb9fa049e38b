"""Delivery put together: spool, router and dispatch, for the daemon's worker and for `brucectl drain`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cli.config.config import Config
from dispatch.errors import DispatchError
from dispatch.options import DispatchOptions
from router.build import DeliveryGraph, Parts, build, rejection_of
from router.cluster.brokers import BrokerView
from router.cluster.trouble import Cause
from router.context import Rules, SpoolLog, TopicReader
from router.fast_path import FastPath
from router.limits import Limits
from router.outcomes.acks import Acks, Pace
from router.outcomes.counts import OpenCounts
from router.outcomes.counts import Report as ShareReport
from router.outcomes.outcome_table import Eviction
from router.outcomes.progress_book import ProgressBook
from router.outcomes.trace import Tracing
from router.partition import Partitioners
from router.timing import FEW_COMMIT_S, FLUSH_S, IDLE_S, OBSERVE_S
from spool.format.batch import Topics
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.read.reader import Reader
from spool.read.selection import Sought
from spool.words import counted

log = logging.getLogger("bruce.delivery")

TELL_S = 0.2
"""Between two reports, while there is work."""
REST_S = 1.0
"""Longest sleep while nothing waits."""

ReadCommittedEnd = Callable[[], tuple[int, int]]
"""Gives (segment number, offset) of the end of what is committed."""


class Waits(NamedTuple):
    """The messages in the spool that are not resolved, at one moment."""

    messages: int = 0
    oldest_ns: int = 0
    """When the oldest was received, ns since the epoch; 0: not known."""
    end: int = 0
    """The sequence behind the last of them."""
    discarded: int = 0
    """How many messages were discarded since then."""


def waits_for_nothing() -> Waits:
    """The default, when the deliverer does not say."""
    return Waits()


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of delivery."""

    low_watermark: int
    """Every message below this sequence is resolved, and marked so."""
    brokers: list[BrokerView]
    trouble: str
    """Why nothing can be sent; empty when it can."""
    counts: tuple[int, int]
    """Messages delivered, and discarded, since the last report."""
    handed_over: int = 0
    """Messages given to the producer since the last report, those sent again included."""
    times: npt.NDArray[np.int64] | None = None
    """dispatch.client rows of these brokers."""
    unread: str = ""
    """The ranges that the disk cannot read at present; empty if it can read everything."""
    metadata: tuple[int, int] = 0, 0
    """When Kafka's metadata came last, and when they changed last, ns since the epoch; 0: never yet."""
    asked: tuple[int, int] = 0, 0
    """How often they came, and how often they did not, since the last report."""
    cause: Cause = Cause.OTHER
    """The subject of the trouble."""
    waits: Callable[[], Waits] = waits_for_nothing
    """Looks at what waits, which reads a little of the log."""


Report = Callable[[Progress], None]


def nobody_asks() -> bool:
    """The default, when no process can ask."""
    return False


def nothing_is_wanted() -> list[bytes]:
    """The same for topics."""
    return []


@dataclass(slots=True)
class Orders:
    """The orders to a deliverer."""

    stopping: bool = False
    """To end with what is in the spool delivered."""
    leaving: bool = False
    """To end at once, for a successor."""
    asked: Callable[[], bool] = nobody_asks
    """Whether a job wants to deliver."""
    wants_metadata: Callable[[], bool] = nobody_asks
    """Whether a process has asked to fetch Kafka's metadata now; true once for each request."""
    wants_marks: Callable[[], bool] = nobody_asks
    """Whether a client waits until messages are marked as delivered."""
    wanted_topics: Callable[[], list[bytes]] = nothing_is_wanted
    """Topics that clients of the Kafka input have asked for since the last call."""

    def end(self) -> bool:
        """Whether delivery must end in this process."""
        return self.stopping or self.leaving or self.asked()


class Delivery:
    """The one deliverer of a spool, for the owner of its lock. It starts threads: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        spool: bytes,
        config: Config,
        *,
        committed: ReadCommittedEnd,
        bell: int,
        report: Report,
        give_up: Callable[[], int] | None = None,
        share: ShareReport | None = None,
        orders: Orders | None = None,
        only: frozenset[bytes] = frozenset(),
        latency: npt.NDArray[np.int64] | None = None,
        shared: Path | None = None,
    ) -> None:
        """`committed`: the committed end of the log. `bell`: an eventfd that rings when that moves.

        `report` is called regularly. `give_up`: the sequence below which the spool has no room for messages
        any more. `share` gets the open messages of topics with a quota. `orders`: when to end. `only`:
        deliver these topics, and leave the messages of others; empty: all. `latency` int64[LATENCY_WORDS]: a
        histogram that grows with each acknowledgement (spool.shared.histogram). `shared`: the shared state,
        beside which a process may leave a request for a trace.
        """
        self._orders, self._committed = orders or Orders(), committed
        self._drain_s = config.dispatch.drain_seconds
        self._report = report
        self._told_at, self._told_watermark, self._handed_over = 0.0, 0, 0
        self._segment_list = segment_list = SegmentList(layout)
        topics = Topics(config.spool.max_topics)
        for name in {*config.dispatch.topics, *config.partitioners, *config.rates}:
            topics.add(name.encode())
        self._marks = Marks(layout.delivery, SegmentList(layout))
        marks_first = config.dispatch.mode == "at_most_once"
        self._acks = Acks(
            self._marks,
            segment_list,
            marks_first=marks_first,
            latency=latency,
            pace=Pace(is_wanted=self._wants_marks),
        )
        shares = (
            OpenCounts(sorted(config.spool.quotas), topics, share) if share and config.spool.quotas else None
        )
        eviction = (
            Eviction(Reader(segment_list, topics), committed, give_up, open_counts=shares)
            if give_up
            else None
        )
        self._source = source = SpoolLog(
            self._reader(topics, only), self._reader(topics, only), committed, eviction, shares
        )
        partitioners = Partitioners(config.partitioners, config.dispatch.partitioner)
        parts = Parts(
            source,
            self._acks,
            Rules(partitioners, Limits(topics, config.rates, config.dispatch.catch_up_bytes_per_second)),
            rejection_of(config.dispatch, spool),
        )
        self._graph = self._build(config.dispatch, layout, parts, spool)
        self.router = self._graph.router
        self._fast_path = FastPath(self.router, source, self._graph.kafka, self._acks, partitioners, bell)
        self._tracing = Tracing(shared, topics, self._graph.kafka.pool) if shared else None

    def _build(self, options: DispatchOptions, layout: Layout, parts: Parts, spool: bytes) -> DeliveryGraph:
        """Raises DispatchError, with everything closed and the trouble reported."""
        try:
            return build(options, layout, parts, ProgressBook(self._acks, self._segment_list, layout), spool)
        except DispatchError as error:
            self._report(Progress(self.low_watermark, [], str(error), self._acks.take_counts()))
            self._acks.close()
            self._marks.close()
            raise

    def _reader(self, topics: Topics, only: frozenset[bytes]) -> Reader:
        if not only:
            return Reader(self._segment_list, topics)
        return TopicReader(self._segment_list, topics, only, self._acks.leave_out)

    def left_of(self, sought: Sought) -> int:
        """How many of these are not resolved."""
        return sought.left(self._acks.resolved)

    @property
    def low_watermark(self) -> int:
        """Every message below this sequence is resolved, and marked so."""
        return self._acks.marked_watermark

    def run(self, end: Callable[[], int]) -> None:
        """Deliver until the orders say to end; when stopping, go on up to the sequence `end()`.

        That takes drain_seconds at most, and does not depend on Kafka: what is left stays in the spool.
        """
        while not self._orders.end():
            self.turn()
        quiet_since = self._drain(end) if self._orders.stopping else time.monotonic()
        self.close(quiet_since)

    def _drain(self, end: Callable[[], int]) -> float:
        """Deliver the stored messages, while there is time; since when nothing was acknowledged."""
        quiet_since, before = time.monotonic(), 0
        deadline = quiet_since + self._drain_s
        self._segment_list.refresh()
        while time.monotonic() < deadline and self._left(end()) and not self._orders.leaving:
            self.turn()
            in_flight = self.router.in_flight()
            if in_flight != before:
                quiet_since, before = time.monotonic(), in_flight
        return quiet_since

    def _left(self, end: int) -> int:
        """Messages from the low watermark up to `end`: none, when everything is resolved and marked so."""
        return self._segment_list.stored_below(end) - self._segment_list.stored_below(self.low_watermark)

    def turn(self) -> None:
        """Do the work that is ready, or sleep until an event."""
        more = self.router.step()
        if time.monotonic() - self._told_at >= TELL_S:
            self._tell()
        if not more:
            self._sleep()

    def _tell(self) -> None:
        self._told_at, self._told_watermark = time.monotonic(), self.low_watermark
        brokers, handed_over = self.router.brokers(), self.router.handed_over
        fresh, self._handed_over = handed_over - self._handed_over, handed_over
        times = self._graph.kafka.client.latency.table([broker.id for broker in brokers])
        metadata = self._graph.kafka.metadata
        fetched, asked = (metadata.fetched_ns, metadata.changed_ns), metadata.take_counts()
        counts = self._acks.take_counts()
        trouble, unread = self.router.trouble(), self.router.unread()
        self._report(
            Progress(
                self._told_watermark,
                brokers,
                trouble,
                counts,
                fresh,
                times,
                unread,
                fetched,
                asked,
                self.router.cause,
                self.waits,
            )
        )
        if self._orders.wants_metadata():
            metadata.want([])
        if wanted := self._orders.wanted_topics():
            metadata.want_for_clients(wanted)
        if self._tracing:
            self._tracing.look()
            self.router.follow(self._tracing.current)

    def _wants_marks(self) -> bool:
        """Whether somebody waits for marks: a client, or whoever stops this."""
        return self._orders.stopping or self._orders.wants_marks()

    def waits(self) -> Waits:
        """Look at what waits: how much, since when, up to where."""
        self._segment_list.refresh()
        stored = self._segment_list.stored_below
        low_watermark, end = self._acks.low_watermark, self._end_of_log()
        messages = stored(end) - stored(low_watermark) - self._acks.resolved_above()
        reader = Reader(self._segment_list, Topics())
        try:
            reader.allow(*self._committed())
            reader.seek(low_watermark)
            batch = reader.next() if messages > 0 else None
            oldest = int(batch.received_ns[0]) if batch is not None and len(batch) else 0
        finally:
            reader.close()
        return Waits(max(0, messages), oldest, end)

    def _end_of_log(self) -> int:
        segments = self._segment_list.segments
        return self._segment_list.end_of(segments[-1]) if segments else 0

    def _sleep(self) -> None:
        if self._acks.unwritten or not self.router.at_rest:
            self._fast_path.wait(IDLE_S, OBSERVE_S if self.router.awaits_more else FEW_COMMIT_S)
            return
        if self.low_watermark != self._told_watermark:
            # A program that waits for the last message does not wait for the end of a rest, too.
            pause = max(0.0, self._told_at + TELL_S - time.monotonic())
        else:
            pause = REST_S
        self._fast_path.wait(pause, pause)

    def close(self, quiet_since: float | None = None) -> None:
        """Stop in order: collect what comes within FLUSH_S, write it down, let go.

        `quiet_since`: when an acknowledgement came last, although something was in flight; default: now.
        """
        now = time.monotonic()
        deadline = FLUSH_S + min(now, quiet_since or now)
        if left := self._graph.settle(deadline):
            log.warning("%s without an acknowledgement, left in the spool", counted(left, "message"))
        self._tell()
        if self._tracing:
            self._tracing.leave()
        self._graph.close()
        self._source.close()
        self._acks.close()
        self._marks.close()
