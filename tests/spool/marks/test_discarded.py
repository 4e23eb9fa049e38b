"""Sequences of discarded messages: by segment and chunk, over any order of commits; gone with the segment."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from spool.format.wire import DEAD_LETTERED, Reason
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes, Discard, split
from spool.marks.marks import Marks
from spool.marks.outcomes import DELIVERED, OutcomeReader
from spool.native.digest import CHUNK_MESSAGES
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import lost_of


@pytest.fixture
def layout(spool: SpoolFixture) -> Iterator[Layout]:
    """The layout of a spool of several segments."""
    spool.fill(200)
    spool.step()
    return spool.layout


def discard(reason: int, *sequences: int, topic: bytes = b"t") -> Discard:
    """Commit these discards at once."""
    return Discard(np.array(sequences, np.int64), reason, topic, 7)


def test_any_course_of_discards_is_read_back(layout: Layout) -> None:
    """Over several segments and commits, with mixed reasons: each message has its own, counts are exact."""
    marks = Marks(layout.delivery, SegmentList(layout))
    for seed in range(30):
        chance = random.Random(seed)
        known = lost_of(marks)
        left = [s for s in range(600) if s not in known]
        chosen = chance.sample(left, chance.randrange(min(40, len(left))))
        reasons = [Reason.EVICTED, Reason.RATE_LIMITED, Reason.TOO_LARGE | DEAD_LETTERED]
        parts = [chosen[at::3] for at in range(3)]
        marks.commit(
            Changes(discarded=[discard(r, *part) for r, part in zip(reasons, parts, strict=True) if part])
        )
        known |= {s: int(r) for r, part in zip(reasons, parts, strict=True) for s in part}
        assert lost_of(marks) == known
        assert sum(row.count for row in marks.discards()) == len(known)
    assert marks.lost()[0].tolist() == sorted(known)
    marks.commit(Changes(low_watermark=600))
    marks.close()
    outcomes = OutcomeReader(layout.delivery, SegmentList(layout))
    assert outcomes.of(np.arange(600)).tolist() == [known.get(s, DELIVERED) for s in range(600)]
    outcomes.close()


def test_a_flood_is_a_few_rows(layout: Layout) -> None:
    """A thousand topics' commits, one message each or all at once: one row for each chunk and reason."""
    marks = Marks(layout.delivery, SegmentList(layout))
    segments = len(marks.segment_list.segments)
    for sequence in range(0, 600, 2):
        marks.commit(Changes(discarded=[discard(Reason.RATE_LIMITED, sequence)]))
    marks.commit(Changes(discarded=[discard(Reason.RATE_LIMITED, *range(1, 600, 2))]))
    with marks._env.begin() as txn:
        assert txn.stat(marks._db[b"gone"])["entries"] == segments
    assert lost_of(marks) == dict.fromkeys(range(600), int(Reason.RATE_LIMITED))
    marks.close()


def test_what_is_gone_is_forgotten(spool: SpoolFixture, layout: Layout) -> None:
    """Rows go with their segment; those of the next stay, and rows for a removed segment are not kept."""
    marks = Marks(layout.delivery, SegmentList(layout))
    second = marks.segment_list.segments[1].first_sequence
    marks.commit(Changes(discarded=[discard(Reason.EVICTED, 5, second)]))
    layout.segment(0).unlink()
    marks.commit(Changes(low_watermark=second, discarded=[discard(Reason.EVICTED, 6, second + 1)]))
    assert lost_of(marks) == dict.fromkeys((second, second + 1), int(Reason.EVICTED))
    assert [row.count for row in marks.discards()] == [4]
    marks.close()


def test_chunks_are_told_apart(layout: Layout) -> None:
    """At the edge of a chunk, in the last segment, which may have any length; unsorted, and before all."""
    segments = SegmentList(layout).segments[1:]
    last = segments[-1].first_sequence
    wanted = [last + CHUNK_MESSAGES, last - 1, last + CHUNK_MESSAGES - 1, 0, last]
    found = [
        (info.number, chunk, bits.tolist(), rows.tolist())
        for (info, chunk), bits, rows in split(segments, np.array(wanted))
    ]
    before = last - 1 - segments[-2].first_sequence
    number = segments[-1].number
    assert found == [
        (number - 1, 0, [before], [1]),
        (number, 0, [0, CHUNK_MESSAGES - 1], [4, 2]),
        (number, 1, [0], [0]),
    ]
    assert list(split([], np.array([1]))) == []
    assert list(split(segments, np.array([0]))) == []
