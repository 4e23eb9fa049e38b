"""The calls of a transactional producer that wait for brokers, in a thread of its own.

One task at a time: to begin (fence the process that had the name before, and read its last record), to end a
transaction, or to follow the process that has the name now. The pool's thread must go on reading reports
meanwhile: flush, commit and abort wait until they are read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from dispatch.client import KafkaClient
from dispatch.errors import DispatchError, Unreachable
from dispatch.timing import FOLLOW_S, GRACE_S, INIT_S, RETRY_S, STILL_S, STUCK_S
from dispatch.transactions.closing import Closing
from dispatch.transactions.progress import Deliverer, Progress
from dispatch.transactions.progress_topic import ProgressPosition, ProgressTopic
from spool.storage.failpoint import reach

_log = logging.getLogger("bruce.dispatch")

REMAINING = -1
"""Until the transaction times out."""


class Begun(NamedTuple):
    """The producer has the name to itself."""

    last: Progress | None
    """The last record that was delivered under it before."""
    place: ProgressPosition
    closed: Sequence[Progress] | None = None
    """The last records of jobs' transactional tasks, now closed; None: none were to be closed."""


class Fenced(NamedTuple):
    """Another process delivers under this name."""

    by: Deliverer


class Silent(NamedTuple):
    """It has given no sign of life for STILL_S."""


class Committed(NamedTuple):
    """The transaction is in Kafka."""


class Aborted(NamedTuple):
    """The transaction is not in Kafka, and another may begin."""

    why: str


class Broken(NamedTuple):
    """It is not known whether it is in Kafka, and this producer cannot go on."""

    why: str
    stuck: bool = False
    """Messages were not acknowledged in time."""


Result = Begun | Fenced | Silent | Committed | Aborted | Broken


class TransactionRunner:
    """The waiting side of one transactional producer."""

    def __init__(
        self,
        client: KafkaClient,
        topic: ProgressTopic,
        wake: Callable[[], None],
        *,
        still_s: float = STILL_S,
    ) -> None:
        """`wake` is called, in the other thread, when there is a result; never once `close` was called."""
        self._client, self._topic, self._wake = client, topic, wake
        self.still_s = still_s
        """Another attempt at the task that has given no sign of life for so long is Silent."""
        self._waking = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "transactions")
        self._task: Future[Result] | None = None
        self._leaving = False
        self.trouble = ""
        """Why beginning does not succeed, in words; it is tried again."""

    @property
    def busy(self) -> bool:
        """Whether a task was begun and its result not taken."""
        return self._task is not None

    def begin(
        self,
        place: ProgressPosition | None,
        by: Deliverer,
        known: int | None,
        closing: Closing | None = None,
        *,
        fenced: bool = False,
    ) -> None:
        """Fence, and read the last record from `place` on.

        `known`: the last transaction that `by` knows of. When another process has committed one since, that
        one is let be. None: `by` is new here. `closing`: transactional tasks of jobs that are to be closed,
        too. `fenced`: it was, or its transaction has timed out.
        """
        self._submit(lambda: self._begin(place, by, known, closing, GRACE_S if fenced else 0.0))

    def follow(self, place: ProgressPosition | None, epoch: int) -> None:
        """Wait until the task, which another attempt has, is closed for this epoch, or that one is Silent."""
        self._submit(lambda: self._follow(place, epoch))

    def end(self, *, commit: bool, bare: bool = False) -> None:
        """End the transaction, by a commit or an abort. `bare`: it has nothing but its record."""
        self._submit(lambda: self._commit(bare=bare) if commit else self._abort("it has failed"))

    def take(self) -> Result | None:
        """The result, once there is one."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        return task.result()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Let the thread go; False when it still waits for a broker, and the client must be left alone."""
        with self._waking:
            self._leaving = True
        deadline = time.monotonic() + timeout_s
        while self._task is not None and not self._task.done() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._thread.shutdown(wait=False)
        return self._task is None or self._task.done()

    def _submit(self, task: Callable[[], Result]) -> None:
        assert not self.busy
        self._task = self._thread.submit(task)
        self._task.add_done_callback(lambda _: self._tell())

    def _tell(self) -> None:
        """Wake the pool, unless it has left: its eventfd is closed then, and the number may be reused."""
        with self._waking:
            if not self._leaving:
                self._wake()

    def _begin(
        self,
        place: ProgressPosition | None,
        by: Deliverer,
        known: int | None,
        closing: Closing | None,
        pause_s: float,
    ) -> Result:
        named = False
        time.sleep(pause_s)
        while not self._leaving:
            try:
                # An open transaction may be our own: it is decided when we have the name again.
                if known is not None and (other := _newer(self._topic.look(place)[0], by, known)):
                    return Fenced(other)
                if not named:
                    self._init()
                    named = True
                closed = self._close(closing) if closing else None
                begun = Begun(*self._topic.read(place), closed)
            except Unreachable as error:
                self._complain(str(error))
            except DispatchError as error:
                return Broken(str(error))
            else:
                self.trouble = ""
                other = _newer(begun.last, by, known)
                return Fenced(other) if other else begun
            time.sleep(RETRY_S)
        return Broken("it was asked to stop")

    def _follow(self, place: ProgressPosition | None, epoch: int) -> Result:
        number, seen_at = -1, time.monotonic()
        while not self._leaving:
            try:
                last, place = self._topic.look(place)
            except Unreachable as error:
                self._complain(str(error))
                seen_at = time.monotonic()
            else:
                self.trouble = ""
                if last and last.generation > epoch:
                    return Begun(last, place)
                if last and last.number != number:
                    number, seen_at = last.number, time.monotonic()
                elif time.monotonic() - seen_at > self.still_s:
                    return Silent()
            time.sleep(FOLLOW_S)
        return Broken("it was asked to stop")

    def _close(self, closing: Closing) -> list[Progress]:
        family = closing.run(lambda: self._leaving)
        return [found.progress for key, found in family.items() if key != self._topic.key.decode()]

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble = trouble

    def _init(self) -> None:
        """Raises Unreachable when it is worth another try, else DispatchError."""
        said = self._client.transact("init_transactions", int(1000 * INIT_S))
        if said is None:
            return
        if said.fatal:
            raise DispatchError(said.text)
        raise Unreachable(said.code, f"no transaction can begin: {said.text}")

    def _commit(self, *, bare: bool) -> Result:
        if not self._client.flush(STUCK_S):
            return Broken(f"messages were not acknowledged within {STUCK_S:.0f} s", stuck=True)
        if not bare:
            reach("transaction.flushed")
        said = self._client.transact("commit_transaction", REMAINING)
        if said is None:
            return Committed()
        return self._abort(said.text) if said.requires_abort else Broken(said.text)

    def _abort(self, why: str) -> Result:
        said = self._client.transact("abort_transaction", REMAINING)
        return Broken(said.text) if said else Aborted(why)


def _newer(last: Progress | None, by: Deliverer, known: int | None) -> Deliverer | None:
    """The process that has committed this record, unless it was `by`, or the record is known."""
    if last is None or known is None or last.number <= known or last.by.instance == by.instance:
        return None
    return last.by
