"""One task's way to Kafka: batches go in, in order; outcomes come out.

The daemon's router delivers them, with its rules for order, failures and dead letters. It reads a log that
the task holds in memory (`pipeline.delivery.task_log`): messages that cannot be sent now, or failed, stay
there until they can, MOST_BYTES of them at most; then the task takes no more. Partitions were chosen before,
and a topic that Kafka denies meanwhile is waited for. A dead letter that no topic takes for LETTER_S ends the
task, so that the job's error names the cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.options import DispatchOptions
from dispatch.transactions.exactly_once import ExactlyOnce
from pipeline.delivery.task_book import WHOLE, TaskBook
from pipeline.delivery.task_log import (
    DONE,
    NOTHING,
    Load,
    SetPartitions,
    Settled,
    TaskLog,
    TaskOutcomes,
    topic_of,
)
from pipeline.errors import JobFailed
from pipeline.source.columns import NOWHERE
from router.build import Parts, Task, build
from router.context import Rules
from router.limits import Limits
from router.outcomes.rejects import Rejection
from router.partition import ABSENT
from router.timing import IDLE_S, PATIENCE_S
from spool.format.batch import Batch, Topics
from spool.format.wire import Reason

MOST_BYTES = 64 << 20
LAST_S = 5.0
"""After the deadline, the task waits this long for acknowledgements of messages in flight."""

LETTER_S = 60.0
"""How long a dead letter may wait before the task ends."""


def nothing_earlier(_spool: bytes) -> Settled:
    """The outcomes that other attempts recorded, for a task that has only one."""
    return NOTHING


class TransactionalTask(NamedTuple):
    """The name under which a task delivers in transactions, and what it knows of them."""

    name: str
    """Its transactional id, and the key of its progress records."""
    book: TaskBook


class Carrier:
    """Carries the messages of one spool after the other. It starts threads: close it."""

    def __init__(  # noqa: PLR0913  (a task has most of these, or a replay)
        self,
        options: DispatchOptions,
        spool: bytes,
        *,
        over: Callable[[], bool] = lambda: False,
        replayed_ms: int = 0,
        task: TransactionalTask | None = None,
        earlier: Callable[[bytes], Settled] = nothing_earlier,
        letter_s: float = LETTER_S,
    ) -> None:
        """`over` tells whether the time is over. `task`: deliver in transactions, under its name.

        `earlier`: of a spool, the outcomes that other attempts at this task recorded; these are not sent
        again. `letter_s`: how long a dead letter may wait.

        Raises BadProperty, DispatchError.
        """
        self.topics = Topics()
        self._over, self._earlier, self._letter_s = over, earlier, letter_s
        self._spool = spool
        self._known: Settled | None = None
        self._book = task.book if task else None
        self._letters = options.dead_letter_topic.encode()
        self._letters_at = time.monotonic()
        """When dead letters were last taken, or none waited."""
        self._settled: list[Settled] = []
        self._graph = build(
            options,
            Task(task.name if task else "", replayed_ms),
            self._begin(),
            self._book or TaskBook(WHOLE),
            spool,
        )
        self._pool = self._graph.kafka.pool

    def _begin(self) -> Parts:
        """Begin with a spool: its sequences are no others'."""
        self._known = None
        self._log = TaskLog(self.topics)
        return Parts(
            self._log,
            TaskOutcomes(self._log),
            Rules(SetPartitions(self._log), Limits(self.topics)),
            Rejection(self._letters, grace_s=float("inf"), patience_s=min(PATIENCE_S, self._letter_s)),
        )

    def load(self, batch: Batch, partition: npt.NDArray[np.int32]) -> None:
        """Take in a batch with its partitions, and send what may go; while `is_full`, call `step` first.

        Messages of partition NOWHERE are given up, since Kafka does not have their topic; those of ABSENT,
        since their topic does not have the partition that they name. The topics are those of `self.topics`.
        Raises JobFailed when the messages are not in order.
        """
        if (np.diff(batch.sequence, prepend=self._log.end - 1) <= 0).any():
            raise JobFailed(
                "messages reach Kafka out of order: the rows must be sorted by spool and sequence, each once"
            )
        flat = self._find(batch, partition)
        if flat is None or not self._begun():
            return
        load = self._log.append(batch, flat)
        self._pass_over(load)
        self._give_up(load, partition == ABSENT, Reason.PARTITION)
        self._give_up(load, (partition < 0) & (partition != ABSENT), Reason.UNKNOWN_TOPIC)
        while self._log.live.sequence < self._log.end and self._graph.router.step():
            continue

    @property
    def is_full(self) -> bool:
        """Whether the carrier holds too much, and time is left to wait until it holds less."""
        return self._log.nbytes() > MOST_BYTES and not self._over()

    @property
    def is_busy(self) -> bool:
        """Whether messages are left to send, and time to send them."""
        return bool(self._log.loads) and not self._over()

    def _find(self, batch: Batch, partition: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
        """The flat numbers of these partitions, once the metadata has them all; None: the time is over."""
        partitions = self._pool.partitions
        wanted = np.zeros(len(self.topics.names), np.int32)
        np.maximum.at(wanted, batch.topic, partition + 1)
        while True:
            known = partitions.counts_of(np.arange(len(wanted), dtype=np.int32))
            missing = np.flatnonzero(known < wanted)
            if len(missing) == 0:
                flat = np.full(len(batch), NOWHERE, np.int32)
                placed = partition >= 0
                flat[placed] = partitions.flats_of(batch.topic[placed], partition[placed])
                return flat
            if self._over():
                return None
            self._graph.kafka.metadata.want([self.topics.names[topic] for topic in missing.tolist()])
            self.step()

    def _pass_over(self, load: Load) -> None:
        """Settle the messages that other attempts have settled."""
        sequences = load.batch.sequence[load.state != DONE]
        if self._known is None:
            # In transactions, no other producer of this name can commit any more: what it did is in the
            # record that was read, or in a file that was there before it.
            self._known = self._earlier(self._spool)
        for reason in np.unique(self._known.reasons).tolist():
            known = self._known.sequences[self._known.reasons == reason]
            self._log.settle(np.intersect1d(sequences, known), reason)
        for outcome, found in self._book.known(sequences).items() if self._book else ():
            self._log.settle(np.setdiff1d(found, self._known.sequences), outcome)

    def _give_up(self, load: Load, lost: npt.NDArray[np.bool_], reason: Reason) -> None:
        """Give up these rows, which have no partition; waits while there is no room for so many."""
        rows = np.flatnonzero(lost & (load.state != DONE))
        left = load.batch.sequence[rows]
        if not self._letters:
            self._log.settle(left, reason)
            return
        topics = [topic_of(load.batch, row) for row in rows.tolist()]
        while len(left) and not self._over():
            taken = self._graph.router.give_up(left, reason, topics)
            left, topics = left[taken:], topics[taken:]
            if len(left):
                self.step()

    def _begun(self) -> bool:
        """Wait until it is known which messages need not be sent; False: the time is over."""
        while self._book and not self._book.begun:
            if self._over():
                return False
            self.step()
        return True

    def recorded(self) -> None:
        """All that was settled so far is in an outcome file."""
        if self._book:
            self._book.recorded()

    def settled(self) -> Settled:
        """The outcomes since the last call."""
        found, self._settled = [*self._settled, *self._log.settled], []
        self._log.settled = []
        return Settled(*map(np.concatenate, zip(NOTHING, *found, strict=True)))

    def finish(self) -> None:
        """Send until nothing is left, or the time is over."""
        while self.is_busy:
            self.step()
        last = time.monotonic() + LAST_S
        # A transaction that is left open hides those of others from readers of their records.
        while (self._pool.in_flight() or self._pool.busy) and time.monotonic() < last:
            self._graph.kafka.client.flush(IDLE_S)
            self._graph.router.settle()

    def close_task(self) -> None:
        """Once all is settled and recorded, tell other attempts, which then send nothing any more."""
        if self._book is None or self._log.loads:
            return
        assert isinstance(self._pool, ExactlyOnce)
        self._book.close()
        while not self._book.closed and not self._over():
            self._pool.claim()
            self.step()

    def switch_to(self, spool: bytes) -> None:
        """Go on with the messages of another spool, when those of the last one are settled."""
        self.finish()
        if not self._log.loads:
            self._spool, self._settled = spool, [*self._settled, *self._log.settled]
            self._graph.switch_to(spool, self._begin())

    def close(self) -> None:
        """Release everything, whatever is in flight."""
        self._graph.close()

    # -- one step ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do the work that is ready, or sleep until an event. Raises JobFailed when the task must end."""
        self._graph.step()
        if self._pool.ended:
            self._look_back()
        complaint = self._graph.router.letters_wait_for()
        if complaint is None:
            self._letters_at = time.monotonic()
        elif time.monotonic() - self._letters_at > self._letter_s:
            raise JobFailed(complaint)

    def _look_back(self) -> None:
        """Nothing is sent any more: raises JobFailed unless other attempts have settled everything."""
        self._known = None
        for load in list(self._log.loads):
            self._pass_over(load)
        assert self._book
        if self._log.loads or not self._book.closed:
            raise JobFailed(self._pool.trouble)
