"""Spark forks workers that have everything loaded, and PySpark from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from pipeline.worker_daemon import leave_archives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
ARCHIVES = [str(HOME / "python/lib/pyspark.zip"), str(HOME / "python/lib/py4j-0.10.9.9-src.zip")]
HERE = str(HOME.parent)


def test_archives_are_left() -> None:
    """Those of the same PySpark, and no others; and none where PySpark is in archives alone."""
    assert leave_archives([*ARCHIVES, "/jobs/mine.zip", HERE]) == ["/jobs/mine.zip", HERE]
    cluster = "/opt/spark/python/lib/pyspark.zip"
    assert leave_archives([cluster, HERE]) == [cluster, HERE]
    assert leave_archives([*ARCHIVES, "/nowhere"]) == [*ARCHIVES, "/nowhere"]


@pytest.mark.spark
def test_workers_have_it_loaded(spark: SparkSession) -> None:
    """A worker's parent is our daemon, its PySpark is that of the folder, and our reader is there."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import sys

        import pyarrow as pa

        loaded = "pipeline.source.reader" in sys.modules
        list(batches)
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        place = sys.modules["pyspark.worker"].__file__
        yield pa.RecordBatch.from_pydict({"parent": [parent], "place": [place], "loaded": [loaded]})

    schema = "parent string, place string, loaded boolean"
    (row,) = spark.range(1).coalesce(1).mapInArrow(look, schema).collect()
    assert "pipeline.worker_daemon" in row.parent
    assert row.place == str(HOME / "worker.py")
    assert row.loaded
