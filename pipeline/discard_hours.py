"""Discarded messages by the hour of their reception, as far as kept segments tell it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from pipeline.source.outcomes import read_discarded
from pipeline.source.plan import Segment, plan_spool
from pipeline.source.segments import Part, SegmentReading
from spool.format.frame import FRAME_FIRST, FRAME_RECEIVED
from spool.format.wire import DEAD_LETTERED
from spool.layout import Layout
from spool.log.intake_totals import HOUR_NS, read_refused

Numbers = npt.NDArray[np.int64]


def discard_hours(layout: Layout) -> Counter[tuple[int, int]]:
    """Discarded messages by (hour of reception since the epoch, reason of spool.format.wire).

    Only kept segments have hours: frames have the time of refused datagrams, marks the discarded stored
    messages, and segments the time when those were received. The ledger (messages discarded while the spool
    was full) and the totals of removed segments have first and last times only. Raises BadSpool,
    UnknownVersion, OSError.
    """
    found = Counter({(hour, reason): count for (reason, hour), count in read_refused(layout).hours.items()})
    plan = plan_spool(layout)
    sequences, reasons = read_discarded(layout)
    for part, segment, (first, end) in zip(plan.parts, plan.segments, plan.runs, strict=True):
        mine = slice(*np.searchsorted(sequences, (first, end)))
        if mine.start == mine.stop:
            continue
        hours = _received(part, segment, sequences[mine]) // HOUR_NS
        both = np.stack((hours, reasons[mine] & ~DEAD_LETTERED))
        pairs, counts = np.unique(both, axis=1, return_counts=True)
        for (hour, reason), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            found[hour, reason] += count
    return found


def _received(part: Part, segment: Segment, sequences: Numbers) -> Numbers:
    """When these were received (ns), to the hour: by the footer's marks, where no hour ends between two."""
    if segment.footer:
        fields, marks = segment.footer.fields, segment.footer.marks
        at = np.searchsorted(marks["first_sequence"].astype(np.int64), sequences, "right") - 1
        times = np.append(marks["received_ns"], fields["last_received_ns"]).astype(np.int64)
        if (times[at] // HOUR_NS == times[at + 1] // HOUR_NS).all():
            return np.asarray(times[at])
    # Copied: the next piece reuses the table.
    pieces = SegmentReading(part).pieces()
    tables = [piece.frames[:, [FRAME_FIRST, FRAME_RECEIVED]].copy() for piece in pieces]
    frames = np.concatenate([np.zeros((1, 2), np.int64), *tables])
    return np.asarray(frames[np.searchsorted(frames[:, 0], sequences, "right") - 1, 1])
