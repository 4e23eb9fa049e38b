"""The batches of a part: their size, and their rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import JobFailed
from pipeline.source.fields import STORED, to_schema
from pipeline.source.plan import plan_spool
from pipeline.source.rows import (
    BATCH_BYTES,
    DROPMALFORMED,
    FAILFAST,
    PERMISSIVE,
    read_part,
    skips_read_errors,
)
from tests.spool.fixture import SpoolFixture

ALL = to_schema(name for name, *_ in STORED)


def test_a_batch_is_as_large_as_a_cache(tmp_path: Path) -> None:
    """A chunk of small messages becomes several batches of a MiB each, with every message once, in order."""
    spool = SpoolFixture(tmp_path, segment_bytes=8 << 20, max_bytes=64 << 20)
    spool.fill(1000, messages=10)
    spool.step()
    batches = [batch for part in plan_spool(spool.layout).parts for batch in read_part(part, ALL, PERMISSIVE)]
    assert len(batches) > 1
    assert all(0.9 * BATCH_BYTES < batch.nbytes < 1.1 * BATCH_BYTES for batch in batches[:-1])
    rows = pa.Table.from_batches(batches)
    assert rows["sequence"].to_pylist() == list(range(10_000))
    assert rows["value"].to_pylist() == [b"%d:" % number + b"v" * 50 for number in range(10_000)]


def test_large_messages_go_several_to_a_batch(tmp_path: Path) -> None:
    """Eight messages larger than a batch are in one: the bitmaps are cut between bytes."""
    spool = SpoolFixture(tmp_path, segment_bytes=32 << 20, max_bytes=128 << 20)
    for _ in range(10):
        spool.fill(1, messages=1, value=b"v" * 2 * BATCH_BYTES)
    spool.step()
    (part,) = plan_spool(spool.layout).parts
    batches = list(read_part(part, ALL, PERMISSIVE))
    assert [value for batch in batches for value in batch["sequence"].to_pylist()] == list(range(10))
    assert max(batch.num_rows for batch in batches) <= 8


def test_damage(spool: SpoolFixture) -> None:
    """It is a row, nothing, or an error, by the mode; a row only if the columns tell of it."""
    spool.fill(3)
    spool.step()
    spool.crash()
    (part,) = plan_spool(spool.layout).parts
    with spool.layout.segment(*spool.layout.list_segments()[0]).open("r+b") as file:
        file.seek(400)
        file.write(b"\xff" * 8)
    found = {
        mode: pa.Table.from_batches(read_part(part, ALL, mode), ALL)["damaged"].to_pylist()
        for mode in (PERMISSIVE, DROPMALFORMED)
    }
    assert found == {PERMISSIVE: [False] * 6 + [True], DROPMALFORMED: [False] * 6}
    plain = to_schema(["sequence"])
    assert sum(rows.num_rows for rows in read_part(part, plain, PERMISSIVE)) == 6
    with pytest.raises(JobFailed, match="hold no good frame"):
        list(read_part(part, ALL, FAILFAST))


def test_read_errors() -> None:
    """They end nothing where a query names the column `unread`, unless it is to fail fast."""
    assert skips_read_errors(["sequence", "unread"], PERMISSIVE)
    assert not skips_read_errors(["sequence", "unread"], FAILFAST)
    assert not skips_read_errors(["sequence"], PERMISSIVE)
