"""An archive as an Iceberg table: each commit, also of a compaction, is whole for every reader.

    DIR/catalog.db                    the catalog of one host: SQLite
    DIR/bruce/messages/metadata/      Iceberg's own
    DIR/bruce/messages/data/0000000007-.../topic=orders/date=2026-11-21/part-....zstd.parquet

The table has the columns of `fields.ARCHIVED` and is partitioned by topic and date. Its snapshots say by
their properties how far each spool is archived (`bruce.spools`) and which of our commits they are
(`bruce.commit`). Snapshots of other programs, as of those that rewrite files, have none: the newest that has
some counts.

A job commits on top of the snapshot that it began with, or not at all: the table's property
`commit.retry.num-retries` is 0. So a job that was killed has added all of its rows or none, and of two jobs
one begins again. Files of jobs that did not commit, and those that compactions replaced, are removed by a
later compaction.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from pipeline.archive.files import File
from pipeline.archive.log import CATALOG, COMMITS, Commit
from pipeline.errors import ArchiveConflict, JobFailed
from pipeline.source.fields import ARCHIVED, PARTITIONS, to_schema
from pipeline.source.remote import is_address, local_path, shown

TABLE = "bruce.messages"
EVERY_S = 60.0
"""Between two scans of the spools: each makes a snapshot, and files for each topic."""
KEPT = timedelta(days=1)
"""How long snapshots stay, once there are newer ones."""
_RETRIES = "commit.retry.num-retries"
_PROPERTIES = {
    _RETRIES: "0",
    # For many small commits.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
SPOOLS, COMMIT = "bruce.spools", "bruce.commit"
"""Properties of our snapshots."""
COLUMNS = to_schema(name for name, *_ in ARCHIVED)
_STAGING = re.compile(r"/data/((\d{10})-[0-9a-f]{32})/")


def local_catalog(directory: str) -> Catalog:
    """The catalog of this host, in a directory."""
    if is_address(directory) and not directory.startswith("file:"):
        raise JobFailed(
            f"{shown(directory)} is no directory of this host: give --catalog NAME, as pyiceberg has it"
        )
    root = Path(local_path(directory)).absolute()
    if (root / COMMITS).exists() and not (root / CATALOG).exists():
        raise JobFailed(
            f"{shown(directory)} holds an archive of plain Parquet files: go on without --table iceberg, or "
            "give another folder"
        )
    root.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{root}/{CATALOG}"
    with explained(uri):
        return load_catalog("bruce", type="sql", uri=uri, warehouse=root.as_uri(), init_catalog_tables="true")


def configured_catalog(name: str) -> Catalog:
    """A catalog of pyiceberg's own configuration: .pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__... .

    Raises JobFailed when there is none of this name, or it does not answer.
    """
    with explained(f"the catalog {name}"):
        return load_catalog(name)


def open_table(catalog: Catalog, name: str) -> Table:
    """The table, made if it is not there. Raises JobFailed for one that is no archive of ours."""
    if "." not in name:
        raise JobFailed(f"{name!r} is no name of a table: it takes NAMESPACE.TABLE, as {TABLE}")
    with explained(name):
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            table = _create(catalog, name)
    if [field.name for field in table.schema().fields] != COLUMNS.names:
        raise JobFailed(
            f"the table {name} has other columns than an archive: archive into a table of its own"
        )
    if table.properties.get(_RETRIES) != "0":
        raise JobFailed(
            f"the table {name} needs the property {_RETRIES} = 0: else two jobs may add the same rows"
        )
    return table


def _create(catalog: Catalog, name: str) -> Table:
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(name.rpartition(".")[0])
    with (
        suppress(TableAlreadyExistsError),
        catalog.create_table_transaction(name, COLUMNS, properties=_PROPERTIES) as made,
        made.update_spec() as spec,
    ):
        for column in PARTITIONS:
            spec.add_identity(column)
    return catalog.load_table(name)


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Raise JobFailed for errors of catalogs and stores: each kind has those of its own library."""
    try:
        yield
    except (JobFailed, CommitFailedException):
        raise
    except Exception as error:
        raise JobFailed(f"{place} cannot be used: {next(iter(str(error).splitlines()), error)}") from error


class IcebergTable:
    """Shared by the files of both engines (`pipeline.archive.files.Files`)."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.address, self.every_s = table.location(), EVERY_S
        self._known: dict[str, DataFile] = {}
        """By partition and name."""

    def open(self) -> IcebergLog:
        """The log of its commits. Raises JobFailed."""
        with explained(self.address):
            self._table.refresh()
        return IcebergLog(self._table, self._known)

    def visible(self) -> list[File]:
        """The files of the newest snapshot."""
        with explained(self.address):
            # A file of which rows were deleted stays as it is: merged, it would have them again.
            files = [task.file for task in self._table.scan().plan_files() if not task.delete_files]
        # Each program has folders of its own: the partition tells which files may become one.
        named = {f"{file.partition}/{below(file.file_path, 1)}": file for file in files}
        self._known.clear()
        self._known.update(named)
        found = [File(name, file.file_size_in_bytes) for name, file in named.items()]
        return sorted(found, key=lambda file: file.name)

    def count(self, names: Sequence[str]) -> int:
        """How many rows these have."""
        return sum(self._known[name].record_count for name in names)

    def locations(self, names: Sequence[str]) -> list[str]:
        """Their addresses."""
        return [self._known[name].file_path for name in names]

    def root(self, staging: str) -> str:
        """The address of a job's own folder."""
        return f"{self.address}/data/{staging}"

    def place(self, location: str) -> tuple[fs.FileSystem, str]:
        """The file system of a location of the table, and the path there."""
        return filesystem_of(self._table, location)


class IcebergLog:
    """Implements `pipeline.archive.log.Log`."""

    def __init__(self, table: Table, known: Mapping[str, DataFile]) -> None:
        """Raises JobFailed when no snapshot is left that tells how far the spools are archived."""
        self._table, self._known = table, known
        self.newest = _progress(table)

    def new_staging(self) -> str:
        return f"{self.newest.number + 1:010d}-{uuid.uuid4().hex}"

    def commit(
        self,
        spools: Mapping[str, Sequence[int]],
        staging: str,
        moves: Sequence[tuple[str, str]],
        replaced: Sequence[str],
    ) -> None:
        done = Commit(self.newest.number + 1, {**self.newest.spools, **spools}, staging)
        told = {COMMIT: str(done.number), SPOOLS: json.dumps(done.spools)}
        added = [source for source, _ in moves]
        try:
            with explained(self._table.location()), self._table.transaction() as change:
                if replaced:
                    made = parquet_files_to_data_files(self._table.io, self._table.metadata, iter(added))
                    with change.update_snapshot(told).overwrite() as swap:
                        for name in replaced:
                            swap.delete_data_file(self._known[name])
                        for file in made:
                            swap.append_data_file(file)
                else:
                    change.add_files(added, told, check_duplicate_files=False)
        except CommitFailedException as error:
            place = self._table.location()
            raise ArchiveConflict(f"another job or program wrote to {place}; start this one again") from error
        self.newest = done
        if replaced:
            with explained(self._table.location()):
                self._sweep()

    def _sweep(self) -> None:
        """Forget old snapshots, and remove the files of our folders that no snapshot has."""
        try:
            # Its clock, like that of snapshots, has no zone.
            self._table.maintenance.expire_snapshots().older_than(datetime.now() - KEPT).commit()  # noqa: DTZ005
        except CommitFailedException:
            return
        kept = set(self._table.inspect.all_files()["file_path"].to_pylist())
        root = f"{self._table.location()}/data"
        files, path = filesystem_of(self._table, root)
        for info in files.get_file_info(fs.FileSelector(path, recursive=True)):
            folder = _STAGING.search(f"{root}{info.path[len(path) :]}")
            # A higher number may be that of a running job.
            gone = info.is_file and folder and int(folder[2]) <= self.newest.number
            if gone and f"{root}{info.path[len(path) :]}" not in kept:
                files.delete_file(info.path)


def _progress(table: Table) -> Commit:
    """The newest of our commits that the table has."""
    snapshot = table.current_snapshot()
    if (done := commit_of(table, snapshot)) is not None:
        return done
    if snapshot is None:
        return Commit()
    raise JobFailed(
        f"no snapshot of {table.location()} is left that says how far spools are archived ({SPOOLS}): roll "
        "it back to one that does, or archive into another table"
    )


def commit_of(table: Table, snapshot: Snapshot | None) -> Commit | None:
    """The newest of our commits that a snapshot has in it; None when no snapshot is left that tells."""
    for one in lineage(table, snapshot):
        if is_ours(one):
            told = properties_of(one)
            return Commit(int(told[COMMIT]), json.loads(told[SPOOLS]))
    return None


def is_ours(snapshot: Snapshot) -> bool:
    """Whether a snapshot is one of our commits."""
    return COMMIT in properties_of(snapshot)


def properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    """The properties of a snapshot, but for its operation."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def lineage(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and those that it came from, newest first, as far as they are there."""
    while snapshot:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def filesystem_of(table: Table, location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a location of the table, and the path there."""
    properties: dict[str, Any] = table.io.properties
    scheme, place, path = PyArrowFileIO.parse_location(location, properties)
    return PyArrowFileIO(properties).fs_by_scheme(scheme, place), path


def below(location: str, parts: int = len(PARTITIONS) + 1) -> str:
    """The last parts of a file's whole address: by default its folders' and its own name."""
    return "/".join(location.split("/")[-parts:])
