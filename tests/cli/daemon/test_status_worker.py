"""The status worker's figures: two threads look at one spool, for figures and for its discards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest import mock

import lmdb
import numpy as np
import pytest

from cli.daemon.status_worker import Source
from cli.status import figures
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from status.access import NothingToTell
from tests.spool.fixture import SpoolFixture
from tests.status.test_witness import tier, write

LOOKS = 40


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A source of a spool with marks, which no process has open."""
    spool = SpoolFixture(tmp_path)
    spool.fill(60)
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=10, discarded=[Discard(np.array([3]), 15, b"t", 7)]))
    marks.close()
    return Source(spool.options.directory, tmp_path / "no page", ["datagram"])


def test_two_threads_look_at_the_same_time(source: Source) -> None:
    """Both get answers: a scrape works while discards are listed."""
    ready = Barrier(2)

    def figures_again() -> int:
        ready.wait()
        return source.figures().report.snapshot.delivered

    def discards_again() -> int:
        ready.wait()
        return sum(row["messages"] for row in source.discards()["discards"])

    with ThreadPoolExecutor(2) as pool:
        for _ in range(LOOKS):
            looks = pool.submit(figures_again), pool.submit(discards_again)
            assert [look.result() for look in looks] == [9, 1]


def test_the_witness_is_looked_at(tmp_path: Path) -> None:
    """A look has the verdict of the configured witness, and each look the newest; none without one."""
    spool = SpoolFixture(tmp_path / "spool")
    spool.fill(3)
    spool.stop()
    directory, shared, place = spool.options.directory, tmp_path / "no page", tmp_path / "witness"
    assert Source(directory, shared, []).figures().report.witness is None
    source = Source(directory, shared, [], place)
    assert (found := source.figures().witness())
    assert "not written anything" in found["problem"]
    for name in ("a", "b"):
        write(place, tier(name))
        seen = source.figures()
        assert (document := seen.witness())
        assert [one["tier"] for one in document["tiers"]] == [name]
        assert document["taken"] == seen.report.taken


def test_what_lmdb_refuses_is_told(source: Source) -> None:
    """The error is a sentence, not a defect: another look may succeed."""
    refuses = mock.patch.object(figures.Looks, "look", side_effect=lmdb.ReadersFullError("no place"))
    with refuses, pytest.raises(NothingToTell, match="cannot be looked at: no place"):
        source.figures()
