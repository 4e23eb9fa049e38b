"""The batches that the source hands to Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spool.rig import Rig


def test_a_batch_is_as_large_as_a_cache(tmp_path: Path) -> None:
    """A chunk of small messages becomes several batches of a MiB each, with every message once, in order."""
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from pipeline.plan import plan_spool
    from pipeline.reader import BATCH_BYTES, PERMISSIVE, read_part
    from pipeline.schema import SCHEMA

    rig = Rig(tmp_path, segment_bytes=8 << 20, max_bytes=64 << 20)
    rig.fill(1000, messages=10)
    rig.step()
    batches = [
        batch for part in plan_spool(rig.layout).parts for batch in read_part(part, SCHEMA, PERMISSIVE)
    ]
    assert len(batches) > 1
    assert all(0.9 * BATCH_BYTES < batch.nbytes < 1.1 * BATCH_BYTES for batch in batches[:-1])
    rows = pa.Table.from_batches(batches)
    assert rows["sequence"].to_pylist() == list(range(10_000))
    assert rows["value"].to_pylist() == [b"%d:" % number + b"v" * 50 for number in range(10_000)]


def test_large_messages_go_several_to_a_batch(tmp_path: Path) -> None:
    """Of messages that are larger than a batch, eight are in one: the bitmaps are cut between bytes."""
    pytest.importorskip("pyspark")
    from pipeline.plan import plan_spool
    from pipeline.reader import BATCH_BYTES, PERMISSIVE, read_part
    from pipeline.schema import SCHEMA

    rig = Rig(tmp_path, segment_bytes=32 << 20, max_bytes=128 << 20)
    for _ in range(10):
        rig.fill(1, messages=1, value=b"v" * 2 * BATCH_BYTES)
    rig.step()
    (part,) = plan_spool(rig.layout).parts
    batches = list(read_part(part, SCHEMA, PERMISSIVE))
    assert [value for batch in batches for value in batch["sequence"].to_pylist()] == list(range(10))
    assert max(batch.num_rows for batch in batches) <= 8
