"""A dataset has the rows of a spool, with the columns and the condition of a reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

from pipeline.embedded.dataset import SpoolDataset
from pipeline.source.fields import STORED
from spool.errors import NoSpool
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from tests.spool.fixture import SpoolFixture

COUNT = 600


def fill(spool: SpoolFixture) -> str:
    """Messages of two topics in several segments; the spool's path."""
    for first in range(0, COUNT, 20):
        spool.append(
            [encode(b"t%d" % (i % 2), b"%d" % i, timestamp=1000 + i) for i in range(first, first + 20)]
        )
        spool.step()
    assert len(spool.layout.list_segments()) > 3
    return str(spool.layout.directory)


def test_rows(spool: SpoolFixture) -> None:
    """Every message once and in order, also those that came behind the dataset; times have no zone."""
    path = fill(spool)
    rows = SpoolDataset([path], ["sequence", "value", "created_at", "topic"])
    spool.append([encode(b"late", b"600", timestamp=1600)])
    spool.step()
    table = rows.scanner().to_table()
    assert table.schema.names == ["sequence", "value", "created_at", "topic"]
    assert table["sequence"].to_pylist() == list(range(COUNT + 1))
    assert table["value"].to_pylist() == [b"%d" % i for i in range(COUNT + 1)]
    assert table["topic"].to_pylist()[-2:] == ["t1", "late"]
    assert table["created_at"].type == pa.timestamp("us")
    assert table["created_at"].cast(pa.int64()).to_pylist()[:2] == [1_000_000, 1_001_000]


def test_a_condition_on_another_column(spool: SpoolFixture) -> None:
    """The column that it names is read, and is no column of the answer."""
    rows = SpoolDataset([fill(spool)])
    wanted = (dataset.field("topic") == "t1") & (dataset.field("sequence") >= 590)
    table = rows.scanner(columns=["value"], filter=wanted).to_table()
    assert table.to_pydict() == {"value": [b"%d" % i for i in range(591, COUNT, 2)]}


def test_only_what_is_asked_for(spool: SpoolFixture) -> None:
    """`delivered` is there by the marks; damage makes rows only for those who name it."""
    path = fill(spool)
    spool.crash()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=100))
    marks.close()
    delivered = SpoolDataset([path]).scanner(columns=["delivered"]).to_table()["delivered"].to_pylist()
    assert delivered == [True] * 100 + [False] * 500
    first, suffix = spool.layout.list_segments()[0]
    with spool.layout.segment(first, suffix).open("r+b") as file:
        file.seek(400)
        file.write(b"\xff" * 8)
    messages = SpoolDataset([path]).scanner(columns=["sequence"]).to_table()
    assert 0 < COUNT - messages.num_rows <= 20
    told = SpoolDataset([path]).scanner(columns=["sequence", "damaged"]).to_table()
    assert told.num_rows == messages.num_rows + 1
    assert sum(told["damaged"].to_pylist()) == 1


def test_how_far_a_scan_is(spool: SpoolFixture) -> None:
    """Its rows, those of segments that stay closed left out; a second scan counts beside the first."""
    path = fill(spool)
    rows = SpoolDataset([path], ["sequence"], begun={spool.identity.spool.hex(): 500})
    assert (rows.read, rows.rows_known) == (0, 0)
    batches = rows.scanner().to_batches()
    next(batches)
    assert 0 < rows.read <= COUNT
    assert rows.rows_known == 100
    list(batches)
    assert rows.rows_known <= rows.read < 200
    first = rows.read
    list(rows.scanner().to_batches())
    assert (rows.read, rows.rows_known) == (2 * first, 200)


def test_a_reader_that_has_enough(spool: SpoolFixture) -> None:
    """It gets its rows, and nothing goes on behind it."""
    rows = SpoolDataset([fill(spool)])
    assert rows.head(5, columns=["sequence"]).to_pydict() == {"sequence": list(range(5))}


def test_no_spool(tmp_path: Path) -> None:
    """A path without one is an error of the scan, and names the path."""
    with pytest.raises(NoSpool, match="nowhere holds no spool"):
        SpoolDataset([str(tmp_path / "nowhere")]).scanner().to_table()


def test_columns_are_known() -> None:
    """All that `format("bruce")` has, and `unread`."""
    assert SpoolDataset([]).schema.names == [*(name for name, *_ in STORED), "unread"]
