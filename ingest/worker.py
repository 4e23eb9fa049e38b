"""The ingest worker: waits for the socket and for nothing else.

No disk sync, no new file, no LMDB, no thread: a process stuck in a disk wait cannot be replaced until
the disk lets go, and senders would stand in the socket's queue until then.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import socket
import time
from types import FrameType

import numpy as np

from ingest import burst, staging
from ingest.staging import Staging
from spool import ledger, scan
from spool.format import POISON, SALVAGED
from spool.frame import BURST
from spool.kernel import address_of, function_address
from spool.ledger import Ledger
from spool.page import Field
from spool.quarantine import keep
from spool.scan import digest_address
from spool.wire import MAX_DATAGRAM_BYTES, REASONS
from spool.writer import Writer

log = logging.getLogger("bruce.ingest")

MSG_WAITFORONE, MSG_DONTWAIT = 0x10000, 0x40
ATTEMPTS = 3
"""Tries to salvage one burst before it is given up as poison."""
_LARGE_KEPT = 64
"""Large datagrams that may leave their memory in staging before it is given back."""


class IngestWorker:
    """One process's hold of socket, staging and log."""

    def __init__(
        self,
        receiver: socket.socket,
        staging: Staging,
        writer: Writer,
        ledger: Ledger,
        *,
        bell: int,
        last_reader: bool,
    ) -> None:
        """`bell`: the keeper's eventfd. `last_reader`: nobody else keeps the socket when we stop."""
        self.receiver, self.staging, self.writer, self.ledger = receiver, staging, writer, ledger
        self.stopping, self._last_reader = False, last_reader
        self._scratch = np.zeros(MAX_DATAGRAM_BYTES + 64, np.uint8)
        self._verdicts = np.zeros(staging.slots + REASONS, np.int64)
        self.job = np.zeros(burst.JOB_FIELDS, np.int64)
        libc = ctypes.CDLL(None)
        self.job[burst.FD] = receiver.fileno()
        self.job[burst.FLAGS] = MSG_WAITFORONE
        self.job[burst.SLOTS] = staging.burst
        self.job[burst.ARMED] = staging.armed_at
        self.job[burst.HEADERS] = staging.headers
        self.job[burst.CONTROL] = staging.control
        self.job[burst.SLOT] = staging.slot
        self.job[burst.OVERFLOW] = staging.overflow
        self.job[burst.SCRATCH] = address_of(self._scratch)
        self.job[burst.PAGE] = writer.page.address
        self.job[burst.BELL] = bell
        self.job[burst.RECVMMSG] = function_address(libc.recvmmsg)
        self.job[burst.ERRNO] = function_address(libc["__errno_location"])
        self.job[burst.CLOCK] = function_address(libc.clock_gettime)
        self.job[burst.WRITE] = function_address(libc.write)
        self.job[burst.DIGEST] = digest_address()
        writer.tail[BURST] = max(int(writer.tail[BURST]), ledger.burst)
        self._point()

    def _point(self) -> None:
        """Let the kernels work on the writer's live segment."""
        self.job[burst.BASE] = self.writer.base
        self.job[burst.CAPACITY] = self.writer.capacity
        self.job[burst.NUMBER] = self.writer.number

    def salvage(self) -> int:
        """Append what a predecessor received and did not append; how many datagrams that were.

        After ATTEMPTS failures the burst goes to quarantine as it is, counted as discarded, and intake
        goes on.
        """
        used = self.staging.received() if self.staging.armed == int(self.writer.tail[BURST]) + 1 else 0
        self.job[burst.USED] = used
        if used:
            log.info("%d datagrams were received before a crash, and are stored now", used)
            self._store(SALVAGED)
        self.staging.settle()
        self.job[burst.USED] = self.staging.slots
        return used

    def _give_up(self) -> int:
        """Keep the burst that waits in staging in quarantine; the flag to store it with, as discarded."""
        used, name = int(self.job[burst.USED]), f"burst-{self.staging.armed}.poison"
        log.error("%d datagrams cannot be stored; they are discarded, and kept as quarantine/%s", used, name)
        keep(self.writer.layout, name, self.staging.image(used))
        return POISON

    def run(self) -> None:
        """Take in until told to stop; then, if nobody else will read the socket, close and empty it."""
        self.salvage()
        while not self.stopping:
            self._round()
        if not self._last_reader:
            return
        # Senders are refused from here on; what they sent before stays readable.
        self.receiver.shutdown(socket.SHUT_RD)
        self.job[burst.FLAGS] |= MSG_DONTWAIT
        while self._round():
            continue

    def _round(self) -> bool:
        """Receive until Python is needed; False when there was nothing to receive."""
        outcome = burst.receive(self.job, self.writer.tail, self._verdicts, burst.ROUNDS)
        if outcome == burst.NEEDS_SEGMENT:
            self._store(0)
        elif outcome not in (burst.STORED, errno.EAGAIN, errno.EINTR):
            raise OSError(outcome, os.strerror(outcome))
        if self.job[burst.LARGE] > _LARGE_KEPT:
            self.staging.punch()
            self.job[burst.LARGE] = 0
        return bool(outcome != errno.EAGAIN)

    def _store(self, flags: int) -> None:
        """Store the burst that waits in staging: in a new segment, or without room in the ledger."""
        fresh = False
        while True:
            if flags & (SALVAGED | POISON) == SALVAGED and self.staging.attempt() > ATTEMPTS:
                flags |= self._give_up()
            if burst.store(self.job, self.writer.tail, self._verdicts, flags) == burst.STORED:
                return
            if fresh:
                # Received when segments were larger.
                flags |= self._give_up()
            elif self.writer.switch():
                self._point()
                fresh = True
            elif self.writer.page.words[Field.FULL]:
                self._discard(flags)
                return
            else:
                # The keeper is behind, not the disk full: senders wait in the socket meanwhile. Who is
                # killed while waiting has not failed.
                self.staging.settle()
                self._ring()
                time.sleep(0.001)

    def _discard(self, flags: int) -> None:
        bank = self.ledger.begin()
        burst.discard(self.job, bank, flags)
        number = int(self.writer.tail[BURST]) + 1
        self.ledger.commit(number)
        self.writer.tail[BURST] = number
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(int(self.job[burst.BELL]), 1)


def prepare(worker: IngestWorker) -> None:
    """Let SIGTERM end the worker between two bursts."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)


def compile_kernels() -> None:
    """Compile, or load from the cache, what every worker runs; before forking, so that they share it."""
    empty, tail = np.zeros(burst.JOB_FIELDS, np.int64), np.zeros(5 + REASONS, np.int64)
    burst.store(empty, tail, np.zeros(REASONS, np.int64), 0)
    burst.receive(empty, tail, np.zeros(REASONS, np.int64), 0)
    burst.discard(empty, 0, 0)
    staging.compile_kernels()
    ledger.compile_kernels()
    scan.compile_kernels()
