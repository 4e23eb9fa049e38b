"""A backlog knows its segments, and its topics as far as footers tell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dispatch.options import DispatchOptions
from pipeline.delivery.backlog import read_backlog
from pipeline.delivery.lease import delivery_lease
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1000
TOPICS = (b"clicks", b"views", b"a\\b\xff")
NAMES = ("clicks", "views", "a\\x5cb\\xff")
AT_LEAST_ONCE = DispatchOptions(kafka={"bootstrap.servers": "127.0.0.1:1"})


def fill(spool: SpoolFixture) -> list[int]:
    """Messages of three topics in many segments, the last without a footer; where the segments begin."""
    for first in range(0, COUNT, 10):
        spool.append([encode(TOPICS[i % 3], b"%d" % i) for i in range(first, first + 10)])
        spool.step()
    spool.crash()
    starts = [first for first, _ in spool.layout.list_segments()]
    assert len(starts) > 6
    return starts


def mark(spool: SpoolFixture, low_watermark: int, sent: range) -> None:
    """Have the marks say that all below a number is delivered, and one range of one segment."""
    info = next(one for one in SegmentList(spool.layout).segments if one.first_sequence == sent.start)
    bits = np.zeros(2008 * 8, np.uint8)
    bits[: len(sent)] = 1
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    chunks = {(info.number, 0): np.packbits(bits, bitorder="little")}
    marks.commit(Changes(low_watermark, chunks=chunks))
    marks.close()


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_segments_and_topics(spark: SparkSession, spool: SpoolFixture) -> None:
    """Delivered segments are not among those to read; only partly delivered ones, and the last, are counted.

    The counts are those of the messages that are left, and the rows are these messages.
    """
    starts = fill(spool)
    middle = range(starts[3], starts[4])
    mark(spool, starts[1] + 5, middle)
    with delivery_lease(spool.layout) as lease:
        backlog = read_backlog([lease], AT_LEAST_ONCE)
        uuid = lease.spool.hex()
        assert backlog.segments == {uuid: [first for first in starts[1:] if first != starts[3]]}
        assert backlog.others == {uuid: [starts[1], starts[-1]]}
        left = [i for i in range(starts[1] + 5, COUNT) if i not in middle]
        assert len(backlog) == len(left)
        footed = [i for i in range(starts[2], starts[-1]) if i not in middle]
        assert backlog.by_footer == Counter(NAMES[i % 3] for i in footed)
        assert backlog.count(spark) == Counter(NAMES[i % 3] for i in left)
        rows = backlog.read(spark).select("sequence", "topic", "value").collect()
        assert sorted((r.sequence, r.topic, bytes(r.value)) for r in rows) == [
            (i, NAMES[i % 3], b"%d" % i) for i in left
        ]


def test_topics_that_a_footer_does_not_list(spool: SpoolFixture) -> None:
    """A segment with more topics than its footer has room for is counted by its messages."""
    for first in range(0, 3000, 100):
        spool.append([encode(b"topic-%d" % i, b"") for i in range(first, first + 100)])
        spool.step()
    spool.crash()
    with delivery_lease(spool.layout) as lease:
        backlog = read_backlog([lease], AT_LEAST_ONCE)
    assert not {"", "(others)"} & backlog.by_footer.keys()
    named = sum(backlog.by_footer.values())
    others = {first for firsts in backlog.others.values() for first in firsts}
    runs = [first for first, _ in spool.layout.list_segments()]
    ends = dict(zip(runs, [*runs[1:], 3000], strict=True))
    assert named + sum(ends[first] - first for first in others) == len(backlog) == 3000


def test_nothing_is_left(spool: SpoolFixture) -> None:
    """Then it is empty, and names no segment."""
    fill(spool)
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(COUNT))
    marks.close()
    with delivery_lease(spool.layout) as lease:
        backlog = read_backlog([lease], AT_LEAST_ONCE)
    assert (len(backlog), list(backlog.segments.values()), backlog.by_footer) == (0, [[]], Counter())
