"""When messages were discarded, by the hour of their reception: what a spool's kept segments can tell.

Frames say when they refused datagrams. The marks say which stored messages were discarded, and the segments
when those were received. What was discarded while the spool was full is in the ledger, and what segments that
are gone had refused is in the book: these know first and last times, and no hours.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from pipeline.outcomes import read_discarded
from pipeline.plan import Segment, plan_spool
from pipeline.segments import Part, SegmentReading
from spool.layout import Layout
from spool.refused import HOUR_NS, read_refused
from spool.wire import DEAD_LETTERED

Numbers = npt.NDArray[np.int64]


def discard_hours(layout: Layout) -> Counter[tuple[int, int]]:
    """Messages by (hour since the epoch, reason of spool.wire). Raises BadSpool, UnknownVersion, OSError."""
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
        fields, marks, _ = segment.footer
        at = np.searchsorted(marks["first_sequence"].astype(np.int64), sequences, "right") - 1
        times = np.append(marks["received_ns"], fields["last_received_ns"]).astype(np.int64)
        if (times[at] // HOUR_NS == times[at + 1] // HOUR_NS).all():
            return np.asarray(times[at])
    # Copied: a table is used again for the next piece.
    tables = [piece.frames[:, [1, 3]].copy() for piece in SegmentReading(part).pieces()]
    frames = np.concatenate([np.zeros((1, 2), np.int64), *tables])
    return np.asarray(frames[np.searchsorted(frames[:, 0], sequences, "right") - 1, 1])
