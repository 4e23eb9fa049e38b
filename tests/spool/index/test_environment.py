"""LMDB opens a file only where that cannot end the process: one that is new, or cut short."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import numpy as np
import pytest

from spool.errors import MarksFailed
from spool.index.index import IndexReader, read_entries
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun, is_harmless
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from tests.spool.fixture import SpoolFixture
from tests.spool.index.test_soundness import cut


def test_a_file_that_is_none_yet(memory: Path) -> None:
    """No file, or an empty one: LMDB creates it."""
    assert is_harmless(memory)
    (memory / "data.mdb").touch()
    assert is_harmless(memory)
    assert not has_begun(memory)
    assert not has_begun(memory / "data.mdb")
    (memory / "data.mdb").write_bytes(bytes(100_000))
    assert not is_harmless(memory)


def test_an_index_cut_short_is_no_sigbus(spool: SpoolFixture) -> None:
    """With the daemon dead, a reader gets an error; the keeper creates a new index."""
    spool.fill(60)
    spool.step()
    spool.crash()
    cut(spool.layout.index / "data.mdb")
    with pytest.raises(lmdb.CorruptedError):
        IndexReader(spool.layout.index)
    assert read_entries(spool.layout.index) is None
    spool.open()
    spool.index().close()


def test_marks_cut_short_are_no_sigbus(spool: SpoolFixture) -> None:
    """A reader gets an error; the deliverer creates new marks, and resends what only the old ones marked."""
    spool.fill(60)
    spool.step()
    segment_list = SegmentList(spool.layout)
    marks = Marks(spool.layout.delivery, segment_list)
    bits = np.full(CHUNK_BYTES, 255, np.uint8)
    marks.commit(Changes(10, {(1, chunk): bits for chunk in range(40)}))
    marks.close()
    cut(spool.layout.delivery / "data.mdb")
    with pytest.raises(lmdb.CorruptedError):
        Marks(spool.layout.delivery, segment_list, readonly=True)
    marks = Marks(spool.layout.delivery, segment_list)
    assert marks.low_watermark() == (0, 0)
    assert (spool.layout.delivery / "data.mdb.damaged").exists()
    marks.commit(Changes(10))
    assert marks.low_watermark()[0] == 10
    marks.close()


def test_marks_on_a_disk_that_refuses_are_not_believed(spool: SpoolFixture) -> None:
    """A sync of the marks fails: MarksFailed, and the marks are the same as before."""
    spool.fill(60)
    spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(10))
    path = spool.layout.delivery / "data.mdb"
    readonly = os.open(path, os.O_RDONLY)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd != readonly and os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath(path):
            os.dup2(readonly, fd)
    with pytest.raises(MarksFailed):
        marks.commit(Changes(20))
    assert marks.low_watermark()[0] == 10
    marks.close()
