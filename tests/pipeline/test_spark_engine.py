"""Spark as an engine: what it reads are the formats of its session, and its errors are sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.computed import Computed
from pipeline.errors import JobFailed
from pipeline.spark_engine import SparkEngine
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def added(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """The sums of two columns."""
    for a, b in batches:
        yield pc.add(a, b)


def test_spools(spark: SparkSession, spool: SpoolFixture) -> None:
    """The columns asked for, and the computed one; a spool that is gone ends the job with a sentence."""
    spool.append([encode(b"t", b"%d" % i) for i in range(3)])
    spool.step()
    spool.crash()
    engine = SparkEngine(spark)
    both = Computed("both", pa.int64(), added, ["sequence", "segment"])
    rows = engine.spools([str(spool.options.directory)], ["sequence", "segment", "unread"], both)
    assert rows.columns == ["sequence", "segment", "unread", "both"]
    assert sorted(row["both"] for row in engine.collect(rows)) == [1, 2, 3]
    with pytest.raises(JobFailed, match="nowhere"), engine.working():
        engine.collect(engine.spools([f"{spool.options.directory}/nowhere"], ["sequence"]))
