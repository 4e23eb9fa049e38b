"""What the daemon itself says about messages that are not in Kafka: discarded, or not delivered yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.plan import SpoolPlan
from spool.catalogue import Catalogue
from spool.marks import CHUNK_MESSAGES, UNREADABLE, Marks

Run = tuple[int, int]
"""Sequence numbers [first, end)."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of the messages of one plan."""

    discarded: list[int]
    backlog: list[Run]


def read_outcomes(plan: SpoolPlan) -> Outcomes:
    """Ask the marks; without readable ones, nothing is known and a message that is not in Kafka is lost."""
    if not (plan.layout.delivery / "data.mdb").exists():
        return Outcomes([], [])
    try:
        marks = Marks(plan.layout.delivery, Catalogue(plan.layout), readonly=True)
    except UNREADABLE:
        return Outcomes([], [])
    try:
        # Resolved first: what is delivered in between is then called backlog, but found in Kafka.
        floor, _ = marks.floor()
        above = _resolved_above(marks, floor)
        return Outcomes(sorted(marks.lost()), _pending(plan.runs, floor, above))
    except UNREADABLE:
        return Outcomes([], [])
    finally:
        marks.close()


def _resolved_above(marks: Marks, floor: int) -> npt.NDArray[np.int64]:
    """The resolved sequence numbers from `floor` on, in order."""
    found = [
        info.first_sequence
        + chunk * CHUNK_MESSAGES
        + np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        for info, chunk, bitmap in marks.chunks()
    ]
    numbers = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    return numbers[np.searchsorted(numbers, floor) :]


def _pending(runs: list[Run], floor: int, resolved: npt.NDArray[np.int64]) -> list[Run]:
    """What of the runs lies at or above `floor` and is not resolved."""
    pending: list[Run] = []
    for start, end in runs:
        first = max(start, floor)
        within = resolved[np.searchsorted(resolved, first) : np.searchsorted(resolved, end)]
        starts, ends = np.append(first, within + 1), np.append(within, end)
        keep = starts < ends
        pending += zip(starts[keep].tolist(), ends[keep].tolist(), strict=True)
    return pending
