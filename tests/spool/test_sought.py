"""How many of a set of messages are left, against sets of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spool.catalogue import Catalogue, SegmentInfo
from spool.layout import Layout
from spool.sought import Sought

SEGMENTS = [SegmentInfo(first, number, first, number) for number, first in enumerate((0, 100, 1 << 32), 1)]
SEQUENCES = st.sets(
    st.one_of(st.integers(0, 99), st.integers(100, 180), st.integers(1 << 32, (1 << 32) + 60)), max_size=80
)


@given(SEQUENCES, SEQUENCES, st.lists(st.sampled_from([0, 5, 99, 100, 131, 1 << 32, (1 << 32) + 61])))
def test_left_is_what_is_sought_and_not_resolved(
    sought: set[int], resolved: set[int], floors: list[int]
) -> None:
    """Over segments, epochs and a floor that rises; messages may come in several batches a segment."""
    catalogue = Catalogue(Layout(Path("/nowhere")))
    catalogue.segments = SEGMENTS
    kept, bits = Sought(), {}
    for info, end in zip(SEGMENTS, (100, 1 << 32, 1 << 40), strict=True):
        inside = sorted(s for s in sought if info.first_sequence <= s < end)
        for batch in (inside[: len(inside) // 2], inside[len(inside) // 2 :]):
            kept.add(catalogue, np.array(batch, np.int64))
        flags = np.zeros(100, np.uint8)
        flags[[s - info.first_sequence for s in resolved if info.first_sequence <= s < end]] = 1
        bits[info.number] = np.packbits(flags, bitorder="little")
    assert kept.total == len(sought)
    for floor in sorted(floors):
        left = [s for s in sought if s >= floor and s not in resolved]
        for info in SEGMENTS:
            below = sum(s < info.first_sequence for s in left)
            assert kept.left_below((floor, bits), info.first_sequence) == below
        assert kept.left((floor, bits)) == len(left)
