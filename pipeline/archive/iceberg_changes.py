"""The rows that an Iceberg table gained, snapshot by snapshot, for a reader that goes on where it was.

An append adds rows, also one of another program. A compaction replaces files by others with the same rows:
its operation is `replace`, and those of ours have `bruce.commit`. Files that other programs overwrite are
mixed: some rows of the new ones may be those of the old ones.

A reader goes on if the snapshot that it read last is an ancestor of the present one, and all between them are
there. Else snapshots were removed before it had read them, the table was rolled back, or made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from pipeline.archive.iceberg import (
    COLUMNS,
    commit_of,
    configured_catalog,
    explained,
    filesystem_of,
    is_ours,
    lineage,
    local_catalog,
    properties_of,
)
from pipeline.archive.log import is_iceberg
from pipeline.errors import JobFailed

BATCH_ROWS = 50_000
"""Of one row group at most, which bounds the bytes."""
_SEQUENCED = 2
"""The version of Iceberg's format since which snapshots have numbers."""
_ROWS_ADDED, _ROWS = "added-records", "total-records"


class Reads(StrEnum):
    """The rows of a snapshot that are to be read."""

    ALL = "all"
    """All rows of the table, of which none was read."""
    AGAIN = "again"
    """All rows of the table, of which some were read."""
    ADDED = "added"
    """The rows of the files that it added: all are new."""
    MIXED = "mixed"
    """The rows of the files that it added, of which some are those of other files."""
    NOTHING = "nothing"


class Mark(NamedTuple):
    """A snapshot that was read."""

    snapshot: int
    """Its id."""
    number: int
    """Its sequence number."""


class Change(NamedTuple):
    """A snapshot to read."""

    snapshot: int
    """Its id."""
    number: int
    """Its sequence number: those of a table rise."""
    reads: Reads
    rows: int
    """How many there are to read, as the snapshot says."""

    @property
    def is_new(self) -> bool:
        """Whether no row of it was read before."""
        return self.reads in (Reads.ALL, Reads.ADDED)

    @property
    def name(self) -> str:
        """It has no other one's."""
        return f"{self.reads} {self.snapshot}"


class Part(NamedTuple):
    """A file to read."""

    task: FileScanTask
    rows: int


class ArchiveReader:
    """Reads the table of an archive, in the configured catalog of a name, or else in that of a directory.

    But for `find`, what it calls may raise anything: use it in `iceberg.explained`.
    """

    def __init__(self, directory: str, catalog: str, name: str, *, batch_rows: int = BATCH_ROWS) -> None:
        """`batch_rows`: rows of a batch at most."""
        self._directory, self._in, self._name = directory, catalog, name
        self._batch_rows = batch_rows
        self._catalog: Catalog | None = None
        self._found: Table | None = None

    def find(self) -> bool:
        """Whether the table is there; its newest snapshot is read from now on.

        Raises JobFailed, also for a table that is none of an archive.
        """
        self._found = None
        if self._catalog is None:
            self._catalog = self._find_catalog()
        if self._catalog is not None:
            self._found = _find_table(self._catalog, self._name)
        return self._found is not None

    def _find_catalog(self) -> Catalog | None:
        if self._in:
            return configured_catalog(self._in)
        # A reader makes none.
        return local_catalog(self._directory) if is_iceberg(self._directory) else None

    @property
    def end(self) -> int:
        """The sequence number of the newest snapshot; 0 of a table without any."""
        return _number(self._table.current_snapshot())

    @property
    def _table(self) -> Table:
        if self._found is None:
            raise JobFailed(f"the table {self._name} is not there")
        return self._found

    def files(self) -> list[str]:
        """The addresses of the files that hold the rows of the newest snapshot.

        Raises JobFailed where a file holds others, too: a program that is not ours has deleted some.
        """
        tasks = list(self._table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise JobFailed(f"rows of the table {self._name} were deleted: ask an engine that reads Iceberg")
        return [task.file.file_path for task in tasks]

    def changes(self, last: Mark | None, begun: str) -> list[Change]:
        """The changes to read, in order, behind the snapshot that was read last.

        `begun` is the name of the change that was being read, or empty.
        """
        current = self._table.current_snapshot()
        if current is None:
            return []
        if last is not None and (found := self._since(last)) is not None:
            return found
        reads, _, at = begun.partition(" ")
        before = self._table.snapshot_by_id(int(at)) if reads in (Reads.ALL, Reads.AGAIN) else None
        if before is not None:
            return [_all_of(before, Reads(reads))]
        return [_all_of(current, Reads.ALL if last is None and not begun else Reads.AGAIN)]

    def _since(self, last: Mark) -> list[Change] | None:
        """The snapshots behind `last`, in order; None if some of them are gone, or it is no ancestor."""
        found: list[Change] = []
        for one in lineage(self._table, self._table.current_snapshot()):
            if one.snapshot_id == last.snapshot:
                return found[::-1]
            found.append(_change(one))
        # A program that removes a snapshot may take its id from the next one, too.
        is_gone = self._table.snapshot_by_id(last.snapshot) is None
        return found[::-1] if is_gone and found[-1].number == last.number + 1 else None

    def archived(self, snapshot: int) -> dict[str, int] | None:
        """By spool, the first sequence number that is not archived as of a snapshot; None: not known."""
        done = commit_of(self._table, self._table.snapshot_by_id(snapshot))
        return {spool: int(mark[0]) for spool, mark in done.spools.items()} if done else None

    def parts(self, change: Change) -> list[Part]:
        """The files to read, always in the same order."""
        if change.reads in (Reads.ALL, Reads.AGAIN):
            found = list(self._table.scan(snapshot_id=change.snapshot).plan_files())
        elif change.reads in (Reads.ADDED, Reads.MIXED):
            found = [FileScanTask(file) for file in self._added(change.snapshot)]
        else:
            found = []
        found.sort(key=lambda task: task.file.file_path)
        return [Part(task, task.file.record_count) for task in found]

    def _added(self, snapshot: int) -> Iterator[DataFile]:
        told, files = self._table.snapshot_by_id(snapshot), self._table.io
        for manifest in told.manifests(files) if told else ():
            if manifest.content is ManifestContent.DATA and manifest.added_snapshot_id == snapshot:
                entries = manifest.fetch_manifest_entry(files)
                yield from (one.data_file for one in entries if one.status is ManifestEntryStatus.ADDED)

    def rows(self, part: Part, columns: Sequence[str], skip: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows of a file but for the first `skip`, in order: some of a row group at a time."""
        schema = pa.schema([COLUMNS.field(name) for name in columns])
        if part.task.delete_files:
            batches = _without_deleted(self._table, part.task, columns)
        else:
            batches = _stored(self._table, part.task, columns, self._batch_rows)
        for batch in batches:
            rows = batch.slice(min(skip, len(batch)))
            skip -= len(batch) - len(rows)
            if len(rows):
                yield rows.select(columns).cast(schema)

    def close(self) -> None:
        """Leave the catalog."""
        if self._catalog is not None:
            self._catalog.close()


def _find_table(catalog: Catalog, name: str) -> Table | None:
    with explained(name):
        try:
            table = catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
    if [field.name for field in table.schema().fields] != COLUMNS.names:
        raise JobFailed(f"the table {name} has other columns than an archive")
    if table.metadata.format_version < _SEQUENCED:
        raise JobFailed(f"the table {name} has version 1 of Iceberg's format, without sequence numbers")
    return table


def _number(snapshot: Snapshot | None) -> int:
    return (snapshot.sequence_number or 0) if snapshot else 0


def _all_of(snapshot: Snapshot, reads: Reads) -> Change:
    return Change(snapshot.snapshot_id, _number(snapshot), reads, _count(snapshot, _ROWS))


def _change(snapshot: Snapshot) -> Change:
    at = snapshot.snapshot_id, _number(snapshot)
    operation = snapshot.summary.operation if snapshot.summary else None
    rows = _count(snapshot, _ROWS_ADDED)
    if operation is Operation.APPEND:
        return Change(*at, Reads.ADDED, rows)
    is_same = operation in (Operation.REPLACE, Operation.DELETE) or is_ours(snapshot)
    return Change(*at, Reads.NOTHING, 0) if is_same else Change(*at, Reads.MIXED, rows)


def _count(snapshot: Snapshot, name: str) -> int:
    return int(properties_of(snapshot).get(name, 0))


def _stored(
    table: Table, task: FileScanTask, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    files, path = filesystem_of(table, task.file.file_path)
    with files.open_input_file(path) as source, parquet.ParquetFile(source) as file:
        for group in range(file.num_row_groups):
            yield from file.iter_batches(batch_rows, row_groups=[group], columns=list(columns))


def _without_deleted(table: Table, task: FileScanTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Without the rows that other files say are deleted; the whole file is in memory."""
    scan = table.scan(selected_fields=tuple(columns))
    return ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter).to_record_batches([task])
