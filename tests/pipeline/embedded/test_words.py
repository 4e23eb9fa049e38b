"""The functions that SQLFrame lacks are there."""

from __future__ import annotations

import pyarrow as pa

from pipeline.embedded.engine import DuckEngine
from pipeline.engine import f


def test_hashes_and_lengths() -> None:
    """Equal values have equal hashes, whatever their row; a null, an empty value and an order differ."""
    values = [b"x", b"", None]
    pairs = [(a, b) for a in values for b in values]
    table = pa.table(
        {"a": pa.array([a for a, _ in pairs], pa.binary()), "b": pa.array([b for _, b in pairs], pa.binary())}
    )
    engine = DuckEngine()
    with engine.working():
        frame = engine.table(pa.concat_tables([table, table]))
        found = engine.collect(
            f.broadcast(frame).select(
                "a", "b", f.xxhash64("a", "b").alias("hash"), f.octet_length("a").alias("size")
            )
        )
    hashes = {(row["a"], row["b"]): row["hash"] for row in found}
    assert len(found) == 2 * len(pairs)
    assert len(set(hashes.values())) == len(pairs)
    assert all(row["hash"] == hashes[row["a"], row["b"]] for row in found)
    assert {row["a"]: row["size"] for row in found} == {b"x": 1, b"": 0, None: None}
