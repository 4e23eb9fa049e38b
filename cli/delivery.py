"""Delivery put together: spool, router and dispatch, for the daemon's worker and for `brucectl drain`."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cli.config import Config
from dispatch.client import KafkaClient
from dispatch.errors import DispatchError
from dispatch.inquiry import Inquiry
from dispatch.modes import make_pool
from dispatch.options import DispatchOptions
from dispatch.pool import Pool
from router.acks import Acks
from router.brokers import BrokerView
from router.ends import Kafka, Log, Rules
from router.eviction import Eviction
from router.job_discards import discard_file_of
from router.limits import Limits
from router.metadata import Metadata
from router.open_counts import OpenCounts
from router.open_counts import Report as ShareReport
from router.partition import Partitioners
from router.progress_book import ProgressBook
from router.rejects import Rejection
from router.room import Room
from router.router import Router
from router.topic_reader import TopicReader
from router.tracing import Tracing
from spool.catalogue import Catalogue
from spool.layout import Layout
from spool.marks import Marks
from spool.reader import Reader
from spool.record import Topics
from spool.sought import Sought

log = logging.getLogger("bruce.delivery")

IDLE_S = 0.05
"""Longest sleep while there is something to commit or to wait for."""
FLUSH_S = 5.0
"""At the end, how long acknowledgements of what is in flight are waited for; the rest stays in the spool."""

Place = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Progress:
    """How delivery stands."""

    floor: int
    """Every message below this sequence is resolved, and marked so."""
    brokers: list[BrokerView]
    trouble: str
    """Why nothing can be sent; empty when it can."""
    counts: tuple[int, int]
    """Messages delivered, and discarded, since the last report."""
    handed_over: int = 0
    """Messages given to the producer since the last report, those sent again included."""
    times: npt.NDArray[np.int64] | None = None
    """dispatch.timings rows of these brokers."""
    unread: str = ""
    """What the disk does not give at present; empty when it gives everything."""
    metadata: tuple[int, int] = 0, 0
    """When Kafka's metadata came last, and when they changed last, ns since the epoch; 0: never yet."""
    asked: tuple[int, int] = 0, 0
    """How often they came, and how often they did not, since the last report."""


Report = Callable[[Progress], None]


def nobody_asks() -> bool:
    """Where nobody can."""
    return False


@dataclass(slots=True)
class Orders:
    """What a deliverer has been told."""

    stopping: bool = False
    """To end with what is in the spool delivered."""
    leaving: bool = False
    """To end at once, for a successor."""
    asked: Callable[[], bool] = nobody_asks
    """Whether a job wants to deliver."""
    wants_metadata: Callable[[], bool] = nobody_asks
    """Whether somebody has asked for Kafka's metadata to be fetched now; told once."""

    def end(self) -> bool:
        """Whether delivery is to come to an end here."""
        return self.stopping or self.leaving or self.asked()


class Delivery:
    """The one deliverer of a spool, for who holds its lock. It starts threads: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        spool: bytes,
        config: Config,
        *,
        committed: Place,
        bell: int,
        report: Report,
        give_up: Callable[[], int] | None = None,
        share: ShareReport | None = None,
        orders: Orders | None = None,
        only: frozenset[bytes] = frozenset(),
        latency: npt.NDArray[np.int64] | None = None,
        page: Path | None = None,
    ) -> None:
        """`committed`: up to where the log may be read. `bell`: an eventfd that rings when that moves.

        `report` is told now and then. `give_up`: below which sequence the spool has no room for messages
        any more. `share` is told what is open of topics with a quota. `orders`: when to end. `only`: these
        topics; the messages of others stay. None: all. `latency` int64[LATENCY_WORDS]:
        added to as messages are acknowledged (spool.histogram). `page`: beside the one that lies there
        somebody may ask for a trace.
        """
        self._orders = orders or Orders()
        self._drain_s = config.dispatch.drain_seconds
        self._bell, self._wake = bell, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._report, self._told, self._handed_over = report, 0.0, 0
        self._catalogue = catalogue = Catalogue(layout)
        topics = Topics(config.spool.max_topics)
        for name in {*config.dispatch.topics, *config.partitioners, *config.rates}:
            topics.add(name.encode())
        self._marks = Marks(layout.delivery, Catalogue(layout))
        self._acks = Acks(self._marks, catalogue, marks_first=config.dispatch.mode == "at_most_once")
        if latency is not None:
            self._acks.latency = latency
        book = ProgressBook(self._acks, catalogue, layout)
        self._client, self._pool = self._make_pool(config.dispatch, topics, book, spool)
        self._tracing = Tracing(page, topics, self._pool) if page else None
        self._metadata = Metadata(
            self._client.fetch_cluster,
            lambda: os.eventfd_write(self._wake, 1),
            Inquiry(config.dispatch),
            self._client.fetch_all,
            ours=[config.dispatch.dead_letter_topic.encode()],
        )
        window = config.dispatch.window_messages, config.dispatch.window_bytes
        shares = (
            OpenCounts(sorted(config.spool.quotas), topics, share) if share and config.spool.quotas else None
        )
        eviction = Eviction(Reader(catalogue, topics), committed, give_up, shares=shares) if give_up else None
        self.router = Router(
            Log(self._reader(topics, only), self._reader(topics, only), committed, eviction, shares),
            Kafka(self._client, self._pool, Room(self._pool, *window), self._metadata),
            self._acks,
            Rules(
                Partitioners(config.partitioners),
                Limits(topics, config.rates, config.dispatch.catch_up_bytes_per_second),
            ),
            rejection=_rejection(config.dispatch, spool),
        )

    def _make_pool(
        self, options: DispatchOptions, topics: Topics, book: ProgressBook, spool: bytes
    ) -> tuple[KafkaClient, Pool]:
        """Raises DispatchError, with everything closed and the trouble told."""
        try:
            return make_pool(options, topics, book, spool, self._wake)
        except DispatchError as error:
            self._report(Progress(self.floor, [], str(error), self._acks.take_counts()))
            self._acks.close()
            self._marks.close()
            os.close(self._wake)
            raise

    def _reader(self, topics: Topics, only: frozenset[bytes]) -> Reader:
        if not only:
            return Reader(self._catalogue, topics)
        return TopicReader(self._catalogue, topics, only, self._acks)

    def left_of(self, sought: Sought) -> int:
        """How many of these are not resolved."""
        return sought.left(self._acks.resolved)

    @property
    def floor(self) -> int:
        """Every message below this sequence is resolved, and marked so."""
        return self._acks.marked_floor

    def run(self, end: Callable[[], int]) -> None:
        """Deliver until told to end; when stopping, go on up to the sequence `end()`.

        That takes drain_seconds at most, and does not depend on Kafka: what is left stays in the spool.
        """
        while not self._orders.end():
            self.turn()
        quiet_since = self._drain(end) if self._orders.stopping else time.monotonic()
        self.close(quiet_since)

    def _drain(self, end: Callable[[], int]) -> float:
        """Deliver what is there, while there is time; since when nothing was acknowledged."""
        quiet_since, before = time.monotonic(), 0
        deadline = quiet_since + self._drain_s
        self._catalogue.refresh()
        while time.monotonic() < deadline and self._left(end()) and not self._orders.leaving:
            self.turn()
            in_flight = self.router.in_flight()
            if in_flight != before:
                quiet_since, before = time.monotonic(), in_flight
        return quiet_since

    def _left(self, end: int) -> int:
        """Messages from the floor up to `end`: none, when everything is resolved and marked so."""
        return self._catalogue.stored_below(end) - self._catalogue.stored_below(self.floor)

    def turn(self) -> None:
        """Do what can be done, or sleep until something happens."""
        if not self.router.step():
            self._sleep()
        now = time.monotonic()
        if now - self._told >= 2 * IDLE_S:
            self._told = now
            self._tell()

    def _tell(self) -> None:
        brokers, handed_over = self.router.brokers(), self.router.handed_over
        fresh, self._handed_over = handed_over - self._handed_over, handed_over
        times = self._client.timings.table([broker.id for broker in brokers])
        fetched = self._metadata.fetched_ns, self._metadata.changed_ns
        asked = self._metadata.take_counts()
        counts = self._acks.take_counts()
        trouble, unread = self.router.trouble(), self.router.unread()
        self._report(Progress(self.floor, brokers, trouble, counts, fresh, times, unread, fetched, asked))
        if self._orders.wants_metadata():
            self._metadata.want([])
        if self._tracing:
            self._tracing.look()
            self.router.follow(self._tracing.current)

    def _sleep(self) -> None:
        ready, _, _ = select.select([self._wake, self._bell], [], [], IDLE_S)
        for fd in ready:
            os.eventfd_read(fd)

    def close(self, quiet_since: float | None = None) -> None:
        """Stop in order: collect what comes within FLUSH_S, write it down, let go.

        `quiet_since`: when an acknowledgement came last, although something was in flight; default: now.
        """
        now = time.monotonic()
        deadline = FLUSH_S + min(now, quiet_since or now)
        for left in self.router.drained():
            if time.monotonic() > deadline:
                log.warning("%d messages without an acknowledgement; they stay in the spool", left)
                break
            self._client.flush(IDLE_S)
        self.router.commit()
        self._tell()
        if self._tracing:
            self._tracing.leave()
        self._metadata.stop()
        self.router.close()
        if self._pool.close():
            self._client.close()
        self._acks.close()
        self._marks.close()


def _rejection(options: DispatchOptions, spool: bytes) -> Rejection:
    """What becomes of messages that Kafka will not take."""
    return Rejection(
        options.dead_letter_topic.encode(),
        discard_file_of(options),
        spool,
        options.unknown_topic_seconds,
    )
