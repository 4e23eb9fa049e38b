"""Discards by the hour of their reception."""

from __future__ import annotations

import numpy as np

from pipeline.discard_hours import discard_hours
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.log.intake_totals import HOUR_NS
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.pipeline.test_stats import NOON, store
from tests.spool.fixture import SpoolFixture


def test_discards_by_hour(spool: SpoolFixture) -> None:
    """The discards in frames, and those in the marks of stored messages, by the hour of reception.

    A sealed segment counts too, of which an hour ends between two marks.
    """
    spool.append([], refused={1: (2, b"\0")}, received_ns=NOON)
    for second in (0, 3599, 3600, 7200):
        store(spool, second, 10)
    spool.append([encode(b"orders", b"v")], refused={1: (5, b"\0")}, received_ns=NOON + 7300 * 10**9)
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(
        Changes(low_watermark=0, discarded=[Discard(np.array([5, 19, 20, 30, 39]), 15, b"orders", NOON)])
    )
    marks.close()
    noon = NOON // HOUR_NS
    assert discard_hours(spool.layout) == {
        (noon, 1): 2,
        (noon + 2, 1): 5,
        (noon, 15): 2,
        (noon + 1, 15): 1,
        (noon + 2, 15): 2,
    }
