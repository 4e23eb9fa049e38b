"""The ingest worker: waits for the socket and for nothing else.

No disk sync, no new file, no LMDB: senders would stand in the socket's queue until the disk lets go. What
the kernel makes a store into a mapped page wait for, the guard bridges (ingest.guard).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import time
from collections.abc import Callable

import numpy as np

from ingest import bank, burst, run
from ingest.access import Rules
from ingest.faults import Faults
from ingest.guard import Guard
from ingest.lines import Lines
from ingest.receivers import Receivers
from ingest.staging import Staging
from ingest.turn import CLOSED, DONE, GUARDED, HOLD, RECEIVING, STATE, Turn
from spool import histogram
from spool.crash_point import reach
from spool.format import MAX_BURST, POISON, SALVAGED
from spool.frame import BURST
from spool.fullness import WhenFull
from spool.kernel import address_of, function_address
from spool.ledger import Ledger
from spool.page import Field, no_beat
from spool.quarantine import keep
from spool.scan import digest_address
from spool.wire import MAX_DATAGRAM_BYTES
from spool.writer import Writer

log = logging.getLogger("bruce.ingest")

MSG_WAITFORONE, MSG_DONTWAIT = 0x10000, 0x40
ATTEMPTS = 3
"""Tries to salvage one burst before it is given up as poison."""
_WAIT_S = 0.001
"""Between two looks for what another process or thread owes us."""
_BLOCKED_S = _HELD_S = 0.01
_ROUNDS = 16
"""Where there are several: bursts of datagrams between two looks at the others."""


class Blocked(Exception):
    """The worker is to stop while the burst in staging waits for room; it stays there."""


class IngestWorker:
    """One process's hold of socket, staging and log."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        receiver: socket.socket,
        staging: Staging,
        writer: Writer,
        ledger: Ledger,
        *,
        bell: int,
        last_reader: bool,
        rules: Rules | None = None,
    ) -> None:
        """`bell`: the keeper's eventfd. `last_reader`: nobody else keeps the socket when we stop."""
        self.staging, self.writer, self.ledger = staging, writer, ledger
        self.receivers = Receivers(receiver, last_reader=last_reader)
        self.stopping = self.giving_way = False
        self.beat: Callable[[], None] = no_beat
        self._held = False
        self._guard: Guard | None = None
        self._streams: Lines | None = None
        self._rounds = burst.ROUNDS
        self._runs = 0
        """Messages of the burst that is to be stored, when it is made of runs."""
        self._scratch = np.zeros(MAX_DATAGRAM_BYTES + 64, np.uint8)
        self._verdicts = np.zeros(max(staging.slots, MAX_BURST), np.int64)
        self.job = np.zeros(burst.JOB_FIELDS, np.int64)
        libc = ctypes.CDLL(None)
        self.job[burst.FD] = receiver.fileno()
        self.job[burst.FLAGS] = MSG_WAITFORONE
        self.job[burst.SLOTS] = staging.burst
        self.job[burst.ARMED] = staging.armed_at
        self.turn = Turn()
        self._faults = Faults(self.turn)
        self.job[burst.TURN] = self.turn.address
        self.job[burst.SCRATCH] = address_of(self._scratch)
        self.job[burst.PAGE] = writer.page.address
        self.job[burst.BELL] = bell
        self.job[burst.RECVMMSG] = function_address(libc.recvmmsg)
        self.job[burst.ERRNO] = function_address(libc["__errno_location"])
        self.job[burst.CLOCK] = function_address(libc.clock_gettime)
        self.job[burst.WRITE] = function_address(libc.write)
        self.job[burst.DIGEST] = digest_address()
        sizes = writer.page.words[Field.SIZES :][: histogram.SIZE_WORDS]
        histogram.settle(sizes, int(writer.tail[BURST]))
        self._rules = rules or Rules({})
        self.job[burst.RULES] = self._rules.address
        writer.tail[BURST] = max(int(writer.tail[BURST]), ledger.burst)
        self._use(0)
        self._point()

    def serve(self, streams: Lines) -> None:
        """Store what connections offer, too."""
        self._streams = streams
        self.receivers.take_turns(streams)
        self._take_turns()

    def _take_turns(self) -> None:
        """Who has two things to wait for waits in neither."""
        self._rounds = _ROUNDS
        self.job[burst.FLAGS] |= MSG_DONTWAIT

    def _use(self, number: int) -> None:
        """Let the kernels work on a bank of staging."""
        at, slots = self.staging.bank(number), self.staging.slots
        self._bank = number
        self.job[burst.HEADERS] = at
        self.job[burst.CONTROL] = at + bank.control_at(slots)
        self.job[burst.SLOT] = at + bank.slots_at(slots)
        self.job[burst.OVERFLOW] = at + bank.overflow_at(slots)

    def _point(self) -> None:
        """Let the kernels work on the writer's live segment."""
        self.job[burst.BASE] = self.writer.base
        self.job[burst.CAPACITY] = self.writer.capacity
        self.job[burst.NUMBER] = self.writer.number

    def salvage(self) -> int:
        """Append what a predecessor received and did not append; how many datagrams that were.

        After ATTEMPTS failures a burst goes to quarantine as it is, counted as discarded, and intake
        goes on.
        """
        total = 0
        while used := self.salvage_next():
            total += used
        if total:
            log.info("%d datagrams had been received before a crash; they are stored now", total)
        self._take_up()
        return total

    @property
    def waits(self) -> int | None:
        """The bank whose burst is the next to be appended; None when no bank has it."""
        return self.staging.holder(self._next)

    @property
    def _next(self) -> int:
        """The number of the next burst."""
        return int(self.writer.tail[BURST]) + 1

    def salvage_next(self) -> int:
        """Append the next burst that waits in staging; how many datagrams it has, 0 when none waits."""
        number = self.waits
        noted = self._streams.noted if self._streams else 0
        if number is not None:
            used = self._take_from(number, SALVAGED)
        elif noted == self._next:
            used = self._take_runs(SALVAGED)
        else:
            if self._streams and 0 < noted < self._next:
                self._streams.settle()
            self.staging.settle()
            return 0
        reach("recover.salvaged")
        self.staging.settle()
        return used

    def _take_from(self, number: int, flags: int) -> int:
        """Store what lies in a bank; how many datagrams."""
        self._use(number)
        self.job[burst.USED] = used = self.staging.received(number)
        self._store(flags)
        return used

    def _take_runs(self, flags: int) -> int:
        """Store the burst of runs that is noted; how many messages."""
        assert self._streams
        self._runs = used = self._streams.list_messages()
        self._store(flags)
        self._runs = 0
        self._streams.settle()
        return used

    def _take_up(self) -> None:
        """Receive into bank 0 from here on; the reserve is empty."""
        if self.staging.reserve_in_use:
            self.staging.close_reserve()
        self._use(0)
        self.job[burst.USED] = self.staging.slots

    def _give_up(self) -> int:
        """Keep the burst that waits in staging in quarantine; the flag to store it with, as discarded."""
        used, name = self._runs or int(self.job[burst.USED]), f"burst-{self._next}.poison"
        log.error("%d messages cannot be stored; they are discarded, and kept as quarantine/%s", used, name)
        lines = self._streams if self._runs else None
        image = lines.image(used) if lines else self.staging.image(self._bank, used)
        keep(self.writer.layout, name, image)
        return POISON

    def run(self) -> None:
        """Take in until told to stop; then, if nobody else will read the socket, close and empty it."""
        try:
            self._take_in()
        except Blocked:
            self._leave_in_staging()

    def _take_in(self) -> None:
        self.salvage()
        for one in self.receivers.leaving:
            self._empty(one)
        if self.receivers.takes_turns:
            self._take_turns()
        self._guard = Guard([one.fileno() for one in self.receivers.all], self.staging, self.turn)
        self._guard.start()
        while not self.stopping:
            self.beat()
            busy = [self._round(one) for one in self.receivers.all]
            if self._streams:
                busy.append(self._round_of_runs())
            if not any(busy):
                self.receivers.wait()
        self._guard.leave()
        self._guard = None
        if not self.giving_way:
            self._take_rest()

    def _take_rest(self) -> None:
        """Refuse senders where nobody else will read, and store what they sent before."""
        self.receivers.shut_down()
        for one in self.receivers.last_of:
            self._empty(one)
        while self._streams and self._round_of_runs():
            continue

    def _empty(self, receiver: socket.socket) -> None:
        """Take what stands in a socket that was shut down for reading."""
        flags = int(self.job[burst.FLAGS])
        self.job[burst.FLAGS], self.job[burst.EMPTYING] = flags | MSG_DONTWAIT, 1
        while self._round(receiver):
            continue
        self.job[burst.FLAGS], self.job[burst.EMPTYING] = flags, 0

    def _leave_in_staging(self) -> None:
        """Stop without room: what was received, and what is in the socket, is for the next start."""
        while self.turn.load(STATE) == GUARDED:
            # What it received stays in its banks; they are only called done, so that it lets go.
            self.turn.publish(DONE, self.turn.load(CLOSED))
            time.sleep(_WAIT_S)
        if self._guard:
            self._guard.leave()
        # Also of what was an input until a reload: with bruce its queue goes.
        ending = [*self.receivers.leaving, *self.receivers.last_of]
        if ending and not self.giving_way:
            self.receivers.shut_down()
            Guard([one.fileno() for one in ending], self.staging, self.turn).take_rest()
        log.warning("the spool is full; what was received stays in %s for the next start", self.staging.path)

    def _round(self, receiver: socket.socket | None = None) -> bool:
        """Receive from a socket (that of before) until Python is needed; False when there was nothing."""
        if receiver:
            self.job[burst.FD] = receiver.fileno()
        outcome = burst.receive(self.job, self.writer.tail, self._verdicts, self._rounds)
        self._tell_hold(held=outcome == burst.HELD)
        if outcome == burst.NEEDS_SEGMENT:
            self._store(0)
            if not self.turn.finish_storing():
                self._catch_up()
        elif outcome == burst.RELIEVED:
            self._catch_up()
        elif outcome not in (burst.STORED, burst.HELD, errno.EAGAIN, errno.EINTR, errno.EFAULT):
            raise OSError(outcome, os.strerror(outcome))
        elif self.writer.is_suspect and self.writer.switch():
            # Nobody sends, and the keeper waits until nothing more is stored there.
            self._point()
        if outcome == burst.HELD:
            time.sleep(_HELD_S)
        self._count_faults()
        return bool(outcome != errno.EAGAIN)

    def _tell_hold(self, *, held: bool) -> None:
        if held and not self._held:
            log.warning("`brucectl drain --stop-intake` has stopped the intake: senders wait")
        elif self._held and not held:
            log.warning("the intake goes on")
        self._held = held

    def _round_of_runs(self) -> bool:
        """Store what connections offer, one burst; False when nothing is offered."""
        assert self._streams
        # Bank 0 holds nothing under the number that the runs get.
        bank.reset(int(self.job[burst.HEADERS]), int(self.job[burst.USED]))
        self.job[burst.USED] = 0
        bank.store_word(self.staging.armed_at, self._next)
        if not self._streams.gather(self._next):
            return False
        self.turn.begin_storing()
        self._take_runs(0)
        if not self.turn.finish_storing():
            self._catch_up()
        return True

    def _catch_up(self) -> None:
        """The guard has the socket: store what it received, until it gives the socket back."""
        done = 0
        self.turn.publish(DONE, done)
        while True:
            # The state first: nothing is closed after the guard has gone.
            alone = self.turn.load(STATE) == RECEIVING
            if self.turn.load(CLOSED) > done:
                self._take_from(1 + done, 0)
                done += 1
                self.turn.publish(DONE, done)
            elif alone:
                break
            else:
                time.sleep(_WAIT_S)
        self._take_up()

    def _count_faults(self) -> None:
        """Count datagrams that were lost on their way from the kernel, as a burst of none."""
        if self._faults.count(self.ledger, self._next):
            self.writer.tail[BURST] = self.ledger.burst
            self._ring()

    def _store(self, flags: int) -> None:
        """Store the burst that waits in staging: in a new segment, or without room in the ledger."""
        fresh = False
        while True:
            if flags & (SALVAGED | POISON) == SALVAGED and self.staging.attempt() > ATTEMPTS:
                flags |= self._give_up()
            if flags & SALVAGED:
                reach("recover.salvaging")
            if self._append(flags) == burst.STORED:
                return
            if fresh and not self.writer.is_suspect:
                # Received when segments were larger.
                flags |= self._give_up()
            elif self.writer.switch():
                self._point()
                fresh = True
            elif self._is_discarded(flags):
                return

    def _append(self, flags: int) -> int:
        if self._streams and self._runs:
            messages = self._streams.messages
            outcome = run.store(self.job, self.writer.tail, messages, self._runs, self._verdicts, flags)
        else:
            outcome = burst.store(self.job, self.writer.tail, self._verdicts, flags)
        return int(outcome)

    def _is_discarded(self, flags: int) -> bool:
        """No segment is ready. Wait for one, or discard the burst; whether it was. Raises Blocked."""
        self.beat()
        words = self.writer.page.words
        if words[Field.FULL] and words[Field.WHEN_FULL] != WhenFull.BLOCK:
            self._discard(flags)
            return True
        # Who is killed while waiting has not failed.
        self.staging.settle()
        if words[Field.FULL]:
            self._wait_for_room()
        else:
            # The keeper is behind, not the disk full.
            self._ring()
            time.sleep(_WAIT_S)
        return False

    def _wait_for_room(self) -> None:
        """Let the burst, and senders, wait; the guard receives nothing meanwhile. Raises Blocked."""
        self.turn.publish(HOLD, 1)
        while self.writer.page.words[Field.FULL] and not self.stopping:
            self.beat()
            time.sleep(_BLOCKED_S)
        if self.stopping:
            raise Blocked
        self.turn.publish(HOLD, 0)

    def _discard(self, flags: int) -> None:
        bank = self.ledger.begin()
        if self._streams and self._runs:
            run.discard(self.job, bank, self._streams.messages, self._runs, flags)
        else:
            burst.discard(self.job, bank, flags)
        reach("discard.added")
        self.ledger.commit(self._next)
        reach("discard.committed")
        self.writer.tail[BURST] = self.ledger.burst
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(int(self.job[burst.BELL]), 1)
