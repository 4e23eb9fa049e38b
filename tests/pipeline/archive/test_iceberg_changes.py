"""Which rows a table gained: each of appends once, of compactions none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from pipeline.archive import iceberg_changes
from pipeline.archive.iceberg import COLUMNS, TABLE, lineage, local_catalog, open_table
from pipeline.archive.iceberg_changes import ArchiveReader, Change, Mark, Part, Reads
from pipeline.archive.job import run_archive
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.iceberg import IcebergFiles
from pipeline.errors import JobFailed
from tests.pipeline.archive.test_job import fill
from tests.spool.fixture import SpoolFixture

Archive = Callable[..., Table]


@pytest.fixture
def archive(spool: SpoolFixture, tmp_path: Path) -> Archive:
    """Stores messages and archives them; returns the table."""
    duck = DuckEngine()

    def run(count: int, *, compact: bool = False) -> Table:
        fill(spool, count)
        table = open_table(local_catalog(str(tmp_path / "lake")), TABLE)
        run_archive(duck, IcebergFiles(duck, table), [str(spool.options.directory)], compact=compact)
        table.refresh()
        return table

    return run


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[ArchiveReader]:
    """Of that table."""
    made = ArchiveReader(str(tmp_path / "lake"), "", TABLE)
    yield made
    made.close()


def sequences(reader: ArchiveReader, changes: list[Change]) -> list[int]:
    """Of all rows of these changes, in order."""
    return sorted(
        sequence
        for change in changes
        for part in reader.parts(change)
        for batch in reader.rows(part, ["sequence"])
        for sequence in batch["sequence"].to_pylist()
    )


def test_appends_and_compactions(archive: Archive, reader: ArchiveReader) -> None:
    """At first there is all of the newest snapshot, and then what each snapshot added, in order."""
    assert not reader.find()
    archive(40)
    archive(40, compact=True)
    assert reader.find()
    (first,) = reader.changes(None, "")
    assert (first.reads, first.is_new, first.rows, first.number) == (Reads.ALL, True, 80, reader.end)
    assert sequences(reader, [first]) == list(range(80))
    last = Mark(first.snapshot, first.number)
    assert reader.changes(last, "") == []
    archive(40, compact=True)
    archive(20)
    assert reader.find()
    changes = reader.changes(last, "")
    assert [one.reads for one in changes] == [Reads.ADDED, Reads.NOTHING, Reads.ADDED]
    assert [one.number for one in changes] == [reader.end - 2, reader.end - 1, reader.end]
    assert [one.rows for one in changes] == [40, 0, 20]
    assert sequences(reader, changes) == list(range(80, 140))
    (archived,) = (reader.archived(changes[-1].snapshot) or {}).values()
    assert archived == 140


def test_manifests_that_are_merged(archive: Archive, reader: ArchiveReader) -> None:
    """They have the files of earlier snapshots, too, which those did not add."""
    with archive(40).transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    reader.find()
    (first,) = reader.changes(None, "")
    archive(40)
    archive(40)
    reader.find()
    changes = reader.changes(Mark(first.snapshot, first.number), "")
    assert [sequences(reader, [one]) for one in changes] == [list(range(40, 80)), list(range(80, 120))]


def test_a_compaction_of_another_program(
    archive: Archive, reader: ArchiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation says that the rows are the same; of any other change some may be."""
    table = archive(40)
    reader.find()
    (first,) = reader.changes(None, "")
    rows = table.scan().to_arrow()
    table.overwrite(rows)
    reader.find()
    read = [one.reads for one in reader.changes(Mark(first.snapshot, first.number), "")]
    assert read == [Reads.NOTHING, Reads.ADDED]
    (last,) = reader.changes(None, "")
    monkeypatch.setattr(iceberg_changes, "is_ours", lambda _: False)
    archive(40)
    archive(0, compact=True)
    reader.find()
    changes = reader.changes(Mark(last.snapshot, last.number), "")
    assert [(one.reads, one.is_new) for one in changes] == [(Reads.ADDED, True), (Reads.MIXED, False)]

    def replaced(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
        for one in lineage(table, snapshot):
            is_swap = one.summary and one.summary.operation is Operation.OVERWRITE
            yield one.model_copy(update={"summary": Summary(Operation.REPLACE)}) if is_swap else one

    monkeypatch.setattr(iceberg_changes, "lineage", replaced)
    changes = reader.changes(Mark(last.snapshot, last.number), "")
    assert [one.reads for one in changes] == [Reads.ADDED, Reads.NOTHING]


def test_a_reader_that_was_interrupted(archive: Archive, reader: ArchiveReader) -> None:
    """It goes on with the snapshot that it was reading; if that is gone, some rows were read before."""
    table = archive(40)
    reader.find()
    (first,) = reader.changes(None, "")
    archive(40)
    reader.find()
    assert reader.changes(None, first.name) == [first]
    table.refresh()
    table.maintenance.expire_snapshots().by_id(first.snapshot).commit()
    reader.find()
    (again,) = reader.changes(None, first.name)
    assert (again.reads, again.is_new, again.rows) == (Reads.AGAIN, False, 80)
    assert reader.changes(None, again.name) == [again]


def test_some_rows_at_a_time(archive: Archive, reader: ArchiveReader, tmp_path: Path) -> None:
    """In the order of the file, from any row on."""
    archive(60)
    reader.find()
    (change,) = reader.changes(None, "")
    part, _ = reader.parts(change)
    few = ArchiveReader(str(tmp_path / "lake"), "", TABLE, batch_rows=7)
    few.find()
    whole = [batch["sequence"].to_pylist() for batch in few.rows(part, ["sequence", "value"])]
    few.close()
    assert ([len(one) for one in whole], part.rows) == ([7, 7, 7, 7, 2], 30)
    rows = [sequence for batch in whole for sequence in batch]
    for skip in range(part.rows + 1):
        batches = reader.rows(part, ["value", "sequence"], skip)
        assert [one for batch in batches for one in batch["sequence"].to_pylist()] == rows[skip:]


def test_rows_that_another_file_deletes(archive: Archive, reader: ArchiveReader, tmp_path: Path) -> None:
    """As engines that merge on read write it: they are not there."""
    archive(60)
    reader.find()
    (change,) = reader.changes(None, "")
    part, _ = reader.parts(change)
    (batch,) = reader.rows(part, ["sequence"])
    path = tmp_path / "deletes.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    parquet.write_table(pa.table([[part.task.file.file_path] * 2, [0, 3]], schema=schema), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        record_count=2,
    )
    task = FileScanTask(part.task.file, {deletes})
    (left,) = reader.rows(Part(task, part.rows), list(COLUMNS.names))
    kept = [row for at, row in enumerate(batch["sequence"].to_pylist()) if at not in (0, 3)]
    assert left["sequence"].to_pylist() == kept
    assert left.schema == COLUMNS


def test_a_configured_catalog(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is given, and that of the table."""
    archive(40)
    catalogs = {"prod": local_catalog(str(tmp_path / "lake"))}
    monkeypatch.setattr(iceberg_changes, "configured_catalog", catalogs.__getitem__)
    reader = ArchiveReader("", "prod", TABLE)
    assert reader.find()
    assert sequences(reader, reader.changes(None, "")) == list(range(40))
    reader.close()


def test_tables_that_are_none(archive: Archive, reader: ArchiveReader, tmp_path: Path) -> None:
    """Of another program, or without sequence numbers."""
    archive(40)
    catalog = local_catalog(str(tmp_path / "lake"))
    catalog.create_table("bruce.other", COLUMNS.remove(0))
    catalog.create_table("bruce.old", COLUMNS, properties={"format-version": "1"})
    for name, words in (("other", "has other columns than"), ("old", "version 1 of Iceberg's format")):
        other = ArchiveReader(str(tmp_path / "lake"), "", f"bruce.{name}")
        with pytest.raises(JobFailed, match=words):
            other.find()
        other.close()
    nowhere = ArchiveReader(str(tmp_path / "lake"), "", "else.where")
    assert not nowhere.find()
    nowhere.close()
    with pytest.raises(JobFailed, match="is not there"):
        _ = reader.end
    with pytest.raises(JobFailed, match="the catalog nowhere cannot be used"):
        ArchiveReader("", "nowhere", TABLE).find()
