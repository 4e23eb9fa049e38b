"""Messages become batches of columns, each as large as a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.source.columns import COLUMNS
from pipeline.source.plan import plan_spool
from pipeline.source.segments import SegmentReading
from spool.format.topic_table import Names
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture


def test_a_batch_is_as_large_as_a_cache(tmp_path: Path) -> None:
    """A chunk of small messages becomes several batches of a MiB each, with every message once, in order."""
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from pipeline.source.plan import plan_spool
    from pipeline.source.reader import BATCH_BYTES, PERMISSIVE, read_part
    from pipeline.source.schema import SCHEMA

    spool = SpoolFixture(tmp_path, segment_bytes=8 << 20, max_bytes=64 << 20)
    spool.fill(1000, messages=10)
    spool.step()
    batches = [
        batch for part in plan_spool(spool.layout).parts for batch in read_part(part, SCHEMA, PERMISSIVE)
    ]
    assert len(batches) > 1
    assert all(0.9 * BATCH_BYTES < batch.nbytes < 1.1 * BATCH_BYTES for batch in batches[:-1])
    rows = pa.Table.from_batches(batches)
    assert rows["sequence"].to_pylist() == list(range(10_000))
    assert rows["value"].to_pylist() == [b"%d:" % number + b"v" * 50 for number in range(10_000)]


def test_large_messages_go_several_to_a_batch(tmp_path: Path) -> None:
    """Eight messages larger than a batch are in one: the bitmaps are cut between bytes."""
    pytest.importorskip("pyspark")
    from pipeline.source.plan import plan_spool
    from pipeline.source.reader import BATCH_BYTES, PERMISSIVE, read_part
    from pipeline.source.schema import SCHEMA

    spool = SpoolFixture(tmp_path, segment_bytes=32 << 20, max_bytes=128 << 20)
    for _ in range(10):
        spool.fill(1, messages=1, value=b"v" * 2 * BATCH_BYTES)
    spool.step()
    (part,) = plan_spool(spool.layout).parts
    batches = list(read_part(part, SCHEMA, PERMISSIVE))
    assert [value for batch in batches for value in batch["sequence"].to_pylist()] == list(range(10))
    assert max(batch.num_rows for batch in batches) <= 8


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
