"""The daemon's own record of messages: delivered, discarded, or not delivered yet.

It consists of the marks, and of the outcome files of jobs that no process has taken over into them yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipeline.source.plan import SpoolPlan, plan_spools
from pipeline.source.segments import Part
from spool.index.environment import UNREADABLE
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.marks.outcome_file import Settled, settle
from spool.marks.outcomes import read_pending_outcomes
from spool.native.digest import CHUNK_BYTES, CHUNK_MESSAGES

Run = tuple[int, int]
"""Sequence numbers [first, end)."""
Runs = npt.NDArray[np.int64]
"""Runs of them, int64[n, 2], in order: where a topic waits among others there is one for each message."""
NO_RUNS: Runs = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the messages of one plan."""

    discarded: npt.NDArray[np.int64]
    """Sequence numbers, in order."""
    backlog: Runs
    marked: bool = True
    """Whether the marks could be read: without them no message is known to be delivered."""
    partitions: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By topic, how many partitions it had from a sequence number on."""


def plan_with_outcomes(paths: Iterable[str]) -> Iterator[tuple[SpoolPlan, Outcomes | None]]:
    """Plans as plan_spools makes them, past what the disk cannot read, and the outcomes of what they read."""
    for plan in plan_spools(paths, skip_read_errors=True):
        yield plan, read_outcomes(plan) if plan.parts else None


def read_outcomes(plan: SpoolPlan) -> Outcomes:
    """Read the marks; without readable ones, a message that is not in Kafka counts as lost.

    After a kill while a daemon made them, all messages wait for delivery.
    """
    pending_outcomes = _read_pending(plan)
    if (plan.layout.delivery / "data.mdb").exists() and not has_begun(plan.layout.delivery):
        settled = np.concatenate([pending_outcomes.discarded, pending_outcomes.delivered])
        low_watermark = SegmentList(plan.layout).sent_below()
        backlog = _pending(plan.runs, low_watermark, np.unique(settled))
        return Outcomes(np.unique(pending_outcomes.discarded), backlog)
    try:
        with _open_marks(plan.layout) as marks:
            # Resolved first: a message delivered in between then counts as backlog, but is found in Kafka.
            low_watermark, _ = marks.low_watermark()
            above = _resolved_above(marks, low_watermark)
            # A resolved message stays resolved, for the reason in the marks.
            fresh = pending_outcomes.discarded[pending_outcomes.discarded >= low_watermark]
            discarded = np.union1d(marks.lost()[0], np.setdiff1d(fresh, above, assume_unique=True))
            settled = np.concatenate([above, fresh, pending_outcomes.delivered])
            counts = {name.decode(errors="backslashreplace"): n for name, n in marks.partitions().items()}
            backlog = _pending(plan.runs, low_watermark, np.unique(settled))
            return Outcomes(discarded, backlog, partitions=counts)
    except (FileNotFoundError, *UNREADABLE):
        return Outcomes(np.empty(0, np.int64), NO_RUNS, marked=False)


def read_discarded(layout: Layout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(sequences in order, reasons) of stored messages that were discarded; none without readable marks."""
    try:
        with _open_marks(layout) as marks:
            return marks.lost()
    except (FileNotFoundError, *UNREADABLE):
        return np.empty(0, np.int64), np.empty(0, np.int64)


def tell_delivered(plan: SpoolPlan) -> SpoolPlan:
    """The plan, its parts with the outcome of each message; unchanged without readable marks."""
    pending_outcomes = _read_pending(plan)
    try:
        with _open_marks(plan.layout) as marks:
            chunks = defaultdict(list)
            # Before the low watermark: chunks that are dropped in between are below it.
            for info, chunk, bitmap in marks.chunks():
                chunks[info.number].append((chunk, bitmap))
            low_watermark, _ = marks.low_watermark()
            lost, _ = marks.lost()
    except (FileNotFoundError, *UNREADABLE):
        return plan
    parts = [
        _delivered(part, run, low_watermark, chunks[part.number], (pending_outcomes.delivered, lost))
        for part, run in zip(plan.parts, plan.runs, strict=True)
    ]
    return replace(plan, parts=parts)


def _delivered(
    part: Part,
    run: Run,
    low_watermark: int,
    chunks: list[tuple[int, npt.NDArray[np.uint8]]],
    told: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> Part:
    """The part with its outcomes; `told`: messages delivered beyond the marks, and those that never were."""
    first, messages = run[0], run[1] - run[0]
    bits = np.zeros(-(-messages // 8), np.uint8)
    for chunk, bitmap in chunks:
        into = bits[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        into[:] = bitmap[: len(into)]
    _set_below(bits, min(max(0, low_watermark - first), messages))
    more, gone = (some[slice(*np.searchsorted(some, run))] - first for some in told)
    np.bitwise_or.at(bits, more >> 3, (1 << (more & 7)).astype(np.uint8))
    np.bitwise_and.at(bits, gone >> 3, ~(1 << (gone & 7)).astype(np.uint8))
    # After a disk lost the end of a log, marks beyond that end belong to no message.
    bits[messages // 8 :] &= (1 << messages % 8) - 1
    count = int(np.bitwise_count(bits).sum())
    return replace(part, delivered=count > 0 if count in (0, messages) else bits.tobytes())


def _set_below(bits: npt.NDArray[np.uint8], messages: int) -> None:
    bits[: messages // 8] = 0xFF
    bits[messages // 8 : messages // 8 + 1] |= (1 << messages % 8) - 1


def _read_pending(plan: SpoolPlan) -> Settled:
    """The outcomes in the outcome files of a spool: to be read before the marks."""
    return settle(list(read_pending_outcomes(plan.layout, bytes.fromhex(plan.spool)).files.values()))


@contextmanager
def _open_marks(layout: Layout) -> Iterator[Marks]:
    """The marks of a spool, to read. Raises FileNotFoundError, UNREADABLE."""
    marks = Marks(layout.delivery, SegmentList(layout), readonly=True)
    try:
        yield marks
    finally:
        marks.close()


def _resolved_above(marks: Marks, low_watermark: int) -> npt.NDArray[np.int64]:
    """The resolved sequence numbers from `low_watermark` on, in order."""
    found = [
        info.first_sequence
        + chunk * CHUNK_MESSAGES
        + np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        for info, chunk, bitmap in marks.chunks()
    ]
    numbers = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    return numbers[np.searchsorted(numbers, low_watermark) :]


def _pending(runs: list[Run], low_watermark: int, resolved: npt.NDArray[np.int64]) -> Runs:
    """The parts of `runs` at or above `low_watermark` that are not resolved."""
    pending = [NO_RUNS]
    for start, end in runs:
        first = max(start, low_watermark)
        within = resolved[np.searchsorted(resolved, first) : np.searchsorted(resolved, end)]
        starts, ends = np.append(first, within + 1), np.append(within, end)
        keep = starts < ends
        pending.append(np.stack([starts[keep], ends[keep]], axis=1))
    return np.concatenate(pending)
