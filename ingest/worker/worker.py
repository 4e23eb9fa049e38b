"""The ingest worker: waits for its sockets and for nothing else.

No disk sync, no new file, no LMDB: senders would wait in the socket's queue until the disk answers. While the
kernel makes a store into a mapped page wait, the guard receives (ingest.worker.guard).

With one datagram socket and no streams it waits in recvmmsg. With more than one source it polls, and receives
from each in turn without waiting (`Receivers`).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

import numpy as np

from ingest.access import Rules
from ingest.buffers.connection_buffers import ConnectionBuffers
from ingest.buffers.messages import image, new_messages
from ingest.buffers.staging import MSG_DONTWAIT, MSG_WAITFORONE, Staging, reset, store_word
from ingest.worker import burst
from ingest.worker.guard import BLOCKED, CLOSED, DONE, GUARDED, RECEIVING, STATE, Faults, Guard, Handoff
from spool.format.frame import BURST
from spool.format.scan import digest_address
from spool.format.segment_format import POISON, SALVAGED
from spool.format.wire import MAX_DATAGRAM_BYTES
from spool.log.writer import Writer
from spool.native.memory import Address, address_of, function_address
from spool.options import WhenFull
from spool.shared import histogram
from spool.shared.ledger import Ledger
from spool.shared.state import Field, no_beat
from spool.storage.disk import keep
from spool.storage.failpoint import reach
from spool.words import agreeing, counted

log = logging.getLogger("bruce.ingest")

ATTEMPTS = 3
"""Tries to salvage one burst before it is given up as poison."""
_WAIT_S = 0.001
"""Between two looks for what another process or thread owes us."""
_BLOCKED_S = _PAUSED_S = 0.01
_ROUNDS = 16
"""With several sources: bursts of datagrams between two looks at the others."""
_IDLE_MS = 200
"""Between two looks for changes that wake no poll."""


class Blocked(Exception):
    """The worker is to stop while the burst in staging waits for room; it stays there."""


class IngestWorker:
    """The sockets, staging and log of one process."""

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
        """`bell`: the keeper's eventfd. `last_reader`: no other process keeps the socket when we stop."""
        self.staging, self.writer, self.ledger = staging, writer, ledger
        self.receivers = Receivers(receiver, last_reader=last_reader)
        self.stopping = self.giving_way = False
        self.beat: Callable[[], None] = no_beat
        self._paused = False
        self._guard: Guard | None = None
        self._streams: list[ConnectionBuffers] = []
        self._rounds = burst.ROUNDS
        self._scratch = np.zeros(MAX_DATAGRAM_BYTES + 64, np.uint8)
        self._messages = new_messages()
        """Those of the burst that is being stored."""
        self.job = np.zeros(burst.JOB_FIELDS, np.int64)
        libc = ctypes.CDLL(None)
        self.job[burst.FD] = receiver.fileno()
        self.job[burst.FLAGS] = MSG_WAITFORONE
        self.job[burst.BUFFER] = staging.buffer(0)
        self.job[burst.SLOTS], self.job[burst.BURST_SLOTS] = staging.slots, staging.burst
        self.job[burst.ARMED] = staging.armed_at
        self.handoff = Handoff()
        self._faults = Faults(self.handoff)
        self.job[burst.HANDOFF] = self.handoff.address
        self.job[burst.SCRATCH] = address_of(self._scratch)
        self.job[burst.PAGE] = writer.shared.address
        self.job[burst.BELL] = bell
        self.job[burst.RECVMMSG] = function_address(libc.recvmmsg)
        self.job[burst.ERRNO] = function_address(libc["__errno_location"])
        self.job[burst.CLOCK] = function_address(libc.clock_gettime)
        self.job[burst.WRITE] = function_address(libc.write)
        self.job[burst.DIGEST] = digest_address()
        sizes = writer.shared.words[Field.SIZES :][: histogram.SIZE_WORDS]
        histogram.settle(sizes, int(writer.tail[BURST]))
        self._rules = rules or Rules({})
        self.job[burst.RULES] = self._rules.address
        writer.tail[BURST] = max(int(writer.tail[BURST]), ledger.burst)
        self._point()

    def serve(self, streams: ConnectionBuffers) -> None:
        """Store what connections offer, too; of several workers one after the other."""
        self._streams.append(streams)
        self.receivers.poll_all(self._streams)
        self._receive_without_blocking()

    def _receive_without_blocking(self) -> None:
        """With several inputs, receive without blocking and poll."""
        self._rounds = _ROUNDS
        self.job[burst.FLAGS] |= MSG_DONTWAIT

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
            log.info("%s stored now, received before a crash", agreeing(total, "datagram"))
        self._take_up()
        return total

    @property
    def waits(self) -> int | None:
        """The buffer whose burst is the next to be appended; None when no buffer has it."""
        return self.staging.buffer_of(self._next)

    @property
    def _next(self) -> int:
        """The number of the next burst."""
        return int(self.writer.tail[BURST]) + 1

    def salvage_next(self) -> int:
        """Append the next burst that waits in staging; how many datagrams it has, 0 when none waits."""
        number = self.waits
        noted = next((one for one in self._streams if one.noted == self._next), None)
        if number is not None:
            used = self._take_from(number, SALVAGED)
        elif noted:
            used = self._take_runs(noted, SALVAGED)
        else:
            for one in self._streams:
                if 0 < one.noted < self._next:
                    one.settle()
            self.staging.settle()
            return 0
        reach("recover.salvaged")
        self.staging.settle()
        return used

    def _take_from(self, number: int, flags: int) -> int:
        """Store the datagrams of a receive buffer; how many."""
        used = self.staging.list_messages(number, self._messages)
        self._store(used, flags)
        return used

    def _take_runs(self, streams: ConnectionBuffers, flags: int) -> int:
        """Store the burst of runs that is noted; how many messages."""
        used = streams.list_messages(self._messages)
        self._store(used, flags)
        streams.settle()
        return used

    def _take_up(self) -> None:
        """Receive from here on; the reserve is empty."""
        if self.staging.reserve_in_use:
            self.staging.close_reserve()
        self.job[burst.USED] = self.staging.slots

    def _give_up(self, used: int) -> int:
        """Keep the `used` listed messages in quarantine; the flag to store them with, as discarded."""
        name = f"burst-{self._next}.poison"
        given_up = counted(used, "datagram")
        log.error("%s cannot be stored: discarded, and kept as quarantine/%s", given_up, name)
        keep(self.writer.layout, name, [image(self._messages[:used])])
        return POISON

    def run(self) -> None:
        """Receive until stopped; then, if no other process will read the socket, close and empty it."""
        try:
            self._take_in()
        except Blocked:
            self._leave_in_staging()

    def _take_in(self) -> None:
        self.salvage()
        for one in self.receivers.leaving:
            self._empty(one)
        if self.receivers.polls:
            self._receive_without_blocking()
        self._guard = Guard([one.fileno() for one in self.receivers.all], self.staging, self.handoff)
        self._guard.start()
        while not self.stopping:
            self.beat()
            busy = [self._round(one) for one in self.receivers.all]
            busy += [self._round_of_runs(one) for one in self._streams]
            if not any(busy):
                self.receivers.wait()
        self._guard.leave()
        self._guard = None
        if not self.giving_way:
            self._take_rest()

    def _take_rest(self) -> None:
        """Refuse senders where no other process will read, and store what they sent before."""
        self.receivers.shut_down()
        for one in self.receivers.last_of:
            self._empty(one)
        for streams in self._streams:
            while self._round_of_runs(streams):
                continue

    def _empty(self, receiver: socket.socket) -> None:
        """Take the messages in the queue of a socket that was shut down for reading."""
        flags = int(self.job[burst.FLAGS])
        self.job[burst.FLAGS], self.job[burst.EMPTYING] = flags | MSG_DONTWAIT, 1
        while self._round(receiver):
            continue
        self.job[burst.FLAGS], self.job[burst.EMPTYING] = flags, 0

    def _leave_in_staging(self) -> None:
        """Stop without room: what was received, and what is in the socket, is for the next start."""
        while self.handoff.load(STATE) == GUARDED:
            # Its datagrams stay in its buffers, which are only marked as done, so that the guard lets go.
            self.handoff.publish(DONE, self.handoff.load(CLOSED))
            time.sleep(_WAIT_S)
        if self._guard:
            self._guard.leave()
        # Also of what was an input until a reload: with bruce its queue goes.
        ending = [*self.receivers.leaving, *self.receivers.last_of]
        if ending and not self.giving_way:
            self.receivers.shut_down()
            Guard([one.fileno() for one in ending], self.staging, self.handoff).take_rest()
        log.warning("the spool is full; what was received stays in %s for the next start", self.staging.path)

    def _round(self, receiver: socket.socket | None = None) -> bool:
        """Receive from a socket (that of before) until Python is needed; False when there was nothing."""
        if receiver:
            self.job[burst.FD] = receiver.fileno()
        outcome = burst.receive(self.job, self.writer.tail, self._messages, self._rounds)
        self._log_pause(paused=outcome == burst.PAUSED)
        if outcome == burst.NEEDS_SEGMENT:
            self._store(int(self.job[burst.USED]), 0)
            if not self.handoff.finish_storing():
                self._catch_up()
        elif outcome == burst.RELIEVED:
            self._catch_up()
        elif outcome not in (burst.STORED, burst.PAUSED, errno.EAGAIN, errno.EINTR, errno.EFAULT):
            raise OSError(outcome, os.strerror(outcome))
        elif self.writer.is_suspect and self.writer.switch():
            # No client sends, and the keeper waits until nothing more is stored there.
            self._point()
        if outcome == burst.PAUSED:
            time.sleep(_PAUSED_S)
        self._grow_if_full()
        self._count_faults()
        self.writer.let_go()
        return bool(outcome != errno.EAGAIN)

    def _grow_if_full(self) -> None:
        """Larger bursts from now on, if the last one filled all its slots: more datagrams wait."""
        if self.job[burst.USED] == self.job[burst.BURST_SLOTS] < self.staging.most:
            self.job[burst.BURST_SLOTS] = self.staging.grow()

    def _log_pause(self, *, paused: bool) -> None:
        if paused and not self._paused:
            log.warning("`brucectl drain --stop-intake` has stopped the intake: senders wait")
        elif self._paused and not paused:
            log.warning("the intake goes on")
        self._paused = paused

    def _round_of_runs(self, streams: ConnectionBuffers) -> bool:
        """Store what connections offer, one burst; False when nothing is offered."""
        # Buffer 0 holds nothing under the number that the runs get.
        reset(Address(int(self.job[burst.BUFFER])), int(self.job[burst.USED]))
        self.job[burst.USED] = 0
        store_word(self.staging.armed_at, self._next)
        if not streams.gather(self._next):
            return False
        self.handoff.begin_storing()
        self._take_runs(streams, 0)
        if not self.handoff.finish_storing():
            self._catch_up()
        self.writer.let_go()
        return True

    def _catch_up(self) -> None:
        """The guard has the socket: store what it received, until it gives the socket back."""
        done = 0
        self.handoff.publish(DONE, done)
        while True:
            # The state first: nothing is closed after the guard has gone.
            alone = self.handoff.load(STATE) == RECEIVING
            if self.handoff.load(CLOSED) > done:
                self._take_from(1 + done, 0)
                done += 1
                self.handoff.publish(DONE, done)
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

    def _store(self, used: int, flags: int) -> None:
        """Store the `used` listed messages: in a new segment, or without room in the ledger."""
        fresh = False
        while True:
            if flags & (SALVAGED | POISON) == SALVAGED and self.staging.attempt() > ATTEMPTS:
                flags |= self._give_up(used)
            if flags & SALVAGED:
                reach("recover.salvaging")
            if burst.store(self.job, self.writer.tail, self._messages, used, flags) == burst.STORED:
                return
            if fresh and not self.writer.is_suspect:
                # Received when segments were larger.
                flags |= self._give_up(used)
            elif self.writer.switch():
                self._point()
                fresh = True
            elif self._is_discarded(used, flags):
                return

    def _is_discarded(self, used: int, flags: int) -> bool:
        """No segment is ready. Wait for one, or discard the burst; whether it was. Raises Blocked."""
        self.beat()
        words = self.writer.shared.words
        if words[Field.FULL] and words[Field.WHEN_FULL] != WhenFull.BLOCK:
            self._discard(used, flags)
            return True
        # A worker that is killed while waiting has not failed.
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
        self.handoff.publish(BLOCKED, 1)
        while self.writer.shared.words[Field.FULL] and not self.stopping:
            self.beat()
            time.sleep(_BLOCKED_S)
        if self.stopping:
            raise Blocked
        self.handoff.publish(BLOCKED, 0)

    def _discard(self, used: int, flags: int) -> None:
        burst.discard(self.job, self.ledger.begin(), self._messages, used, flags)
        reach("discard.added")
        self.ledger.commit(self._next)
        reach("discard.committed")
        self.writer.tail[BURST] = self.ledger.burst
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(int(self.job[burst.BELL]), 1)


class Receivers:
    """The datagram sockets of one worker, and everything else that it waits for."""

    def __init__(self, first: socket.socket, *, last_reader: bool) -> None:
        """`last_reader`: no other process keeps the socket when we stop."""
        self.all, self.last_of = [first], [first] if last_reader else []
        self.leaving: Sequence[socket.socket] = ()
        """No inputs any more, and to be emptied before anything else."""
        self._poll: select.poll | None = None
        """With more than one source to wait for."""
        self._streams: Sequence[ConnectionBuffers] = ()

    def join(self, receiver: socket.socket, *, last_reader: bool) -> None:
        """Have one more."""
        self.all.append(receiver)
        self.last_of += [receiver] if last_reader else []
        self.poll_all(self._streams)

    def poll_all(self, streams: Sequence[ConnectionBuffers]) -> None:
        """Wait for all of them at once, and for what connections offer."""
        self._poll, self._streams = select.poll(), streams
        for one in self.all:
            self._poll.register(one, select.POLLIN)
        for buffers in streams:
            self._poll.register(buffers.bells.offered, select.POLLIN)

    @property
    def polls(self) -> bool:
        """Whether no receive may block."""
        return self._poll is not None

    def wait(self) -> None:
        """Poll until something comes; a worker with one socket waits in recvmmsg instead."""
        if self._poll:
            self._poll.poll(_IDLE_MS)
        for one in self._streams:
            one.hush()

    def shut_down(self) -> None:
        """Refuse senders where no other process reads; what they sent before stays readable."""
        for one in self.last_of:
            one.shutdown(socket.SHUT_RD)
