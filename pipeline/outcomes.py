"""What the daemon itself says of messages: delivered, discarded, or not delivered yet.

So say the marks, and the outcome files of jobs that nobody has taken over into them yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipeline.plan import SpoolPlan
from pipeline.segments import Part
from spool.catalogue import Catalogue
from spool.changes import CHUNK_BYTES, CHUNK_MESSAGES
from spool.environment import UNREADABLE
from spool.layout import Layout
from spool.marks import Marks
from spool.outcome_file import Settled, settle
from spool.unadopted import read_unadopted

Run = tuple[int, int]
"""Sequence numbers [first, end)."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of the messages of one plan."""

    discarded: npt.NDArray[np.int64]
    """Sequence numbers, in order."""
    backlog: list[Run]


def read_outcomes(plan: SpoolPlan) -> Outcomes:
    """Ask the marks; without readable ones, nothing is known and a message that is not in Kafka is lost."""
    unadopted = _read_unadopted(plan)
    try:
        with _open_marks(plan.layout) as marks:
            # Resolved first: what is delivered in between is then called backlog, but found in Kafka.
            floor, _ = marks.floor()
            above = _resolved_above(marks, floor)
            # Whatever is resolved stays so, for the reason that the marks have.
            fresh = unadopted.discarded[unadopted.discarded >= floor]
            discarded = np.union1d(marks.lost()[0], np.setdiff1d(fresh, above, assume_unique=True))
            settled = np.concatenate([above, fresh, unadopted.delivered])
            return Outcomes(discarded, _pending(plan.runs, floor, np.unique(settled)))
    except (FileNotFoundError, *UNREADABLE):
        return Outcomes(np.empty(0, np.int64), [])


def read_discarded(layout: Layout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(sequences in order, reasons) of stored messages that were discarded; none without readable marks."""
    try:
        with _open_marks(layout) as marks:
            return marks.lost()
    except (FileNotFoundError, *UNREADABLE):
        return np.empty(0, np.int64), np.empty(0, np.int64)


def tell_delivered(plan: SpoolPlan) -> SpoolPlan:
    """The plan, its parts with what is known of each message; as it was without readable marks."""
    unadopted = _read_unadopted(plan)
    try:
        with _open_marks(plan.layout) as marks:
            chunks = defaultdict(list)
            # Before the floor: what is dropped in between lies below it.
            for info, chunk, bitmap in marks.chunks():
                chunks[info.number].append((chunk, bitmap))
            floor, _ = marks.floor()
            lost, _ = marks.lost()
    except (FileNotFoundError, *UNREADABLE):
        return plan
    parts = [
        _delivered(part, run, floor, chunks[part.number], (unadopted.delivered, lost))
        for part, run in zip(plan.parts, plan.runs, strict=True)
    ]
    return replace(plan, parts=parts)


def _delivered(
    part: Part,
    run: Run,
    floor: int,
    chunks: list[tuple[int, npt.NDArray[np.uint8]]],
    told: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> Part:
    """The part with what is known of it; `told`: what was delivered beyond the marks, and what never was."""
    first, messages = run[0], run[1] - run[0]
    bits = np.zeros(-(-messages // 8), np.uint8)
    for chunk, bitmap in chunks:
        into = bits[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        into[:] = bitmap[: len(into)]
    _set_below(bits, min(max(0, floor - first), messages))
    more, gone = (some[slice(*np.searchsorted(some, run))] - first for some in told)
    np.bitwise_or.at(bits, more >> 3, (1 << (more & 7)).astype(np.uint8))
    np.bitwise_and.at(bits, gone >> 3, ~(1 << (gone & 7)).astype(np.uint8))
    # Marks that are ahead of a log which a disk has lost the end of speak of nothing.
    bits[messages // 8 :] &= (1 << messages % 8) - 1
    count = int(np.bitwise_count(bits).sum())
    return replace(part, delivered=count > 0 if count in (0, messages) else bits.tobytes())


def _set_below(bits: npt.NDArray[np.uint8], messages: int) -> None:
    bits[: messages // 8] = 0xFF
    bits[messages // 8 : messages // 8 + 1] |= (1 << messages % 8) - 1


def _read_unadopted(plan: SpoolPlan) -> Settled:
    """What outcome files say of a spool: to be read before the marks."""
    return settle(list(read_unadopted(plan.layout, bytes.fromhex(plan.spool)).files.values()))


@contextmanager
def _open_marks(layout: Layout) -> Iterator[Marks]:
    """The marks of a spool, to read. Raises FileNotFoundError, UNREADABLE."""
    (layout.delivery / "data.mdb").stat()
    marks = Marks(layout.delivery, Catalogue(layout), readonly=True)
    try:
        yield marks
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
