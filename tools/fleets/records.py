"""What was written down as delivered at one instant: in the outcome files of tasks, or in the marks already.

What was, no task and no daemon may send again. So a duplicate is explained by a kill at which its message
was not written down yet, and each kill explains one more copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.backlog import Runs
from pipeline.outcomes import read_outcomes as read_marks
from pipeline.plan import plan_spool
from spool.layout import Layout
from spool.outcome_file import list_outcomes, read_outcomes

Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """Of one spool, at one instant."""

    files: Sequences
    """In outcome files, in order."""
    backlog: Runs
    """Not in the marks, of what is stored below `end`."""
    end: int

    def lacks(self, sequences: Sequences) -> npt.NDArray[np.bool_]:
        """Which of these were not written down."""
        in_marks = (sequences < self.end) & ~self.backlog.hold(sequences)
        return ~in_marks & ~np.isin(sequences, self.files)


def read_recorded(layout: Layout) -> Recorded:
    """What is written down of a spool now. Files first: what is taken over meanwhile is in the marks then."""
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
    """What the marks of a spool call not delivered, of all that is stored."""
    plan = plan_spool(layout)
    if not (layout.delivery / "data.mdb").exists():
        return Runs.of(plan.runs, plan.next_sequence)
    return Runs.of(read_marks(plan).backlog, plan.next_sequence)


def unexplained(
    kills: Sequence[Mapping[Path, Recorded]], spool: Path, sequences: Sequences, copies: Sequences
) -> Sequences:
    """Of messages of a spool with so many copies beyond the first, those that the kills do not explain."""
    answers = np.zeros(len(sequences), np.int64)
    for kill in kills:
        answers += kill[spool].lacks(sequences)
    return sequences[copies > answers]
