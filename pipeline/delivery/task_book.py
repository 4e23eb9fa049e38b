"""Exactly once on executors: the messages that a task's transactions delivered, and no outcome file has yet.

Each (spool, partition) delivers under one name in every attempt: another attempt at the task, or a
speculative one, fences the others off the name before it begins, and finds in the last record which messages
are in Kafka. A record has everything that is not in an outcome file; it identifies segments like the records
of a daemon.

When all is settled and recorded, a last record of the next epoch says so. The attempt that was fenced waits
for it and ends well, too; one that begins late finds it and sends nothing.

The driver reads these records with `open_topic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from dispatch.transactions.progress import DeadLetterRuns, Deliverer, Progress, Runs, merge, runs_of
from dispatch.transactions.progress_topic import ProgressPosition, ProgressTopic
from dispatch.transactions.runner import Begun
from pipeline.errors import JobFailed
from spool.format.wire import DEAD_LETTERED

Segments = Sequence[tuple[int, int, int]]
"""(first sequence, number, identity) of each segment of a spool, in order."""
WHOLE: Segments = [(0, 0, 0)]
"""For jobs that name themselves: their records have sequence numbers, whichever segments those are in."""
TAKEN_BACK = (
    "delivery from this spool was taken back since this job began, and others deliver what it has not: run "
    "it again for what is left"
)
MOST_RUNS = 300_000
"""Of a record: it takes some 2 bytes for each, and Kafka a message of 1 MB by default."""

PATIENCE_S = 60.0
"""How long Kafka may be away: after the leader of a partition dies, the other brokers must notice first."""
PAUSE_S = 1.0
T = TypeVar("T")


def present(delivered: Sequence[Runs], segments: Segments) -> npt.NDArray[np.int64]:
    """The sequence numbers of a record, in order, as far as they are in these segments."""
    known = {(number, identity) for _, number, identity in segments}
    found = [runs.sequences() for runs in delivered if (runs.segment, runs.identity) in known]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


class TaskBook:
    """The book of one name, for one task."""

    tasks = None
    """A task closes none."""

    def __init__(
        self,
        segments: Segments,
        epoch: int = 0,
        *,
        since: int = 0,
        place: ProgressPosition | None = None,
        late: str = TAKEN_BACK,
    ) -> None:
        """`epoch`: of the job (spool.marks.task_files), or of the batch of a job that names itself.

        `since`: no attempt needs messages below this any more. `place`: the position from which to look for
        records of this epoch. `late`: the reason to send nothing more, when there are records of a later
        epoch.
        """
        self.place, self.epoch, self._late = place, epoch, late
        self.begun = False
        """Whether it is known which messages need not be sent."""
        self.closed = False
        """Whether this or another attempt closed the transactional task."""
        self._closing = self._was_closing = False
        self.delivered = np.empty(0, np.int64)
        """Sequences that need not be sent, in order: another attempt delivered them."""
        self._segments, self._since = segments, since
        self._firsts = np.array([first for first, _, _ in segments], np.int64)
        self._unrecorded: list[Runs] = []
        self._letters: list[DeadLetterRuns] = []
        """Which of these are dead letters."""
        self._found: Sequence[DeadLetterRuns] = ()
        self._ahead = np.empty(0, np.int64)
        """Messages that another attempt delivered, and this one has not reached: no file of ours has them."""

    def recover(self, begun: Begun) -> str:
        """Take the messages of the last record as delivered; why delivery must stop, or an empty text."""
        self.place, self.begun = begun.place, True
        if begun.last:
            found = present(begun.last.delivered, self._segments)
            found = found[found >= self._since]
            self.delivered = np.union1d(self.delivered, found)
            self._ahead = np.union1d(self._ahead, found)
            self._found = begun.last.letters
            self._unrecorded += self._runs(found)
            self._letters += self._found
        if begun.last and begun.last.generation > self.epoch:
            self.closed = True
            return self._late
        return ""

    def close(self) -> None:
        """Mark the task as done in all later records."""
        self._closing = True

    def known(self, sequences: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
        """By outcome (0, or that of dead letters), which of these another attempt has delivered."""
        left = np.intersect1d(sequences, self.delivered)
        self._ahead = np.setdiff1d(self._ahead, left)
        found: dict[int, npt.NDArray[np.int64]] = {}
        for letters in self._found:
            dead = np.intersect1d(left, letters.sequences())
            if len(dead):
                outcome = letters.reason | DEAD_LETTERED
                found[outcome] = np.append(found.get(outcome, dead[:0]), dead)
                left = np.setdiff1d(left, dead)
        return {**found, 0: left} if len(left) else found

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns]
    ) -> Progress:
        """The record of a transaction that delivers these. Raises JobFailed when it has become too large."""
        delivered = merge([*self._unrecorded, *self._runs(sequences)])
        if sum(len(block.first) for block in delivered) > MOST_RUNS:
            raise JobFailed(
                "a task has too many messages for the records of its transactions: use smaller batches "
                "(maxBytesPerTrigger), or `brucectl spark drain`"
            )
        self._was_closing = self._closing
        return Progress(number, self.epoch + self._closing, by, delivered, [*self._letters, *letters])

    def committed(
        self, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns], offset: int
    ) -> None:
        """Note that these are in Kafka."""
        self.closed = self._was_closing
        assert self.place
        self.place = self.place._replace(offset=offset)
        self._unrecorded = merge([*self._unrecorded, *self._runs(sequences)])
        self._letters += letters

    def recorded(self) -> None:
        """Note that all that was settled so far is in outcome files."""
        self._unrecorded = self._runs(self._ahead)
        self._letters = list(self._found) if len(self._ahead) else []

    def _runs(self, sequences: npt.NDArray[np.int64]) -> list[Runs]:
        at = np.searchsorted(self._firsts, sequences, "right") - 1
        return [
            Runs(number, identity, *runs_of(sequences[at == place]))
            for place, (_, number, identity) in enumerate(self._segments)
            if (at == place).any()
        ]


@contextmanager
def open_topic(options: DispatchOptions, name: str = "") -> Iterator[ProgressTopic]:
    """The progress topic; the records of `name` are ours, and its family those that begin with it."""
    with closing(KafkaClient(options)) as client:
        yield ProgressTopic(options.kafka, options.progress_topic, name.encode(), client.fetch_cluster)


def patiently(ask: Callable[[], T]) -> T:
    """An answer of Kafka. Raises Unreachable when there is none for PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE_S)
