"""The messages recorded as delivered at one instant: in the outcome files of tasks, or in the marks already.

No task and no daemon may send a recorded message again. So a kill explains a duplicate if its message was not
recorded at that instant, and each kill explains one more copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.delivery.choice import Runs
from pipeline.source.outcomes import read_outcomes as read_marks
from pipeline.source.plan import plan_spool
from spool.layout import Layout
from spool.marks.outcome_file import list_outcomes, read_outcomes

Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """The records of one spool, at one instant."""

    files: Sequences
    """In outcome files, in order."""
    backlog: Runs
    """Messages stored below `end` that are not in the marks."""
    end: int

    def lacks(self, sequences: Sequences) -> npt.NDArray[np.bool_]:
        """Which of these were not recorded."""
        in_marks = (sequences < self.end) & ~self.backlog.hold(sequences)
        return ~in_marks & ~np.isin(sequences, self.files)


def read_recorded(layout: Layout) -> Recorded:
    """The present records of a spool. Files first: one that is taken over meanwhile is in the marks then."""
    found = [np.empty(0, np.int64)]
    for directory in sorted(layout.outcomes.glob("*/")):
        for path in list_outcomes(directory):
            try:
                found.append(read_outcomes(path).sequences)
            except FileNotFoundError:
                continue  # taken over
    plan = plan_spool(layout)
    backlog = Runs.of(read_marks(plan).backlog, plan.next_sequence)
    if not (layout.delivery / "data.mdb").exists():
        backlog = Runs.of(plan.runs, plan.next_sequence)
    return Recorded(np.unique(np.concatenate(found)), backlog, plan.next_sequence)


def open_messages(layout: Layout) -> Runs:
    """The stored messages of a spool that its marks have as not delivered."""
    plan = plan_spool(layout)
    if not (layout.delivery / "data.mdb").exists():
        return Runs.of(plan.runs, plan.next_sequence)
    return Runs.of(read_marks(plan).backlog, plan.next_sequence)


def unexplained(
    kills: Sequence[Mapping[Path, Recorded]], spool: Path, sequences: Sequences, copies: Sequences
) -> Sequences:
    """Messages of a spool with more copies beyond the first than the kills explain."""
    answers = np.zeros(len(sequences), np.int64)
    for kill in kills:
        answers += kill[spool].lacks(sequences)
    return sequences[copies > answers]
