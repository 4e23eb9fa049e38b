"""A pool whose messages go out in transactions: what is in Kafka, and what is known of it, become so at once.

The hard place is the moment after the commit. Kafka has the messages, and nothing on this host says so yet:
a SIGKILL now, and a successor would send them again. So each transaction carries a progress record, which
says what all transactions delivered that the marks may not have yet. A successor fences whoever may still
have the producer's name, reads the last record, and takes what it says for delivered before it sends.

    BEGINNING   the name is fenced and the last record read, by the runner; nothing is handed over
    CLAIMING    a first transaction, of nothing but its record: from here on it is known who delivers
    READY       no transaction is open; the first message opens one
    OPEN        messages are handed over; reports are kept, and tell nothing yet
    ENDING      COMMIT_S is over, or a window full: nothing is handed over until the runner says how it ended
    BROKEN      the producer is finished, and it is unknown how the transaction ended: with another producer
                BEGINNING tells, since the record is in Kafka or not
    FOLLOWING   another attempt at the same task has the name: nothing is sent any more, until it is done
    FENCED      another process delivers under this name, or has: nothing is sent any more

One producer for all partitions. Several, each with a share of them, would wait for the same coordinators
and the same brokers. While a transaction ends nothing is sent: a second one must not overtake the first,
should that be aborted. A broker that does not answer is left alone for a while after it has cost a
transaction (STUCK_S).

Attempts at the same task of a job (retries, copies) share a name: the last one to begin has it, and the
others follow. It reports every KEEP_S that it is alive, and closes the task when all is done: by a record of
the next epoch, as in dispatch.transactions.closing. An attempt that finds that record has nothing to do, or
came too late.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient, Wakeup
from dispatch.diagnosis import KafkaError
from dispatch.errors import Code
from dispatch.options import DispatchOptions
from dispatch.pool import NO_OUTCOMES, HandedOver, Outcomes, Pool
from dispatch.records import Letters, produce
from dispatch.tables import NOT_HELD
from dispatch.timing import COMMIT_S, DOWN_S, KEEP_S, LEAVE_MOST_S, LEAVE_S, STILL_S
from dispatch.transactions.closing import Closing
from dispatch.transactions.progress import (
    DeadLetterRuns,
    Deliverer,
    Progress,
    dead_letter_runs,
    deliverer,
    encode,
    transactional_id,
)
from dispatch.transactions.progress_topic import ProgressPosition, ProgressTopic
from dispatch.transactions.runner import (
    Aborted,
    Begun,
    Broken,
    Committed,
    Fenced,
    Result,
    Silent,
    TransactionRunner,
)
from spool.format.batch import Batch, Topics
from spool.marks.task_files import TransactionalTasks
from spool.native.digest import TOPIC_BYTES
from spool.words import utc

_log = logging.getLogger("bruce.dispatch")


class Phase(Enum):
    """See above."""

    BEGINNING = "beginning"
    CLAIMING = "claiming"
    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    BROKEN = "broken"
    FOLLOWING = "following"
    FENCED = "fenced"


class Book(Protocol):
    """Knows what was delivered; asked before, and told after each transaction."""

    @property
    def place(self) -> ProgressPosition | None:
        """The position where the last record was looked for."""

    @property
    def tasks(self) -> TransactionalTasks | None:
        """The transactional tasks of jobs that are to be closed; None: none are, or they are not ours."""

    @property
    def epoch(self) -> int | None:
        """Of the task, where several attempts may run; None: a fenced attempt has none to follow."""

    def recover(self, begun: Begun) -> str:
        """Take what the last record says for delivered; why delivery must not go on, or an empty text."""

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns]
    ) -> Progress:
        """The record of a transaction that delivers these, some of them as dead letters."""

    def committed(
        self, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns], offset: int
    ) -> None:
        """It is in Kafka, its record at `offset`; these are told as delivered next."""


class ExactlyOnce(Pool):
    """Windows and hand-over by transactions. For one thread."""

    last_reports_s = 0.0

    at_once = False

    gives_back = False
    """Kafka alone knows how a transaction ended."""

    def __init__(  # noqa: PLR0913  (two are the times that a task keeps)
        self,
        client: KafkaClient,
        topics: Topics,
        options: DispatchOptions,
        book: Book,
        *,
        spool_uuid: bytes,
        wake: Callable[[], None],
        keep_s: float = KEEP_S,
        still_s: float = STILL_S,
    ) -> None:
        """`client` has a `transactional_id`, of the spool or of a part of it. Another thread calls `wake`.

        `keep_s`: how often a task reports that it is alive. `still_s`: how long another attempt at it may be
        silent.
        """
        super().__init__(client, topics, options, spool_uuid=spool_uuid)
        key = client.transactional_id.encode()
        topic = ProgressTopic(options.kafka, options.progress_topic, key, client.fetch_cluster)
        self._runner = TransactionRunner(client, topic, wake, still_s=still_s)
        self._topic, self._book, self._keep_s = topic, book, keep_s
        self._options, self._spool = options, spool_uuid
        self._by = deliverer()
        self._number: int | None = None
        """Of the last transaction that is known to be in Kafka; None before the first look."""
        self._reported = NO_OUTCOMES
        """Of the open transaction: what was acknowledged, and is not told."""
        self._posted: dict[int, tuple[int, bytes]] = {}
        """Of the open transaction: reason and topic of its dead letters, by sequence."""
        self._begun_at, self._ended_at, self._leave_s = 0.0, 0.0, LEAVE_S
        self._stopped = ""
        self._begin()

    # -- what the router asks -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nothing can be handed over at the moment."""
        return self.phase not in (Phase.READY, Phase.OPEN)

    @property
    def busy(self) -> bool:
        """Whether the producer must be left as it is."""
        return self._runner.busy

    @property
    def ended(self) -> bool:
        """Whether another attempt at the task has the name, or had it; a spool's deliverer looks again."""
        return self.phase is Phase.FENCED and self._book.epoch is not None

    @property
    def trouble(self) -> str:
        """Why nothing is delivered, in one sentence; empty when all is well."""
        return self._stopped or self._runner.trouble

    def in_flight(self) -> int:
        """Messages handed over whose outcome was not returned yet, or is not committed."""
        return super().in_flight() + len(self._reported.rows)

    def unsettled(self) -> npt.NDArray[np.int64]:
        """By flat number: in flight, or acknowledged and not committed."""
        counts = super().unsettled()
        np.add.at(counts, self._reported.flat, 1)
        return counts

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        """int64 by flat number: the lowest sequence in flight or not committed; NO_SEQUENCE without one."""
        lowest = super().lowest_in_flight()
        np.minimum.at(lowest, self._reported.flat, self._reported.sequence)
        return lowest

    def observe(self) -> None:
        """Bring the brokers' states up to date; one without a connection would hold up all the others."""
        super().observe()
        until = time.monotonic_ns() + int(1e9 * DOWN_S)
        for broker, state in self._client.broker_states().items():
            if state == "DOWN" and broker in self.brokers.indexes:
                self.brokers.back_off(broker, until)

    def send(self, batch: Batch, flat: npt.NDArray[np.int32], *, catching_up: bool = False) -> HandedOver:
        """Hand over what may go now, in a transaction that is open or begun for it.

        Nothing while there is none: one that ends has its record already, and a message that is added would
        be in Kafka without being known to be.
        """
        if self.phase is Phase.READY and (flat >= 0).any():
            self._open()
        if self.phase is Phase.OPEN:
            return super().send(batch, flat, catching_up=catching_up)
        wanted = np.flatnonzero(flat >= 0)
        # A partition that is held goes on from where it is.
        bare = wanted[self.partitions.held_from_of(flat[wanted]) == NOT_HELD]
        self.partitions.hold(flat[bare], batch.sequence[bare])
        return HandedOver(0, len(wanted), 0, 0)

    def post(self, letters: Letters, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Hand over records, in a transaction."""
        if self.phase is Phase.READY:
            self._open()
        if self.phase is not Phase.OPEN:
            return np.full(len(letters.rows), Code.QUEUE_FULL, np.int32)
        codes = super().post(letters, flats)
        batch, taken = letters.batch, codes == 0
        for row, reason in zip(letters.rows[taken].tolist(), letters.reasons[taken].tolist(), strict=True):
            self._posted[int(batch.sequence[row])] = reason, batch.topic_name(row)[:TOPIC_BYTES]
        return codes

    def collect(self) -> Outcomes:
        """The outcomes since the last time: refusals at once, deliveries when they are committed."""
        told = super().collect()
        good = told.code == 0
        self._reported = self._reported.join(told.only(good))
        if self.phase is Phase.OPEN and self._is_due(failed=not good.all()):
            self._end(Phase.ENDING)
        if self._book.epoch is not None and time.monotonic() - self._ended_at > self._keep_s:
            self.claim()
        result = self._runner.take()
        settled = NO_OUTCOMES if result is None else self._go_on(result)
        return told.only(~good).join(settled)._replace(more=told.more)

    def rebuild(self) -> Outcomes:
        """Go on with another producer. Once that has begun, it is known how the last transaction ended."""
        fenced = self._client.fenced
        self._reported = self._reported.join(super().rebuild())
        self._begin(fenced=fenced)
        return NO_OUTCOMES

    def claim(self) -> None:
        """Commit a transaction of nothing but its record, unless there is something else to do."""
        if self.phase is not Phase.READY:
            return
        said = self._client.transact("begin_transaction")
        if said:
            self._break(said.text)
        else:
            self._end(Phase.CLAIMING)

    def _leave_alone(self, brokers: list[int]) -> None:
        """Send nothing for a while to broker ids that did not answer."""
        for broker in brokers:
            self.brokers.back_off(broker, time.monotonic_ns() + int(1e9 * self._leave_s))
        self._leave_s = min(LEAVE_MOST_S, 2 * self._leave_s)

    def close(self) -> bool:
        """End the thread; False when it cannot be ended, and the client must be left as it is."""
        return self._runner.close()

    # -- one transaction after the other --------------------------------------------------------------

    def _begin(self, *, fenced: bool = False) -> None:
        self.phase = Phase.BEGINNING
        tasks = self._book.tasks
        closing = Closing(self._options, self._topic, self._spool, self._by, tasks) if tasks else None
        self._runner.begin(self._book.place, self._by, self._number, closing, fenced=fenced)

    def _open(self) -> None:
        said = self._client.transact("begin_transaction")
        if said:
            self._break(said.text)
            return
        self.phase, self._begun_at = Phase.OPEN, time.monotonic()

    def _is_due(self, *, failed: bool) -> bool:
        crowded = (self.brokers.rows["messages"] >= self._window[0] // 2).any()
        return failed or bool(crowded) or time.monotonic() - self._begun_at >= COMMIT_S

    def _end(self, phase: Phase) -> None:
        """Add the record to the open transaction, and commit it."""
        flying = self.flight.rows["sequence"][self.flight.rows["flat_number"] >= 0]
        sequences = np.concatenate([self._reported.sequence, flying])
        letters = dead_letter_runs(self._posted)
        progress = self._book.progress((self._number or 0) + 1, self._by, sequences, letters)
        assert self._book.place
        where = self._client.topic_handle(self._topic.name.encode()), self._book.place.partition
        code = produce(self._client.library, self._client.handle, *where, self._topic.key, encode(progress))
        self.phase = phase
        # A transaction that has failed takes no more, and without its record it must not be committed.
        self._runner.end(commit=not code, bare=phase is Phase.CLAIMING)

    def _go_on(self, result: Result) -> Outcomes:
        """Go on as the runner's task has ended; the outcomes that are known now."""
        match result:
            case Begun():
                return self._claim(result)
            case Fenced() | Silent():
                return self._give_way(result)
            case Committed():
                self._number = (self._number or 0) + 1
                self._leave_s, self._ended_at = LEAVE_S, time.monotonic()
                self.phase = Phase.READY
                letters = dead_letter_runs(self._posted)
                self._book.committed(self._reported.sequence, letters, int(self._reader.unlisted[0]))
                return self._tell(0)
            case Aborted(why):
                _log.warning("a transaction was aborted, and its messages go again: %s", why)
                # A claim has no messages; another makes up for it.
                self.phase = Phase.READY
                return self._tell(Code.TRANSACTION_ABORTABLE)
            case Broken(why, stuck):
                if stuck:
                    self._leave_alone(self.brokers.rows["id"][self.brokers.rows["messages"] > 0].tolist())
                self._break(why)
                return NO_OUTCOMES

    def _give_way(self, result: Fenced | Silent) -> Outcomes:
        """Another has the name, or had it."""
        if isinstance(result, Silent):
            self._stop(
                "another attempt at this task took it over, and has said nothing for "
                f"{self._runner.still_s:.0f} s: the next one goes on with what it left"
            )
        elif self._book.epoch is None:
            self._stop(
                f"another bruce with this spool's identity delivers: on {result.by.host}, "
                f"since {utc(result.by.started_ns)}; "
                "nothing is sent from here any more: stop one of them, and let only one have the spool"
            )
        else:
            _log.warning("another attempt at this task goes on with it, on %s", result.by.host)
            self.phase = Phase.FOLLOWING
            self._runner.follow(self._book.place, self._book.epoch)
            return self._tell(Code.PURGE_INFLIGHT)
        return NO_OUTCOMES

    def _claim(self, begun: Begun) -> Outcomes:
        """Learn what was delivered, and say so in a transaction of our own."""
        last = begun.last
        objection = self._book.recover(begun)
        if objection:
            self._stop(objection)
            return NO_OUTCOMES
        before = self._number
        # Those of an epoch are above those of the one before, whatever was found of that.
        self._number = max(last.number if last else 0, (self._book.epoch or 0) << 32)
        committed = before is not None and self._number > before
        told = self._tell(0 if committed else Code.PURGE_INFLIGHT)
        self.phase = Phase.READY
        self.claim()
        return told

    def _tell(self, code: int) -> Outcomes:
        """Everything of the transaction that has ended, with this outcome."""
        told, self._reported, self._posted = self._reported, NO_OUTCOMES, {}
        told.rows["code"] = code
        return told

    def _break(self, why: str) -> None:
        self.phase = Phase.BROKEN
        self._client.note_fatal(KafkaError(time.time(), "BROKEN_TRANSACTION", why))

    def _stop(self, why: str) -> None:
        self._stopped = why
        _log.error("%s", why)
        self.phase = Phase.FENCED


def make_pool(
    options: DispatchOptions,
    topics: Topics,
    book: Book,
    spool_uuid: bytes,
    wakeup: Wakeup,
    name: str = "",
) -> tuple[KafkaClient, Pool]:
    """A client and its pool. `wakeup` rings when there is something to collect.

    `name`: the id of its transactions; else the spool's. Raises BadProperty and DispatchError.
    """
    if options.mode != "exactly_once":
        client = KafkaClient(options, wakeup.fd)
        return client, Pool(client, topics, options, spool_uuid=spool_uuid)
    client = KafkaClient(options, wakeup.fd, transactional_id=name or transactional_id(spool_uuid))
    return client, ExactlyOnce(client, topics, options, book, spool_uuid=spool_uuid, wake=wakeup.ring)
