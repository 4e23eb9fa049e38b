"""Files that DuckDB writes: their size, their order, and one archive of both engines."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.archive.files import Files
from pipeline.archive.job import run_archive
from pipeline.embedded.archive import LocalFiles, LocalStore, Sizes
from pipeline.embedded.engine import DuckEngine
from pipeline.engine import Engine
from pipeline.errors import JobFailed
from pipeline.source.fields import TIMES
from tests.pipeline.archive.test_job import archived, fill
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_file_is_too_large(spool: SpoolFixture, tmp_path: Path) -> None:
    """A topic's rows go into several files, in order over all of them, and none is lost between two."""
    fill(spool, 2000)
    spool.crash()
    engine = DuckEngine()
    files = LocalFiles(engine, str(tmp_path / "a"), Sizes(8192, 4096, 100))
    report = run_archive(engine, files, [str(spool.options.directory)])
    assert (report.messages, report.topics) == (2000, {"clicks": 1000, "views": 1000})
    written = list((tmp_path / "a").rglob("*.parquet"))
    assert report.files == len(written) >= 4
    read = [parquet.ParquetFile(path).read(["sequence"])["sequence"].to_pylist() for path in written]
    assert all(numbers == sorted(numbers) for numbers in read)
    ranges = sorted((numbers[0], numbers[-1]) for numbers in read if numbers[0] % 2)
    assert all(here[1] < there[0] for here, there in pairwise(ranges))
    assert [row["sequence"] for row in archived(tmp_path / "a")] == list(range(2000))


@pytest.mark.spark
def test_both_engines_write_one(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Each goes on with the work of the other, and merges it; a program reads all with the same types."""
    from pipeline.archive.spark import SparkFiles
    from pipeline.spark_engine import SparkEngine

    target, paths = tmp_path / "a", [str(spool.options.directory)]
    duckdb_engine = DuckEngine()
    local: tuple[Engine, Files] = duckdb_engine, LocalFiles(duckdb_engine, str(target))
    on_spark: tuple[Engine, Files] = SparkEngine(spark), SparkFiles(spark, str(target))
    for number in range(4):
        fill(spool, 20)
        assert run_archive(*(on_spark if number % 2 else local), paths).messages == 20
    before = archived(target)
    for one, merged in ((local, 8), (on_spark, 0)):
        assert run_archive(*one, paths, compact=True).merged == merged
    assert archived(target) == before
    assert [row["sequence"] for row in before] == list(range(80))
    kinds = {parquet.read_schema(path).field("received_at").type for path in target.rglob("*.parquet")}
    assert kinds == {TIMES}


def test_an_archive_of_before(spool: SpoolFixture, tmp_path: Path) -> None:
    """Files with Spark's own type of time, its default, are read and merged with those of today."""
    target, paths = tmp_path / "a", [str(spool.options.directory)]
    engine = DuckEngine()
    files = LocalFiles(engine, str(target))
    fill(spool, 20)
    run_archive(engine, files, paths)
    before = archived(target)
    for path in target.rglob("*.parquet"):
        rows = parquet.ParquetFile(path).read()
        parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)
        assert parquet.read_schema(path).field("received_at").type == pa.timestamp("ns")
    assert archived(target) == before
    fill(spool, 20)
    assert run_archive(engine, files, paths, compact=True).merged == 4
    assert archived(target)[:20] == before


def test_an_address() -> None:
    """It is refused with the command that takes it, and without its password."""
    with pytest.raises(JobFailed, match=r"^s3://bucket/a is no directory .* brucectl spark archive"):
        LocalStore("s3://me:secret@bucket/a")


def test_a_name_is_given_once(tmp_path: Path) -> None:
    """Of two that publish it one gets an error, and the file stays as it was; drafts are gone."""
    store = LocalStore(str(tmp_path))
    store.publish("_bruce/commits/1", "mine")
    with pytest.raises(JobFailed, match="another job writes to"):
        store.publish("_bruce/commits/1", "theirs")
    assert (store.list("_bruce/commits"), store.read("_bruce/commits/1", 3)) == (["1"], b"min")
    assert store.list("nowhere") == []


def test_a_full_disk_is_an_archive_that_is_not_finished(
    spool: SpoolFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence says so, and nothing of it is there; nothing is wrong with the spool."""
    fill(spool, 20)
    engine, paths = DuckEngine(), [str(spool.options.directory)]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("draft", "rows"):
        target = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(
                *((Path, "write_text") if name == "draft" else (parquet.ParquetWriter, "write_table")), refuse
            )
            with pytest.raises(JobFailed, match=r"cannot be used: No space left|No space left on device"):
                run_archive(engine, LocalFiles(engine, str(target)), paths)
        assert not list(target.glob("topic=*"))
        assert run_archive(engine, LocalFiles(engine, str(target)), paths).messages == 20
