"""Delivery on the executors: whole Arrow batches at a time, through the daemon's own dispatch client.

    deliver(frame, delivery)                       a DataFrame of outcomes: spool, sequence, reason

`frame` has the columns COLUMNS, each task whole topic partitions, sorted by spool and sequence: `arrange`
does that, and it keeps order. A task that fails or runs twice sends messages again, and loses none.
`pipeline.kafka.writer` is the same as a format.

When `Delivery.outcomes` names a directory for a spool, the outcomes of its messages are on disk before they
are rows here: a job that dies leaves the outcomes that its tasks have recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from dispatch.options import DispatchOptions
from dispatch.transactions.progress import task_transactional_id
from dispatch.transactions.progress_topic import ProgressPosition, home_of
from pipeline.delivery.carrier import Carrier, TransactionalTask, nothing_earlier
from pipeline.delivery.task_book import WHOLE, Segments, TaskBook
from pipeline.delivery.task_log import Settled
from pipeline.errors import JobFailed
from pipeline.job import freeze_imports
from pipeline.source.columns import integers, to_batch
from spool.marks.outcome_file import read_task, settle, write_outcomes
from spool.storage.failpoint import reach

COLUMNS = (
    *("spool", "sequence", "topic", "partition", "kind", "partition_key", "to_partition", "timestamp_ms"),
    *("key", "value", "headers"),
)
"""The input of a delivery: columns of `pipeline.source.schema`, and the partition."""
OPTIONAL = ("kind", "to_partition", "headers")
"""Of these, those that rows may lack: they are messages of the kinds `any` and `key` then."""
OUTCOMES = "spool string, sequence long, reason int"
RECORD_S = 2.0
"""Between two outcome files of one task: messages that a job sent since the last one go twice if it dies."""

_UNSORTED = (
    "messages reach Kafka out of order: for transactions the rows must be sorted by spool, partition and "
    "sequence, as pipeline.delivery.sink.arrange does with in_transactions=True"
)
_LATE = (
    "nothing is sent: under the transactional.id {} a later batch, another job, or another task with rows of "
    "the same partition has delivered; each job and each checkpoint needs an id of its own, and the rows "
    "must be arranged with in_transactions=True"
)

_SCHEMA = pa.schema([("spool", pa.string()), ("sequence", pa.int64()), ("reason", pa.int32())])


@dataclass(frozen=True)
class Delivery:
    """How messages are delivered, and where outcomes are recorded."""

    options: DispatchOptions
    job: str = ""
    """Tells the files of this job from those of others."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """By spool (32 hexadecimal digits), a directory for outcome files; spools without one have none."""
    deadline: float = float("inf")
    """Seconds since the epoch: messages that are not sent by then are left."""
    segments: Mapping[str, Segments] = field(default_factory=dict)
    """By spool, for exactly_once: the segments that its progress records may refer to."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """By spool, for exactly_once: the epoch of this job (spool.marks.task_files)."""
    spare: int = 0
    """For exactly_once: the number of the announced task that delivers messages without a partition."""
    starts: Sequence[int] = ()
    """For exactly_once, by partition of the progress topic: where to begin to look for this job's records."""
    replayed_ms: int = 0
    """The time of the replay, ms since the epoch; 0: this is none."""
    transactional_id: str = ""
    """For exactly_once without a lease: names the job, which alone uses its records."""
    epoch: int = 0
    """With `transactional_id`: of this batch or job; a later one has at least 2 more."""

    @property
    def in_transactions(self) -> bool:
        """Whether each partition of a spool is delivered in transactions of its own."""
        return self.options.mode == "exactly_once"

    def place(self, name: str) -> ProgressPosition | None:
        """The position from which to look for this job's records of a name; None: they may be anywhere."""
        if not self.starts:
            return None
        home = home_of(name.encode(), len(self.starts))
        return ProgressPosition(home, self.starts[home])

    def over(self) -> bool:
        """Whether the time is over."""
        return time.time() >= self.deadline


def arrange(frame: DataFrame, *, in_transactions: bool = False) -> DataFrame:
    """The columns that are delivered, each partition of a topic in one task, in the order of the log.

    `in_transactions`: in one task the partitions of this number of all topics, one after the other. Rows of a
    stream stay unsorted: Spark refuses to sort them, and the writer does it.
    """
    together = ("spool", "partition") if in_transactions else ("spool", "topic", "partition")
    whole = frame.select(*columns_of(frame)).repartition(*together)
    if frame.isStreaming:
        return whole
    return whole.sortWithinPartitions(*sort_columns(in_transactions=in_transactions))


def columns_of(frame: DataFrame) -> list[str]:
    """Those of COLUMNS that a frame must have, or has."""
    return [name for name in COLUMNS if name not in OPTIONAL or name in frame.columns]


def sort_columns(*, in_transactions: bool) -> list[str]:
    """The columns by which the rows of a task are sorted."""
    return ["spool", "partition", "sequence"] if in_transactions else ["spool", "sequence"]


def deliver(frame: DataFrame, delivery: Delivery) -> DataFrame:
    """Send all of `frame`; one row (OUTCOMES) for each message that Kafka has, or never will.

    Messages that Kafka never takes, and those without a partition, go to the dead-letter topic, if there is
    one. Lazy, like all of Spark: each evaluation of the result sends everything. Tasks hold messages that
    Kafka does not take now, and send them when it does; messages without a row were not sent in time.
    """

    def carry(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for spool, settled in carry_all(batches, delivery):
            spools = pa.repeat(pa.scalar(spool), len(settled.sequences))
            yield pa.RecordBatch.from_arrays([spools, *map(pa.array, settled)], schema=_SCHEMA)
        freeze_imports("deliver")

    return frame.select(*columns_of(frame)).mapInArrow(carry, OUTCOMES)


def carry_all(batches: Iterator[pa.RecordBatch], delivery: Delivery) -> Iterator[tuple[str, Settled]]:
    """Send these rows; yields outcomes by spool, once they are known and recorded."""
    record = Record(delivery)
    carrier: Carrier | None = None
    last = Group("", None)
    try:
        for group, rows in _groups(batches, by_partition=delivery.in_transactions):
            if carrier and group != last:
                yield from _finish(carrier, record, last.spool)
                if delivery.over():
                    break
                if group.partition is None:
                    carrier.switch_to(bytes.fromhex(group.spool))
                else:
                    carrier.close()
                    carrier = None
            carrier, last = carrier or _carrier(delivery, group, rows, record), group
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            carrier.load(to_batch(columns, carrier.topics), integers(columns["partition"]).astype(np.int32))
            yield from record.take(carrier, last.spool)
            while carrier.is_full:
                carrier.step()
                yield from record.take(carrier, last.spool)
        if carrier:
            yield from _finish(carrier, record, last.spool)
    finally:
        if carrier:
            carrier.close()


def _finish(carrier: Carrier, record: Record, spool: str) -> Iterator[tuple[str, Settled]]:
    """Wait until nothing is left, or the time is over; also records the outcomes of that time."""
    while carrier.is_busy:
        carrier.step()
        yield from record.take(carrier, spool)
    carrier.finish()
    yield from record.take(carrier, spool, now=True)
    carrier.close_task()


class Group(NamedTuple):
    """The rows that one carrier delivers."""

    spool: str
    partition: int | None
    """In transactions, the number of the partitions; None: all of them together."""


def _carrier(delivery: Delivery, group: Group, rows: pa.RecordBatch, record: Record) -> Carrier:
    spool, task = bytes.fromhex(group.spool), None
    if group.partition is not None and delivery.transactional_id:
        # Rows before these belong to finished batches.
        since, late = rows.column("sequence")[0].as_py(), _LATE.format(delivery.transactional_id)
        book = TaskBook(WHOLE, delivery.epoch, since=since, late=late)
        task = TransactionalTask(f"{delivery.transactional_id}-{group.spool}-{group.partition}", book)
    elif group.partition is not None:
        # A row without a partition may become a dead letter.
        number = group.partition if group.partition >= 0 else delivery.spare
        name = task_transactional_id(spool, number)
        epoch = delivery.epochs.get(group.spool, 0)
        task = TransactionalTask(
            name, TaskBook(delivery.segments[group.spool], epoch, place=delivery.place(name))
        )
    return Carrier(
        delivery.options,
        spool,
        over=delivery.over,
        replayed_ms=delivery.replayed_ms,
        task=task,
        earlier=record.earlier,
    )


def _groups(
    batches: Iterator[pa.RecordBatch], *, by_partition: bool
) -> Iterator[tuple[Group, pa.RecordBatch]]:
    """The batches, cut at the beginning of each group.

    Raises JobFailed when the partitions are not in order: a closed transactional task cannot be reopened.
    """
    last = Group("", None)
    for batch in batches:
        changes = np.diff(np.asarray(batch.column("spool").dictionary_encode().indices), prepend=-1) != 0
        if by_partition:
            changes |= np.diff(np.asarray(batch.column("partition")), prepend=-1) != 0
        starts = np.flatnonzero(changes).tolist()
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            partition = batch.column("partition")[start].as_py() if by_partition else None
            group = Group(batch.column("spool")[start].as_py(), partition)
            if by_partition and group < last:
                raise JobFailed(_UNSORTED)
            last = group
            yield group, batch.slice(start, end - start)


class Record:
    """The outcomes of one task's messages, on the way to its outcome files."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery, self._written_at = delivery, time.monotonic()
        task = TaskContext.get()
        attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
        self._task = f"{delivery.job}-{attempt[0]}-"
        self._name = f"{self._task}{attempt[1]}"

    def earlier(self, spool: bytes) -> Settled:
        """The outcomes that other attempts at this task recorded for a spool. Raises OSError, BadSpool."""
        directory = self._delivery.outcomes.get(spool.hex())
        if not directory:
            return nothing_earlier(spool)
        found = settle(read_task(Path(directory), self._task))
        return Settled(
            np.concatenate([found.delivered, found.discarded]),
            np.concatenate([np.zeros(len(found.delivered), np.int32), found.reasons]),
        )

    def take(self, carrier: Carrier, spool: str, *, now: bool = False) -> Iterator[tuple[str, Settled]]:
        """Record the settled messages of a spool, when it is time. Raises OSError."""
        if not now and time.monotonic() - self._written_at < RECORD_S:
            return
        self._written_at = time.monotonic()
        settled = carrier.settled()
        if len(settled.sequences) == 0:
            return
        if directory := self._delivery.outcomes.get(spool):
            reach("task.settled")
            write_outcomes(Path(directory), self._name, bytes.fromhex(spool), *settled)
            carrier.recorded()
        yield spool, settled
