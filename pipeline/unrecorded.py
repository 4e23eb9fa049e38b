"""Exactly once: what is in Kafka and not in the marks, since the daemon or a job died in between.

A job's driver finds it before it begins, as a daemon does before it delivers again, and says which lanes its
tasks will use.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress

import numpy as np
import numpy.typing as npt

from dispatch.closing import Closing, epoch_of
from dispatch.errors import Unreachable
from dispatch.names import transactional_id
from dispatch.options import DispatchOptions
from dispatch.progress import Progress, deliverer
from dispatch.progress_topic import Found, ProgressTopic
from pipeline.errors import JobFailed
from pipeline.lease import DeliveryLease
from pipeline.records import open_topic, patiently
from pipeline.route import Routes
from pipeline.task_book import Segments, present
from spool.catalogue import Catalogue
from spool.lanes import Lanes, read_lanes, write_lanes
from spool.layout import Layout
from spool.marks import Marks
from spool.outcome_file import write_outcomes
from spool.wire import DEAD_LETTERED


def read_segments(layout: Layout) -> Segments:
    """The segments that progress records of this spool may speak of."""
    return [(info.first_sequence, info.number, info.identity) for info in Catalogue(layout).segments]


def recover(options: DispatchOptions, lease: DeliveryLease, segments: Segments) -> npt.NDArray[np.int64]:
    """Write down what transactions delivered that nobody has written down; the sequences, in order.

    The spool is leased: nobody begins another, when the lanes of jobs before are closed. Waits for one of a
    daemon that died until it times out, and PATIENCE_S for a Kafka that is away. Raises Unreachable, and
    JobFailed when Kafka knows more than marks that were brought back from a backup.
    """
    name, lanes = transactional_id(lease.spool), read_lanes(lease.layout)

    def ask(topic: ProgressTopic) -> dict[str, Found]:
        if lanes:
            return Closing(options, topic, lease.spool, deliverer(), lanes).run()
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
    write_lanes(lease.layout, Lanes(0, epoch_of(family.values(), name, lanes)))
    return found


def announce(lease: DeliveryLease, routes: Routes) -> int:
    """Say, before tasks begin, which lanes they may use; their epoch, a new one. Raises LeaseLost, OSError.

    A task of a batch before that is not dead yet, or begins only now, knows by it that it came too late.
    """
    names = max((len(mask) for mask in routes.available.values()), default=0)
    known = read_lanes(lease.layout) or Lanes(0, 0)
    lanes = Lanes(max(names, known.names), known.epoch + 1)
    write_lanes(lease.layout, lanes)
    # Behind it: whoever takes delivery back looks at the file after he has said so.
    lease.check()
    return lanes.epoch


def find_starts(options: DispatchOptions) -> Sequence[int]:
    """By partition of the progress topic, where it ends before tasks begin; nothing if nobody answers."""
    with suppress(Unreachable), open_topic(options) as topic:
        return topic.ends()
    return ()


def _compare(layout: Layout, last: Progress) -> None:
    """Raise JobFailed when a daemon's last record is based on newer marks than these."""
    with closing(Marks(layout.delivery, Catalogue(layout), readonly=True)) as marks:
        ours = marks.generation()
    if last.generation > ours:
        raise JobFailed(
            f"the marks in {layout.delivery} are older than what Kafka knows of this spool (commit {ours}, "
            f'there {last.generation}): bring back the newer ones, or deliver with mode = "at_least_once"'
        )
