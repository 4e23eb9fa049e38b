"""The good spool of the gallery, and a spool to check."""

from __future__ import annotations

import numpy as np
import pytest

from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from tests.gallery.conftest import good, home
from tests.spool.fixture import SpoolFixture

__all__ = ["good", "home", "layout"]


@pytest.fixture
def layout(spool: SpoolFixture) -> Layout:
    """Five segments, most of them sealed, with marks and an index, and no process at work."""
    for _ in range(30):
        spool.fill(3)
        spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    bitmap = np.zeros(2008, np.uint8)
    bitmap[0] = 0b1010
    number = marks.segment_list.segments[2].number
    low_watermark = marks.segment_list.segments[1].first_sequence
    marks.commit(
        Changes(
            low_watermark=low_watermark,
            chunks={(number, 0): bitmap},
            offsets={1: low_watermark, -1: low_watermark},
        )
    )
    marks.close()
    spool.crash()
    assert len(spool.layout.list_segments()) == 5
    return spool.layout
