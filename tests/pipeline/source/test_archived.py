"""Spark reads what either engine has archived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.archive.files import Files
from pipeline.archive.job import run_archive
from pipeline.engine import Engine
from tests.pipeline.archive.test_job import ODD, archived, in_utc
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_all_columns(
    spark: SparkSession, engine: Engine, files: Callable[[Path], Files], spool: SpoolFixture, tmp_path: Path
) -> None:
    """With their types and values, and the topics and days of the folders."""
    from pipeline.source.archived import read_archive

    spool.append(ODD)
    spool.step()
    spool.crash()
    run_archive(engine, files(tmp_path / "archive"), [str(spool.options.directory)])
    rows = read_archive(spark, str(tmp_path / "archive")).orderBy("sequence").collect()
    expected = archived(tmp_path / "archive")
    for row, other in zip(rows, expected, strict=True):
        found = row.asDict(recursive=True)
        for name in ("received_at", "created_at"):
            found[name] = in_utc(found[name])
        assert found == {name: other[name] for name in found}
