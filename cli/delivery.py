"""Delivery put together: spool, router and dispatch, for the daemon's worker and for `brucectl drain`."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable

from cli.config import Config
from dispatch.client import KafkaClient
from dispatch.pool import Pool
from router.acks import Acks
from router.brokers import BrokerView
from router.ends import Kafka, Log
from router.metadata import Metadata
from router.partition import Partitioners
from router.room import Room
from router.router import Router
from spool.catalogue import Catalogue
from spool.layout import Layout
from spool.lock import Lock
from spool.marks import Marks
from spool.reader import Reader
from spool.record import Topics

log = logging.getLogger("bruce.delivery")

IDLE_S = 0.05
"""Longest sleep while there is something to commit or to wait for."""
FLUSH_S = 5.0
"""At a stop, how long acknowledgements of what is in flight are waited for; the rest stays in the spool."""

Place = Callable[[], tuple[int, int]]
Report = Callable[[int, list[BrokerView], str], None]


class Delivery:
    """The one deliverer of a spool. It starts threads: make it after forking."""

    def __init__(
        self, layout: Layout, spool: bytes, config: Config, *, committed: Place, bell: int, report: Report
    ) -> None:
        """`committed`: up to where the log may be read. `bell`: an eventfd that rings when that moves.

        `report` is told the floor, the brokers and why nothing can be sent now and then.
        Raises SpoolBusy when somebody else delivers.
        """
        self.stopping = False
        self._owner = Lock(layout.owner, "delivering")
        self._bell, self._wake = bell, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._report, self._told = report, 0.0
        catalogue, topics = Catalogue(layout), Topics()
        self._marks = Marks(layout.delivery, Catalogue(layout))
        self._client = KafkaClient(config.dispatch, self._wake)
        self._pool = Pool(self._client, topics, config.dispatch, spool_uuid=spool)
        self._acks = Acks(self._marks, catalogue)
        self._metadata = Metadata(self._client.fetch_cluster, lambda: os.eventfd_write(self._wake, 1))
        window = config.dispatch.window_messages, config.dispatch.window_bytes
        self.router = Router(
            Log(Reader(catalogue, topics), Reader(catalogue, topics), committed),
            Kafka(self._client, self._pool, Room(self._pool, *window), self._metadata),
            self._acks,
            Partitioners(config.partitioners),
        )

    @property
    def floor(self) -> int:
        """Every message below this sequence is resolved, and marked so."""
        return self._acks.marked_floor

    def run(self) -> None:
        """Deliver until told to stop, then wait a little for what is in flight."""
        while not self.stopping:
            self.turn()
        self.close()

    def turn(self) -> None:
        """Do what can be done, or sleep until something happens."""
        if not self.router.step():
            self._sleep()
        now = time.monotonic()
        if now - self._told >= 2 * IDLE_S:
            self._told = now
            self._report(self._acks.marked_floor, self.router.brokers(), self.router.trouble())

    def _sleep(self) -> None:
        ready, _, _ = select.select([self._wake, self._bell], [], [], IDLE_S)
        for fd in ready:
            os.eventfd_read(fd)

    def close(self) -> None:
        """Stop in order: collect what comes within FLUSH_S, write it down, let go."""
        deadline = time.monotonic() + FLUSH_S
        for left in self.router.drained():
            if time.monotonic() > deadline:
                log.warning("%d messages without an acknowledgement; they stay in the spool", left)
                break
            self._client.flush(IDLE_S)
        floor = self.router.commit()
        self._report(floor, self.router.brokers(), self.router.trouble())
        self._metadata.stop()
        self._client.close()
        self._acks.close()
        self._marks.close()
        self._owner.release()
