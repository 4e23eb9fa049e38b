"""Exactly once on executors: what a task's transactions delivered, and no outcome file has yet.

Each (spool, partition) delivers under a name of its own, whoever does it: another attempt at the task, or a
speculative one, gets the name to itself before it begins, and finds in the last record what need not be sent.
A record has everything that is not in an outcome file; it tells segments by their identity, as a daemon's.

When all is done, and written down, a last record of the next epoch says so. The attempt that was fenced waits
for it and ends well, too; one that begins late finds it and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dispatch.lane import Begun
from dispatch.progress import Deliverer, Letters, Progress, Runs, merge, runs_of
from dispatch.progress_topic import Place
from pipeline.errors import JobFailed
from spool.wire import DEAD_LETTERED

Segments = Sequence[tuple[int, int, int]]
"""(first sequence, number, identity) of each segment of a spool, in order."""
WHOLE: Segments = [(0, 0, 0)]
"""For jobs that name themselves: their records speak of sequence numbers, whichever segments those are in."""
TAKEN_BACK = (
    "delivery from this spool was taken back since this job began, and others deliver what it has not: run "
    "it again for what is left"
)
MOST_RUNS = 300_000
"""Of a record: it takes some 2 bytes for each, and Kafka a message of 1 MB by default."""


def present(delivered: Sequence[Runs], segments: Segments) -> npt.NDArray[np.int64]:
    """The sequence numbers of a record, in order, as far as it speaks of these segments."""
    known = {(number, identity) for _, number, identity in segments}
    found = [runs.sequences() for runs in delivered if (runs.segment, runs.identity) in known]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


class TaskBook:
    """The book of one name, for one task."""

    lanes = None
    """A task closes none."""

    def __init__(
        self,
        segments: Segments,
        epoch: int = 0,
        *,
        since: int = 0,
        place: Place | None = None,
        late: str = TAKEN_BACK,
    ) -> None:
        """`epoch`: of the job (spool.lanes), or of the batch of a job that names itself.

        `since`: nobody asks for messages below this any more. `place`: where records of this epoch are, or
        later ones. `late`: why nothing is sent any more, when records of a later epoch are found.
        """
        self.place, self.epoch, self._late = place, epoch, late
        self.begun = False
        """Whether it is known what need not be sent."""
        self.closed = False
        """Whether the lane is, by us or by others."""
        self._closing = self._was_closing = False
        self.delivered = np.empty(0, np.int64)
        """Sequences that need not be sent, in order: another attempt delivered them."""
        self._segments, self._since = segments, since
        self._firsts = np.array([first for first, _, _ in segments], np.int64)
        self._unrecorded: list[Runs] = []
        self._letters: list[Letters] = []
        """Which of these are dead letters."""
        self._found: Sequence[Letters] = ()
        self._ahead = np.empty(0, np.int64)
        """What another attempt delivered, and this one has not come by: no file of ours has it."""

    def recover(self, begun: Begun) -> str:
        """Take what the last record says for delivered; why delivery must not go on, or an empty text."""
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
        """Records say from now on that all of this is done."""
        self._closing = True

    def known(self, sequences: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
        """By outcome, which of these another attempt has delivered: 0, or that of dead letters."""
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
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[Letters]
    ) -> Progress:
        """The record of a transaction that delivers these. Raises JobFailed when it has become too large."""
        delivered = merge([*self._unrecorded, *self._runs(sequences)])
        if sum(len(block.first) for block in delivered) > MOST_RUNS:
            raise JobFailed(
                "a task has too many messages for what its transactions tell of them: use smaller batches "
                "(maxBytesPerTrigger), or `brucectl spark drain`"
            )
        self._was_closing = self._closing
        return Progress(number, self.epoch + self._closing, by, delivered, [*self._letters, *letters])

    def committed(self, sequences: npt.NDArray[np.int64], letters: Sequence[Letters], offset: int) -> None:
        """They are in Kafka."""
        self.closed = self._was_closing
        assert self.place
        self.place = self.place._replace(offset=offset)
        self._unrecorded = merge([*self._unrecorded, *self._runs(sequences)])
        self._letters += letters

    def recorded(self) -> None:
        """All that was told so far stands in outcome files."""
        self._unrecorded = self._runs(self._ahead)
        self._letters = list(self._found) if len(self._ahead) else []

    def _runs(self, sequences: npt.NDArray[np.int64]) -> list[Runs]:
        at = np.searchsorted(self._firsts, sequences, "right") - 1
        return [
            Runs(number, identity, *runs_of(sequences[at == place]))
            for place, (_, number, identity) in enumerate(self._segments)
            if (at == place).any()
        ]
