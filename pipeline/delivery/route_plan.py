"""A job's driver plans its routes, and finds what transactions have delivered before.

Routes need Kafka's metadata, taken once, and the partition counts in the marks. A job writes new counts down
before it sends anything by them: the process that continues after a job that died must send by the same
counts.

Exactly once: messages may be in Kafka and not in the marks, since the daemon or a job died in between. The
driver finds them, as a daemon does before it delivers again, and announces the transactional tasks that its
tasks will use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress

import numpy as np
import numpy.typing as npt

from dispatch.client import NO_LEADER, Cluster, KafkaClient
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from dispatch.transactions.closing import Closing, epoch_of
from dispatch.transactions.progress import Progress, deliverer, transactional_id
from dispatch.transactions.progress_topic import Found, ProgressTopic
from pipeline.delivery.choice import History, Routes
from pipeline.delivery.lease import DeliveryLease
from pipeline.delivery.task_book import Segments, open_topic, patiently, present
from pipeline.errors import JobFailed
from spool.format.topic_table import legal
from spool.format.wire import DEAD_LETTERED
from spool.index.environment import UNREADABLE
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.marks.outcome_file import write_outcomes
from spool.marks.task_files import (
    TransactionalTasks,
    read_transactional_tasks,
    write_counts,
    write_transactional_tasks,
)

ANSWER_S = 5.0
PATIENCE_S = 30.0
"""How long Kafka may be away before a job that has not begun ends."""
PAUSE_S = 0.5
"""Between two requests for missing topics."""


def plan_routes(
    options: DispatchOptions,
    topics: Sequence[str],
    partitioners: Mapping[str, str],
    layouts: Iterable[Layout],
    deadline: float = float("inf"),
) -> Routes:
    """The routes for these topics of these spools. Raises BadProperty, Unreachable.

    Waits for a topic that Kafka does not have, as the daemon does: `unknown_topic_seconds`, or up to the
    deadline (seconds since the epoch). Also for one with fewer partitions than it had: a broker may lag
    behind.
    """
    histories = read_histories(layouts)
    wanted = dict.fromkeys(topics, 1)
    for known in histories.values():
        for topic, history in known.items():
            if topic in wanted:
                wanted[topic] = max(wanted[topic], history[-1][1])
    available = _fetch(options, wanted, deadline) if wanted else {}
    return Routes(available, dict(partitioners), options.partitioner, histories)


def read_histories(layouts: Iterable[Layout]) -> dict[str, dict[str, History]]:
    """By spool and topic, how many partitions it had from a sequence number on."""
    return {read_identity(layout).hex(): read_history(layout) for layout in layouts}


def note_counts(leases: Iterable[DeliveryLease], routes: Routes, job: str) -> None:
    """Write down the counts that are not in the spools' marks. Raises JobFailed, LeaseLost."""
    for lease in leases:
        known = routes.histories.get(lease.spool.hex(), {})
        fresh = {
            topic.encode(): [(0, len(mask))] for topic, mask in routes.available.items() if topic not in known
        }
        if fresh:
            write_histories(lease, fresh, job)


def write_histories(lease: DeliveryLease, histories: Mapping[bytes, History], job: str) -> None:
    """Add these to the marks of a spool. Raises JobFailed, LeaseLost."""
    try:
        write_counts(lease.outcomes, job, lease.spool, histories)
    except OSError as error:
        lease.check()
        raise JobFailed(f"{lease.outcomes} cannot be written: {error.strerror}") from error


def read_history(layout: Layout) -> dict[str, History]:
    """By topic, how many partitions it had from a sequence number on, from the marks."""
    if not has_begun(layout.delivery):
        return {}
    with suppress(*UNREADABLE), closing(Marks(layout.delivery, SegmentList(layout), readonly=True)) as marks:
        return {name.decode(errors="backslashreplace"): found for name, found in marks.partitions().items()}
    return {}


def _fetch(
    options: DispatchOptions, wanted: Mapping[str, int], deadline: float
) -> dict[str, npt.NDArray[np.bool_]]:
    """By topic, which partitions have a leader; waits for topics with fewer partitions than `wanted`."""
    end = min(deadline, time.time() + options.unknown_topic_seconds)
    with closing(KafkaClient(options)) as client:
        while True:
            cluster = ask(client, list(wanted), min(deadline, time.time() + PATIENCE_S))
            found = {name.decode(): leaders != NO_LEADER for name, leaders in cluster.topics.items()}
            there = all(topic in found and len(found[topic]) >= most for topic, most in wanted.items())
            if there or time.time() >= end:
                return {topic: mask for topic, mask in found.items() if topic in wanted}
            time.sleep(PAUSE_S)


def ask(client: KafkaClient, topics: Sequence[str], end: float) -> Cluster:
    """One answer. Raises Unreachable when there is none by `end`."""
    names = [topic.encode() for topic in topics if legal(topic.encode())]
    while True:
        try:
            return client.fetch_cluster(names, ANSWER_S)
        except Unreachable:
            if time.time() >= end:
                raise
            time.sleep(PAUSE_S)


def read_segments(layout: Layout) -> Segments:
    """The segments that progress records of this spool may refer to."""
    return [(info.first_sequence, info.number, info.identity) for info in SegmentList(layout).segments]


def recover(options: DispatchOptions, lease: DeliveryLease, segments: Segments) -> npt.NDArray[np.int64]:
    """Write an outcome file of messages delivered without one; the sequences, int64[n], in order.

    The spool is leased: once the transactional tasks of earlier jobs are closed, no other transaction begins.
    Waits until the transaction of a daemon that died times out, and PATIENCE_S for a Kafka that is away.
    Raises Unreachable, and JobFailed when Kafka knows more than marks that were restored from a backup.
    """
    name, tasks = transactional_id(lease.spool), read_transactional_tasks(lease.layout)

    def ask(topic: ProgressTopic) -> dict[str, Found]:
        if tasks:
            return Closing(options, topic, lease.spool, deliverer(), tasks).run()
        return topic.read_family()[0]

    with open_topic(options, name) as topic:
        family = patiently(lambda: ask(topic))
    if name in family:
        _compare(lease.layout, family[name].progress)
    records = [found.progress for found in family.values()]
    found = present([runs for record in records for runs in record.delivered], segments)
    reasons = np.zeros(len(found), np.int32)
    for letters in [letters for record in records for letters in record.letters]:
        reasons[np.isin(found, letters.sequences())] = letters.reason | DEAD_LETTERED
    if len(found):
        write_outcomes(lease.outcomes, "recovered", lease.spool, found, reasons)
    write_transactional_tasks(lease.layout, TransactionalTasks(0, epoch_of(family.values(), name, tasks)))
    return found


def announce(lease: DeliveryLease, routes: Routes) -> int:
    """Announce, before tasks begin, their transactional names; the new epoch. Raises LeaseLost, OSError.

    By it a task of an earlier batch that still runs, or begins only now, knows that it came too late.
    """
    names = spare_task(routes) + 1
    known = read_transactional_tasks(lease.layout) or TransactionalTasks(0, 0)
    tasks = TransactionalTasks(max(names, known.names), known.epoch + 1)
    write_transactional_tasks(lease.layout, tasks)
    # After the write: a daemon that takes delivery back announces that before it reads the file.
    lease.check()
    return tasks.epoch


def spare_task(routes: Routes) -> int:
    """The number of the transactional task of messages without a partition: no partition has it."""
    return max((len(mask) for mask in routes.available.values()), default=0)


def find_starts(options: DispatchOptions) -> Sequence[int]:
    """By partition of the progress topic, where it ends before tasks begin; empty without an answer."""
    with suppress(Unreachable), open_topic(options) as topic:
        return topic.ends()
    return ()


def _compare(layout: Layout, last: Progress) -> None:
    """Raise JobFailed when a daemon's last record is based on newer marks than these."""
    with closing(Marks(layout.delivery, SegmentList(layout), readonly=True)) as marks:
        ours = marks.generation()
    if last.generation > ours:
        raise JobFailed(
            f"the marks in {layout.delivery} are older than what Kafka knows of this spool (commit {ours}, "
            f'there {last.generation}): bring back the newer ones, or deliver with mode = "at_least_once"'
        )
