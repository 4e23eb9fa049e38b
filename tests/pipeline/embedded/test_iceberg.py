"""DuckDB's files of an Iceberg table: what the tests of the table leave out."""

from __future__ import annotations

from pathlib import Path

from pipeline.archive.iceberg import TABLE, local_catalog, open_table
from pipeline.archive.job import run_archive
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.folder_writer import Sizes
from pipeline.embedded.iceberg import IcebergFiles
from tests.pipeline.archive.test_job import fill
from tests.spool.fixture import SpoolFixture


def test_no_file_is_too_large(spool: SpoolFixture, tmp_path: Path) -> None:
    """A topic's rows go into several files of one commit, in order within each; a merge keeps to it, too."""
    fill(spool, 2000)
    table = open_table(local_catalog(str(tmp_path)), TABLE)
    engine = DuckEngine()
    files = IcebergFiles(engine, table, Sizes(8192, 4096, 100))
    before = 0
    for messages, compact in ((2000, False), (0, True)):
        report = run_archive(engine, files, [str(spool.options.directory)], compact=compact)
        assert (report.messages, report.merged) == (messages, before)
        table.refresh()
        tasks = list(table.scan().plan_files())
        assert sum(task.file.record_count for task in tasks) == 2000
        before = len(tasks)
        assert before >= 4
    assert sorted(table.scan().to_arrow()["sequence"].to_pylist()) == list(range(2000))
    assert len(table.metadata.snapshots) == 2
