"""The daemon put together: what `bruce run` starts."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
from types import FrameType
from typing import Protocol

from cli.config import EMBEDDED, Config
from cli.delivery import Delivery
from dispatch.client import check
from dispatch.embedded import EmbeddedKafka
from ingest.datagram import activated_socket, open_socket, set_timeout
from ingest.staging import Staging, read_staging, staging_path
from ingest.supervisor import Role, Supervisor
from ingest.worker import IngestWorker, compile_kernels, prepare
from router.brokers import BrokerView
from router.partition import Partitioners
from spool.format import HEADER_BYTES, MAX_BURST, SAMPLE_BYTES
from spool.keeper import Keeper
from spool.ledger import Ledger
from spool.page import BROKER_ROWS, Field, Page, page_path, runtime_directory
from spool.recovery import open_spool
from spool.wire import MAX_DATAGRAM_BYTES, REASONS
from spool.writer import Writer

log = logging.getLogger("bruce")


class Stoppable(Protocol):
    """A worker that ends when its flag is set."""

    stopping: bool


class Daemon:
    """One running bruce. `run` returns after a clean stop."""

    def __init__(self, config: Config) -> None:
        """Own the spool, the sockets and the staging. Raises the errors of all packages."""
        Partitioners(config.partitioners)
        self._embedded: EmbeddedKafka | None = None
        if config.dispatch.kafka["bootstrap.servers"] == EMBEDDED:
            self._embedded = EmbeddedKafka()
            kafka = {**config.dispatch.kafka, "bootstrap.servers": self._embedded.bootstrap_servers}
            config = dataclasses.replace(config, dispatch=dataclasses.replace(config.dispatch, kafka=kafka))
        check(config.dispatch)
        self.config = config
        self._spool = open_spool(config.spool)
        self._receiver, self._activated = self._open_socket()
        spool, boot = self._spool.identity.spool, self._spool.identity.boot
        self._page_path = page_path(runtime_directory(), spool, boot)
        self.page = Page(self._page_path)
        self._staging = staging_path(runtime_directory(), spool, boot)
        # Made here, so that a file that cannot be made or is not ours ends the start, with one sentence.
        Staging(self._staging, spool, slots_for(config.spool.segment_bytes)).received(0)
        Ledger(self._spool.layout.ledger)
        # Written by the appender, read by the keeper; by the keeper, read by the deliverer.
        self._keeper_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._delivery_bell = os.eventfd(0, os.EFD_NONBLOCK)
        compile_kernels()

    def _open_socket(self) -> tuple[socket.socket, bool]:
        activated = activated_socket()
        receiver = activated or open_socket(self.config.ingest.datagram_socket)
        set_timeout(receiver)
        return receiver, activated is not None

    def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT."""
        roles = [Role("ingest", self._ingest), Role("keeper", self._keep), Role("delivery", self._deliver)]
        try:
            Supervisor(roles, self.page).run()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Take along what only a running daemon needs."""
        if not self._activated:
            self.config.ingest.datagram_socket.unlink(missing_ok=True)
        if not read_staging(self._staging) and not self.page.words[Field.SUSPECT]:
            self._staging.unlink(missing_ok=True)
            self._page_path.unlink(missing_ok=True)
        if self._embedded:
            self._embedded.close()
        self._spool.lock.release()

    def _ingest(self) -> None:
        worker = IngestWorker(
            self._receiver,
            Staging(self._staging, self._spool.identity.spool, slots_for(self.config.spool.segment_bytes)),
            Writer(self._spool.layout, self._spool.identity, self.page),
            Ledger(self._spool.layout.ledger),
            bell=self._keeper_bell,
            last_reader=not self._activated,
        )
        prepare(worker)
        worker.run()

    def _keep(self) -> None:
        keeper = Keeper(
            self._spool.layout,
            self._spool.identity,
            self.config.spool,
            self.page,
            bell=self._keeper_bell,
            announce=lambda: os.eventfd_write(self._delivery_bell, 1),
        )
        stop_on_sigterm(keeper)
        keeper.run()

    def _deliver(self) -> None:
        # Of a worker before this one nothing may stay.
        self.page.write_text(Field.TROUBLE, "")
        self._trouble = ""
        delivery = Delivery(
            self._spool.layout,
            self._spool.identity.spool,
            self.config,
            committed=lambda: self.page.place(Field.SYNCED),
            bell=self._delivery_bell,
            report=self._report,
        )
        stop_on_sigterm(delivery)
        delivery.run()

    def _report(self, floor: int, brokers: list[BrokerView], trouble: str) -> None:
        """Publish what only the deliverer knows."""
        if trouble != self._trouble:
            self._trouble = trouble
            self.page.write_text(Field.TROUBLE, trouble)
            if trouble:
                log.error("%s", trouble)
            else:
                log.warning("messages can be sent again")
        words = self.page.words
        words[Field.FLOOR] = floor
        for row, broker in enumerate(brokers[:BROKER_ROWS]):
            at = Field.BROKERS + 4 * (row + 1)
            words[at : at + 4] = (broker.id, broker.state, broker.offset, broker.in_flight)
        words[Field.BROKERS] = min(len(brokers), BROKER_ROWS)


def slots_for(segment_bytes: int) -> int:
    """Datagrams in a burst, at most: the largest burst must fit an empty segment."""
    room = segment_bytes - HEADER_BYTES - REASONS * (SAMPLE_BYTES + 8) - 4096
    return max(1, min(MAX_BURST, room // (MAX_DATAGRAM_BYTES + 12)))


def stop_on_sigterm(worker: Stoppable) -> None:
    """Let SIGTERM set a worker's flag."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
