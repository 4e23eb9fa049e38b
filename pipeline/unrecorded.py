"""Exactly once: what is in Kafka and not in the marks, since the daemon or a job died in between."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.exactly_once import transactional_id
from dispatch.options import DispatchOptions
from dispatch.progress import Progress
from dispatch.progress_topic import ProgressTopic
from pipeline.errors import JobFailed
from pipeline.lease import DeliveryLease
from pipeline.task_book import Segments, present
from spool.catalogue import Catalogue
from spool.layout import Layout
from spool.marks import Marks
from spool.outcome_file import write_outcomes
from spool.wire import DEAD_LETTERED


def read_segments(layout: Layout) -> Segments:
    """The segments that progress records of this spool may speak of."""
    return [(info.first_sequence, info.number, info.identity) for info in Catalogue(layout).segments]


def recover(options: DispatchOptions, lease: DeliveryLease, segments: Segments) -> npt.NDArray[np.int64]:
    """Write down what transactions delivered that nobody has written down; the sequences, in order.

    The spool is leased: nobody begins another. Waits for those that are open until they time out. Raises
    Unreachable, and JobFailed when Kafka knows more than marks that were brought back from a backup.
    """
    name = transactional_id(lease.spool).encode()
    with closing(KafkaClient(options)) as client:
        records = ProgressTopic(
            options.kafka, options.progress_topic, name, client.fetch_cluster
        ).read_family()
    _compare(lease.layout, records)
    found = present([runs for record in records for runs in record.delivered], segments)
    reasons = np.zeros(len(found), np.int32)
    for letters in [letters for record in records for letters in record.letters]:
        reasons[np.isin(found, letters.sequences())] = letters.reason | DEAD_LETTERED
    if len(found):
        write_outcomes(lease.outcomes, "recovered", lease.spool, found, reasons)
    return found


def _compare(layout: Layout, records: list[Progress]) -> None:
    with closing(Marks(layout.delivery, Catalogue(layout), readonly=True)) as marks:
        ours, theirs = marks.generation(), max((record.generation for record in records), default=0)
    if theirs > ours:
        raise JobFailed(
            f"the marks in {layout.delivery} are older than what Kafka knows of this spool (commit {ours}, "
            f'there {theirs}): bring back the newer ones, or deliver with mode = "at_least_once"'
        )
