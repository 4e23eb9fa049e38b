"""Messages become batches of columns, each as large as a cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BadSchema
from pipeline.source.columns import COLUMNS, to_batch, to_headers
from pipeline.source.fields import ARROW_HEADERS
from pipeline.source.plan import plan_spool
from pipeline.source.segments import SegmentReading
from spool.format.batch import Topics
from spool.format.topic_table import Names
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture
from tests.spool.strategies import long_messages

pytestmark = pytest.mark.spark


def test_names_are_listed_for_the_piece_that_has_them(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many topics a segment has, a piece's column costs the names in it, and has each right."""
    sent = [b"t-%d" % n for n in range(300)]
    for at in range(0, 300, 10):
        spool.append([encode(name, b"v") for name in sent[at : at + 10]])
    spool.step()
    spool.crash()
    listed, of = list[int](), Names.of

    def counted(names: Names, numbers: npt.NDArray[np.int64]) -> list[bytes]:
        listed.append(len(numbers))
        return of(names, numbers)

    monkeypatch.setattr(Names, "of", counted)
    monkeypatch.setattr(Names, "__iter__", lambda _: pytest.fail("all names were listed"))
    found, pieces = list[str](), 0
    for part in plan_spool(spool.layout).parts:
        for piece in SegmentReading(part, chunk_bytes=1024).pieces():
            found += COLUMNS["topic"](piece, part).to_pylist()
            pieces += 1
    assert found == [name.decode() for name in sent]
    assert pieces > 10
    assert sum(listed) == 300


@pytest.mark.parametrize("headers", [[("n" * 256, b"")], [("a\0b", b"")], [("a", None)] * 257])
def test_headers_that_no_message_has(headers: list[tuple[str, bytes | None]]) -> None:
    """A name that is too long or has a zero byte, and too many headers: one sentence, and nothing is sent."""
    column = pa.array([[], [{"key": name, "value": value} for name, value in headers]], ARROW_HEADERS)
    columns = {"sequence": pa.array([1, 2]), "topic": pa.array(["t", "t"]), "headers": column}
    with pytest.raises(BadSchema, match="up to 256 headers"):
        to_batch(columns, Topics())


@settings(deadline=None)  # the first example loads compiled loops
@given(st.lists(long_messages, max_size=5), st.integers(0, 2))
def test_headers_and_nulls_go_through_columns(messages: list[dict], skipped: int) -> None:
    """Key, value and headers of any messages, also of a slice of them, are the same after Arrow."""
    rows = [{"headers": (), "key": None} | one for one in messages]
    pairs = [[{"key": name, "value": value} for name, value in row["headers"]] for row in rows]
    columns = {
        "sequence": pa.array(range(len(rows)), pa.int64()),
        "topic": pa.array(["t"] * len(rows), pa.string()),
        "key": pa.array([row["key"] for row in rows], pa.binary()),
        "value": pa.array([row["value"] for row in rows], pa.binary()),
        "headers": pa.array(pairs, ARROW_HEADERS),
    }
    batch = to_batch({name: column[skipped:] for name, column in columns.items()}, Topics())
    for place, row in enumerate(rows[skipped:]):
        assert (batch.key(place), batch.value(place)) == (row["key"], row["value"])
        assert batch.headers(place) == list(row["headers"])
    again = to_headers(batch)
    assert again.to_pylist() == pairs[skipped:]
