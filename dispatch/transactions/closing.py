"""Closing the transactional tasks of jobs: none commits any more, and all commits are known.

A job that died leaves transactions open, and perhaps tasks that do not know it. So each transactional task is

    fenced     the producer that had its name aborts, and no reader waits for the open transaction
    read       its last record says what it delivered that no outcome file may have
    closed     by a transaction of nothing but its last record once more, with the next epoch: a task that
               was fenced, or begins only now, finds it, and stops

A task that took the name between the second and the third is found by a look behind the last: it is closed
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, Producer

from dispatch.errors import Code, Unreachable
from dispatch.options import DispatchOptions, properties
from dispatch.timing import PROGRESS_ANSWER_S
from dispatch.transactions.progress import Deliverer, Progress, encode, merge, task_transactional_id
from dispatch.transactions.progress_topic import SILENT, Found, ProgressTopic, home_of
from spool.marks.task_files import TransactionalTasks

AT_ONCE = 16
"""Producers at a time: each has threads of its own."""

Leaving = Callable[[], bool]


def epoch_of(family: Iterable[Found], own: str, tasks: TransactionalTasks | None) -> int:
    """The newest epoch of a spool's transactional tasks. `own`: the daemon's key, which has none."""
    epochs = [found.progress.generation for found in family if found.key != own]
    return max([0 if tasks is None else tasks.epoch, *epochs])


class Closing:
    """Closes the transactional tasks of one spool, before the next delivery; it may be run again."""

    def __init__(
        self,
        options: DispatchOptions,
        topic: ProgressTopic,
        spool: bytes,
        by: Deliverer,
        tasks: TransactionalTasks,
    ) -> None:
        """`topic` has the key of the daemon's own records. `spool`: its uuid."""
        self._properties = {**properties(options), **SILENT}
        self._topic, self._by, self._tasks = topic, by, tasks
        self._own = topic.key.decode()
        self._names = {task_transactional_id(spool, partition) for partition in range(tasks.names)}

    def run(self, leaving: Leaving = lambda: False) -> dict[str, Found]:
        """The last records, by key: of the daemon and, once all are closed, of each transactional task.

        Raises Unreachable when that did not succeed, or when `leaving` says to end.
        """
        partitions = self._topic.ensure()
        self._each(self._fence, sorted(self._names), leaving)
        family, ends = self._topic.read_family()
        epoch = 1 + epoch_of(family.values(), self._own, self._tasks)
        for name in self._names - family.keys():
            family[name] = Found(name, home_of(name.encode(), partitions), Progress(0, 0, self._by, []))
        left = sorted(family.keys() - {self._own})
        while left:
            family |= {name: _closed(family[name], epoch, self._by) for name in left}
            self._each(self._write, [family[name] for name in left], leaving)
            more, ends = self._topic.read_since(ends)
            strangers = [one for one in more if one.key != self._own and one.progress.by != self._by]
            for one in strangers:
                family[one.key] = _join(family.get(one.key), one)
            left = sorted({one.key for one in strangers})
        return family

    def _each(self, do: Callable[[Any], object], those: list[Any], leaving: Leaving) -> None:
        """Do it with each of those, some at a time."""

        def work(one: Any) -> None:
            if leaving():
                raise Unreachable(int(Code.DESTROY), "it was asked to stop")
            do(one)

        with ThreadPoolExecutor(AT_ONCE, "tasks") as threads:
            deque(threads.map(work, those), 0)

    def _fence(self, name: str) -> Producer:
        """A producer that has the name to itself, which aborts what was open under it."""
        producer = Producer({**self._properties, "transactional.id": name})
        with _told(name):
            producer.init_transactions(PROGRESS_ANSWER_S)
        return producer

    def _write(self, record: Found) -> None:
        """Commit a record under its transactional id."""
        producer = self._fence(record.key)
        with _told(record.key):
            producer.begin_transaction()
            producer.produce(
                self._topic.name, encode(record.progress), record.key.encode(), partition=record.partition
            )
            producer.commit_transaction(PROGRESS_ANSWER_S)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Raises Unreachable, with librdkafka's reason, for a call that is worth another try."""
    try:
        yield
    except KafkaException as error:
        said = error.args[0]
        raise Unreachable(said.code(), f"{name} cannot be closed: {said.str()}") from None


def _closed(found: Found, epoch: int, by: Deliverer) -> Found:
    """The record that closes a transactional task."""
    number = found.progress.number + 1
    return found._replace(progress=found.progress._replace(number=number, generation=epoch, by=by))


def _join(before: Found | None, stranger: Found) -> Found:
    """A record with all that both say, and the number of the newer one."""
    if before is None:
        return stranger
    one, other = before.progress, stranger.progress
    both = other._replace(
        number=max(one.number, other.number),
        delivered=merge([*one.delivered, *other.delivered]),
        letters=[*one.letters, *other.letters],
    )
    return stranger._replace(progress=both)
