"""One task's way to Kafka: batches go in, in order; outcomes come out.

The daemon's own pool, windows and table of errors, without its log: what cannot go now, or came back, stays
here until it can, MOST_BYTES of it at most; then nothing more is taken in. The rules are those of
`router.router`. Whatever stops a message holds its partition from it on. A pass over what is open sends to
the held partitions that have room again, until one meets the live path. Of a partition that Kafka refused
something of, one group goes at a time, until the bad record is alone.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.exactly_once import ExactlyOnce, Phase
from dispatch.options import DispatchOptions
from dispatch.partitions import NOT_HELD
from dispatch.pool import Outcomes, Pool
from dispatch.retry import Action, decide
from pipeline.batches import NOWHERE
from pipeline.dead_letters import DeadLetters, Loads
from pipeline.errors import JobFailed
from pipeline.loads import DONE, OPEN, TAKEN, Lane, Load, Settled, nothing_earlier
from router.ends import Kafka
from router.failures import Failures
from router.metadata import Metadata
from router.renewal import Renewal
from router.room import Room
from router.trouble import Trouble
from spool.record import Batch, Topics
from spool.wire import Reason

MOST_BYTES = 64 << 20
IDLE_S = 0.05
OBSERVE_S = 0.1
LAST_S = 5.0
"""When the time is over, acknowledgements of what is in flight are waited for so long."""

Mask = npt.NDArray[np.bool_]


class Carrier:
    """Carries the messages of one spool after the other. It starts threads: close it."""

    def __init__(
        self,
        options: DispatchOptions,
        spool: bytes,
        *,
        over: Callable[[], bool] = lambda: False,
        replayed_ms: int = 0,
        lane: Lane | None = None,
        earlier: Callable[[bytes], Settled] = nothing_earlier,
    ) -> None:
        """`over` tells whether the time is over. `lane`: deliver in transactions, under its name.

        `earlier`: of a spool, what other attempts at this task have written down; it is not sent again.

        Raises BadProperty, DispatchError.
        """
        self.topics = Topics()
        self._over, self._earlier = over, earlier
        self._spool = spool
        self._known: Settled | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ringing, self._closed = threading.Lock(), False
        self._book = lane.book if lane else None
        if lane:
            self._client = KafkaClient(options, self._wake, transactional_id=lane.name)
            self._pool: Pool = ExactlyOnce(
                self._client, self.topics, options, lane.book, spool_uuid=spool, wake=self._ring
            )
        else:
            self._client = KafkaClient(options, self._wake)
            self._pool = Pool(self._client, self.topics, options, spool_uuid=spool)
        if replayed_ms:
            self._pool.note_replay(replayed_ms)
        self._room = Room(self._pool, options.window_messages, options.window_bytes)
        self._metadata = Metadata(self._client.fetch_cluster, self._ring)
        self._trouble = Trouble(self._client, self._metadata)
        self._failures = Failures()
        self._dead: DeadLetters | None = None
        if options.dead_letter_topic:
            loads = Loads(self.topics, self._look_up, self._take, self._settle_some)
            kafka = Kafka(self._client, self._pool, self._room, self._metadata)
            self._dead = DeadLetters(options, loads, kafka, self._trouble)
        self._renewal = Renewal(self._client, self._pool)
        self._loads: deque[Load] = deque()
        self._settled: list[Settled] = []
        self._observed_at = 0.0

    def _ring(self) -> None:
        # Threads come by late: the number of a descriptor that is closed is somebody else's.
        with self._ringing:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def load(self, batch: Batch, partition: npt.NDArray[np.int32]) -> None:
        """Take in a batch with its partitions, and send what may go; while `is_full`, give it turns first.

        What is of partition NOWHERE is given up: Kafka does not have its topic. The topics are those of
        `self.topics`. Raises JobFailed when the messages are not in order.
        """
        end = self._loads[-1].batch.sequence[-1] if self._loads else -1
        if (np.diff(batch.sequence, prepend=end) <= 0).any():
            raise JobFailed(
                "messages reach Kafka out of order: the rows must be sorted by spool and sequence, each once"
            )
        flat = self._find(batch, partition)
        if flat is None or not self._begun():
            return
        load = Load(batch, flat)
        self._loads.append(load)
        self._pass_over(load)
        if load.left:
            self._send_live(load)
            self._give_up(load)

    @property
    def is_full(self) -> bool:
        """Whether there is too much here, and time to wait until there is less."""
        return sum(load.batch.data.nbytes for load in self._loads) > MOST_BYTES and not self._over()

    @property
    def is_busy(self) -> bool:
        """Whether anything is left here, and time for it."""
        return bool(self._loads) and not self._over()

    def _find(self, batch: Batch, partition: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
        """The flat numbers of these partitions, once Kafka has told of them all; None: there was no time."""
        partitions = self._pool.partitions
        wanted = np.zeros(len(self.topics.names), np.int32)
        np.maximum.at(wanted, batch.topic, partition + 1)
        while True:
            known = np.pad(partitions.partitions_of, (0, len(wanted)))[: len(wanted)]
            missing = np.flatnonzero(known < wanted)
            if len(missing) == 0:
                flat = np.full(len(batch), NOWHERE, np.int32)
                placed = partition != NOWHERE
                flat[placed] = partitions.flats[batch.topic[placed], partition[placed]]
                return flat
            if self._over():
                return None
            self._metadata.want([self.topics.names[topic] for topic in missing.tolist()])
            self.turn()

    def _pass_over(self, load: Load) -> None:
        """What other attempts have done is done."""
        sequences = load.batch.sequence[load.state != DONE]
        if self._known is None:
            # In transactions, nobody of the same name can commit any more: what he did stands in the record
            # that was read, or in a file that was there before it.
            self._known = self._earlier(self._spool)
        for reason in np.unique(self._known.reasons).tolist():
            known = self._known.sequences[self._known.reasons == reason]
            self._note(np.intersect1d(sequences, known), DONE, reason)
        for outcome, found in self._book.known(sequences).items() if self._book else ():
            self._note(np.setdiff1d(found, self._known.sequences), DONE, outcome)

    def _begun(self) -> bool:
        """Wait until it is known what need not be sent; False: there was no time."""
        while self._book and not self._book.begun:
            if self._over():
                return False
            self.turn()
        return True

    def recorded(self) -> None:
        """What was settled so far stands in an outcome file."""
        if self._book:
            self._book.recorded()

    def settled(self) -> Settled:
        """What became known since the last time."""
        found, self._settled = self._settled, []
        none = Settled(np.empty(0, np.int64), np.empty(0, np.int32))
        return Settled(*map(np.concatenate, zip(none, *found, strict=True)))

    def finish(self) -> None:
        """Go on until nothing is left here, or the time is over."""
        while self.is_busy:
            self.turn()
        last = time.monotonic() + LAST_S
        # A transaction that is left open hides those of others from who reads their records.
        while (self._pool.in_flight() or self._pool.busy) and time.monotonic() < last:
            self._client.flush(IDLE_S)
            self._settle()

    def close_lane(self) -> None:
        """Once all is done and written down, have other attempts know: who is one sends nothing any more."""
        if self._book is None or self._loads:
            return
        assert isinstance(self._pool, ExactlyOnce)
        self._book.close()
        while not self._book.closed and not self._over():
            self._pool.claim()
            self.turn()

    def turn_to(self, spool: bytes) -> None:
        """Go on with the messages of another spool, when those of the last one are carried."""
        self.finish()
        if not self._loads:
            self._pool.serve(spool)
            self._spool, self._known = spool, None

    def trouble(self) -> str:
        """Why nothing can be sent, in one sentence; empty when all is well."""
        return self._trouble.sentence()

    def close(self) -> None:
        """Let go, whatever is in flight."""
        self._metadata.stop()
        if self._dead:
            self._dead.close()
        if not self._pool.close():
            return  # librdkafka goes on, and rings
        self._client.close()
        with self._ringing:
            self._closed = True
            os.close(self._wake)

    # -- one turn ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what can be done, or sleep until something happens."""
        if cluster := self._metadata.take():
            self._pool.set_cluster(cluster)
        moved = self._settle()
        if isinstance(self._pool, ExactlyOnce) and self._pool.phase is Phase.FENCED:
            self._look_back()
        elif self._client.fatal:
            self._trouble.note_finished(self._client.fatal.text)
            lost = self._renewal.attempt(self._pool.in_flight())
            if lost:
                self._fail(self._dead.take_out(lost) if self._dead else lost)
        else:
            self._observe()
            moved |= self._go_over()
            moved |= self._dead is not None and not self._pool.closed and self._dead.step()
        if not moved and select.select([self._wake], [], [], IDLE_S)[0]:
            os.eventfd_read(self._wake)

    def _look_back(self) -> None:
        """Nothing is sent any more: raises JobFailed unless others have done all of it."""
        self._known = None
        for load in list(self._loads):
            self._pass_over(load)
        assert self._book
        if self._loads or not self._book.closed:
            raise JobFailed(self._pool.trouble)

    def _observe(self) -> None:
        if time.monotonic() - self._observed_at >= OBSERVE_S:
            self._observed_at = time.monotonic()
            self._pool.observe()
            if self._room.orphaned():
                self._metadata.want([])

    def _settle(self) -> bool:
        """Note what became known; whether there was anything."""
        outcomes = self._pool.collect()
        if len(outcomes.sequence) == 0:
            return False
        outcomes = self._dead.take_out(outcomes) if self._dead else outcomes
        good = outcomes.code == 0
        if good.any():
            self._trouble.note_delivered()
            self._renewal.note_delivered()
            self._failures.note_delivered(outcomes.flat[good])
            self._note(outcomes.sequence[good], DONE, 0)
        if not good.all():
            self._fail(outcomes)
        return True

    def _fail(self, outcomes: Outcomes) -> None:
        """Send again what may yet be taken, give up what never will."""
        bad = outcomes.code != 0
        verdict = self._failures.judge(outcomes.sequence[bad], outcomes.code[bad], outcomes.flat[bad])
        for reason, refused in verdict.discard.items():
            taken = self._reject(refused.sequence, reason, refused.first_ms)
            self._note(refused.sequence[taken:], OPEN, 0)
            self._pool.partitions.hold(refused.flat[taken:], refused.sequence[taken:])
        self._note(verdict.again.sequence, OPEN, 0)
        self._pool.partitions.hold(verdict.again.flat, verdict.again.sequence)
        if verdict.refresh:
            self._metadata.want([])

    def _reject(self, sequences: npt.NDArray[np.int64], reason: int, first_ms: list[int]) -> int:
        """Kafka will never take these; how many were taken care of."""
        if self._dead is None:
            self._settle_some(sequences, reason)
            return len(sequences)
        taken = min(len(sequences), self._dead.room)
        self._dead.add(sequences[:taken], reason, first_ms[:taken])
        return taken

    def _give_up(self, load: Load) -> None:
        """Have done with the rows that have no place; waits while there is no room for so many."""
        left = load.batch.sequence[(load.flat == NOWHERE) & (load.state == OPEN)]
        while len(left) and not self._over():
            now = time.time_ns() // 1_000_000
            left = left[self._reject(left, Reason.UNKNOWN_TOPIC, [now] * len(left)) :]
            if len(left):
                self.turn()

    def _look_up(self, sequence: int) -> tuple[Batch, int]:
        """Where a message is that is under way."""
        load = next(load for load in reversed(self._loads) if load.batch.sequence[0] <= sequence)
        return load.batch, int(np.searchsorted(load.batch.sequence, sequence))

    def _take(self, sequences: npt.NDArray[np.int64]) -> None:
        self._note(sequences, TAKEN, 0)

    def _settle_some(self, sequences: npt.NDArray[np.int64], reason: int) -> None:
        self._note(sequences, DONE, reason)

    def _note(self, sequences: npt.NDArray[np.int64], state: int, reason: int) -> None:
        """These are open again, or done with."""
        firsts = np.array([load.batch.sequence[0] for load in self._loads], np.int64)
        which = np.searchsorted(firsts, sequences, "right") - 1
        for number in np.unique(which).tolist():
            load, mine = self._loads[number], sequences[which == number]
            load.state[load.rows(mine)] = state
            load.left -= len(mine) if state == DONE else 0
        while self._loads and self._loads[0].left == 0:
            self._loads.popleft()
        if state == DONE:
            self._settled.append(Settled(sequences, np.full(len(sequences), reason, np.int32)))

    # -- handing over -----------------------------------------------------------------------------------

    def _send_live(self, load: Load) -> None:
        """Send the rows of a new batch whose partitions are not held."""
        held = self._pool.partitions.rows["held_from"]
        may = (load.flat != NOWHERE) & (load.state == OPEN)
        if not may.any():
            return
        if self._pool.closed or self._client.fatal:
            flats, first = np.unique(load.flat[may], return_index=True)
            self._pool.partitions.hold(flats, load.batch.sequence[may][first])
            return
        may &= held[load.flat] == NOT_HELD
        handed = self._pool.send(load.batch, np.where(may, load.flat, -1).astype(np.int32))
        after = self._pool.partitions.rows["held_from"][load.flat]
        sent = may & ((after == NOT_HELD) | (load.batch.sequence < after))
        load.state[sent] = TAKEN
        self._mind(handed.error, load.flat[may & ~sent])

    def _mind(self, error: int, flats: npt.NDArray[np.int32]) -> None:
        """Librdkafka itself did not take messages of these partitions."""
        if error:
            self._failures.decline(np.unique(flats))
            if decide(error).action is Action.REFRESH:
                self._metadata.want([])

    def _go_over(self) -> bool:
        """One pass over what is open, for the held partitions that can be sent to; whether any was sent."""
        partitions = self._pool.partitions
        held = partitions.rows["held_from"][: partitions.count] != NOT_HELD
        ready = held & self._room.led()
        if ready.any():
            ready &= self._failures.patient(partitions.count, self._pool.unsettled())
        if not ready.any():
            return False
        moved = False
        for load in self._loads:
            flat = np.where((load.state == OPEN) & ready[load.flat], load.flat, -1).astype(np.int32)
            if (flat >= 0).any():
                moved |= self._send_again(load, flat, ready)
        through = np.flatnonzero(ready).astype(np.int32)
        partitions.release(through)
        self._failures.forget(through)
        return moved

    def _send_again(self, load: Load, flat: npt.NDArray[np.int32], ready: Mask) -> bool:
        """Send the rows that `flat` places; takes partitions that cannot go on out of `ready`."""
        wanted = flat >= 0
        closed = self._failures.group(load.batch.sequence, flat)
        handed = self._pool.send(load.batch, flat, catching_up=True)
        after = self._pool.partitions.rows["held_from"][flat]
        sent = (flat >= 0) & (load.batch.sequence < after)
        load.state[sent] = TAKEN
        left = load.flat[wanted & ~sent]
        ready[left] = False
        ready[closed] = False
        self._mind(handed.error, left)
        return bool(sent.any())
