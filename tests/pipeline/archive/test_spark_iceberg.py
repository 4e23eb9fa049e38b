"""Spark's files of an Iceberg table: what the tests of the table leave out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.archive.files import Files
from pipeline.archive.iceberg import TABLE, local_catalog, open_table
from pipeline.archive.job import run_archive
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.iceberg import IcebergFiles
from pipeline.engine import Engine
from tests.pipeline.archive.test_job import fill
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_both_engines_write_one(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Each goes on with the work of the other, and merges it."""
    from pipeline.archive.spark_iceberg import SparkIcebergFiles
    from pipeline.spark_engine import SparkEngine

    paths, table = [str(spool.options.directory)], open_table(local_catalog(str(tmp_path)), TABLE)
    duck = DuckEngine()
    both: list[tuple[Engine, Files]] = [
        (duck, IcebergFiles(duck, table)),
        (SparkEngine(spark), SparkIcebergFiles(spark, table)),
    ]
    for merging in (1, 0):
        for number in range(4):
            fill(spool, 20)
            assert run_archive(*both[number % 2], paths).messages == 20
        table.refresh()
        files = len(list(table.scan().plan_files()))
        assert run_archive(*both[merging], paths, compact=True).merged == files >= 8
        table.refresh()
        assert len(list(table.scan().plan_files())) == 2
    assert sorted(table.scan().to_arrow()["sequence"].to_pylist()) == list(range(160))


def test_hadoops_name_of_s3() -> None:
    """Hadoop's file system has another scheme; others are the same."""
    from pipeline.archive.spark_iceberg import hadoops

    assert hadoops("s3://bucket/s3://x") == "s3a://bucket/s3://x"
    assert hadoops("hdfs://namenode/x") == "hdfs://namenode/x"
