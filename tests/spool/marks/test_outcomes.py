"""Outcomes of single messages: by the low watermark, by the marks above it, by the discards."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from spool.format.wire import Reason
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.marks.outcome_file import SUFFIX
from spool.marks.outcomes import DELIVERED, OPEN, UNTOLD, OutcomeReader, list_pending, open_outcomes
from spool.native.digest import CHUNK_MESSAGES
from tests.spool.fixture import SpoolFixture
from tests.spool.marks.test_marks import bitmap


@pytest.fixture
def layout(spool: SpoolFixture) -> Layout:
    """The layout of a spool of several segments."""
    spool.fill(100)
    spool.step()
    return spool.layout


def commit(layout: Layout, changes: Changes) -> None:
    """Commit like a deliverer that starts and ends."""
    marks = Marks(layout.delivery, SegmentList(layout))
    marks.commit(changes)
    marks.close()


def outcomes(layout: Layout, *sequences: int) -> list[int]:
    """The outcomes of these messages."""
    read = OutcomeReader(layout.delivery, SegmentList(layout))
    found = read.of(np.array(sequences, np.int64)).tolist()
    read.close()
    return found


def test_all_levels(layout: Layout) -> None:
    """Below the low watermark, marked above it in two segments, discarded on either side, and open."""
    second = SegmentList(layout).segments[1].first_sequence
    marked = {(1, 0): bitmap(5, 9), (2, 0): bitmap(1)}
    lost = [
        Discard(np.array([1]), Reason.TOO_LARGE, b"t", 1),
        Discard(np.array([9]), Reason.UNKNOWN_TOPIC, b"t", 1),
    ]
    commit(layout, Changes(3, marked, discarded=lost))
    found = outcomes(layout, 0, 1, 2, 3, 5, 9, second, second + 1, 299)
    assert found == [
        DELIVERED,
        Reason.TOO_LARGE,
        DELIVERED,
        OPEN,
        DELIVERED,
        Reason.UNKNOWN_TOPIC,
        OPEN,
        DELIVERED,
        OPEN,
    ]
    assert outcomes(layout) == []


def test_transactions(layout: Layout) -> None:
    """Their number grows with each commit, and not else."""
    deliverer = Marks(layout.delivery, SegmentList(layout))
    opened = nullcontext((deliverer._env, deliverer._db))
    reader = OutcomeReader(layout.delivery, SegmentList(layout), lambda _directory: opened)
    deliverer.commit(Changes(3))
    before = reader.transactions
    assert reader.of(np.arange(5)).tolist() == [DELIVERED] * 3 + [OPEN] * 2
    assert reader.transactions == before
    deliverer.commit(Changes(4))
    assert reader.transactions > before
    deliverer.close()


def test_in_any_order(layout: Layout) -> None:
    """The answers are in the order of the questions."""
    commit(layout, Changes(2, {(1, 0): bitmap(7)}))
    assert outcomes(layout, 8, 7, 0, 4, 1) == [OPEN, DELIVERED, DELIVERED, OPEN, DELIVERED]


def test_a_later_chunk(spool: SpoolFixture) -> None:
    """Bits are counted within their chunk."""
    spool.replace(segment_bytes=4 << 20, max_bytes=64 << 20)
    spool.reopen()
    for _ in range(45):
        spool.fill(1, messages=400, value=b"")
    spool.step()
    info = SegmentList(spool.layout).segments[-1]
    commit(spool.layout, Changes(0, {(info.number, 1): bitmap(3)}))
    at = info.first_sequence + CHUNK_MESSAGES + 3
    assert outcomes(spool.layout, at - 1, at, at + 1) == [OPEN, DELIVERED, OPEN]


def test_rows_of_another_spool_say_nothing(layout: Layout) -> None:
    """Marks that do not match their segment are not believed."""
    commit(layout, Changes(0, {(1, 0): bitmap(5)}))
    marks = Marks(layout.delivery, SegmentList(layout))
    with marks._env.begin(write=True) as txn:
        key, row = next(iter(txn.cursor(marks._db[b"mark"])))
        txn.put(key, row[:3] + b"\xff" + row[4:], db=marks._db[b"mark"])
    marks.close()
    assert outcomes(layout, 5, 24, 25) == [OPEN] * 3


def test_what_nobody_can_tell_any_more(layout: Layout) -> None:
    """Without its segment a discarded message looks like a delivered one: the outcome is unknown."""
    segments = SegmentList(layout).segments
    commit(layout, Changes(0, discarded=[Discard(np.array([1]), Reason.TOO_LARGE, b"t", 1)]))
    layout.segment(segments[0].first_sequence).unlink()
    commit(layout, Changes(segments[1].first_sequence + 1))
    assert outcomes(layout, 0, 1, segments[1].first_sequence) == [UNTOLD, UNTOLD, DELIVERED]


def test_only_beside_a_deliverer(layout: Layout) -> None:
    """Marks without a writer may be unfit to be read: readers wait for a deliverer."""
    assert open_outcomes(layout) is None
    commit(layout, Changes(1))
    assert open_outcomes(layout) is None


def test_directories_of_jobs_go_meanwhile(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the others are found when one is removed behind the look at their names."""
    scandir = os.scandir
    for job in ("a", "b"):
        (layout.outcomes / job).mkdir(parents=True)
        (layout.outcomes / job / f"file{SUFFIX}").touch()

    def removed_meanwhile(path: Any) -> Any:
        if str(path) == str(layout.outcomes / "a"):
            shutil.rmtree(layout.outcomes / "a")
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", removed_meanwhile)
        assert list_pending(layout) == [layout.outcomes / "b" / f"file{SUFFIX}"]
