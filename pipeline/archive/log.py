"""The commits of one archive: each job adds all of its rows or none.

A commit says how far each spool has been archived, which staged files get which names, and which files they
replace. It is one file, made by a rename: the rename makes the job durable. Then, directory by directory, the
job removes the old files and moves the new ones into place; after a kill, the next process that opens the
archive finishes these moves. So a job that is started again finds all that it did, or nothing of it, and no
message is in the archive twice at any moment. A reader that lists a directory between its old files and its
new one misses these messages.

    ARCHIVE/_bruce/commits/0000000007.json      Spark's readers pass over names that begin with _
    ARCHIVE/_bruce/staging/0000000007-.../      what a job writes, until its commit
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.errors import ArchiveConflict, JobFailed
from pipeline.source.remote import is_address, local_path

_LOG_VERSION = 1
COMMITS, STAGING = "_bruce/commits", "_bruce/staging"
CATALOG = "catalog.db"
"""Of an archive that is an Iceberg table, in place of the commits."""
KEPT = 10
"""Commits that stay; the newest says all that is needed."""
MOST_BYTES = 64 << 20
"""Of a commit."""
_STAGED = re.compile(rf"{STAGING}/\d{{10}}-[0-9a-f]{{32}}")
_FILE = re.compile(r"topic=[^/\0]+/date=[^/\0]+/[^/\0]+\.parquet")
_SPOOL = re.compile(r"[0-9a-f]{32}")
_COMMIT = re.compile(r"\d{10}\.json")
_DRAFT = re.compile(r"\d{10}\.json\..*tmp")


class Store(Protocol):
    """The files of an archive. Names are paths below its directory."""

    address: str
    """As readers and reports name it."""

    def list(self, name: str) -> list[str]:
        """The names in a directory, in order; none when there is no such directory."""

    def read(self, name: str, most: int) -> bytes:
        """A file, or as many bytes of it."""

    def publish(self, name: str, text: str) -> None:
        """Write a small file, all or nothing. Raises ArchiveConflict when there is one of this name.

        A kill may leave a draft, whose name begins with this one.
        """

    def move(self, source: str, target: str) -> None:
        """Give a file the name it keeps; no error when that was done before."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; no error when it is gone."""

    def sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Sync files and their directories; only of a local disk, since other stores do it themselves."""


def is_iceberg(directory: str) -> bool:
    """Whether a folder of this host holds an archive that is an Iceberg table."""
    return not is_address(path := local_path(directory)) and (Path(path) / CATALOG).exists()


class Log(Protocol):
    """The commits of an archive."""

    newest: Commit

    def new_staging(self) -> str:
        """A name for a directory in which only this job writes."""

    def commit(
        self,
        spools: Mapping[str, Sequence[int]],
        staging: str,
        moves: Sequence[tuple[str, str]],
        replaced: Sequence[str],
    ) -> None:
        """Commit. Raises ArchiveConflict, without any change, when another job was faster."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One job's change."""

    number: int = 0
    spools: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By uuid: the messages below this sequence number are in the archive; and how many the spool had stored
    by then, since it began."""
    staging: str = ""
    moves: Sequence[tuple[str, str]] = ()
    """From, to."""
    replaced: Sequence[str] = ()


class ArchiveLog:
    """The commits of one archive."""

    def __init__(self, store: Store) -> None:
        """Finish the commit of a killed job. Raises JobFailed for a damaged commit, or a newer bruce's."""
        self._store = store
        self.newest = self._read_newest()
        if self.newest.number:
            self._finish()

    def new_staging(self) -> str:
        """A name for a directory in which only this job writes."""
        return f"{STAGING}/{self.newest.number + 1:010d}-{uuid.uuid4().hex}"

    def commit(
        self,
        spools: Mapping[str, Sequence[int]],
        staging: str,
        moves: Sequence[tuple[str, str]],
        replaced: Sequence[str],
    ) -> None:
        """Commit. Raises ArchiveConflict, without any change, when another job was faster."""
        known = {**self.newest.spools, **spools}
        done = Commit(self.newest.number + 1, known, staging, moves, replaced)
        try:
            self._store.sync([source for source, _ in moves])
            self._store.publish(_name(done.number), json.dumps({"version": _LOG_VERSION, **asdict(done)}))
        except FileNotFoundError:
            # A job that was faster has removed what this one staged.
            if self._read_newest().number < done.number:
                raise
            raise ArchiveConflict(
                f"another job writes to {self._store.address}; start this one again"
            ) from None
        if self._read_newest().number > done.number:
            # Others have committed so often meanwhile that the number was free again.
            self._store.remove(_name(done.number))
            raise ArchiveConflict(f"other jobs write to {self._store.address}; start this one again")
        self.newest = done
        self._finish()

    def _finish(self) -> None:
        """Apply the newest commit; it may have been applied in part before."""
        done = self.newest
        if done.staging and self._store.list(done.staging):
            old = [(os.path.dirname(name), "", name) for name in done.replaced]
            new = [(os.path.dirname(target), source, target) for source, target in done.moves]
            # Directory by directory, old files first: one at a time lacks its merged rows.
            for _, source, name in sorted(old + new):
                if source:
                    self._store.move(source, name)
                else:
                    self._store.remove(name)
            # Another process may finish the same, and merge them by now.
            self._store.sync([target for _, target in done.moves], may_be_gone=True)
        self._clear()

    def _clear(self) -> None:
        """Remove the staged files and the drafts of jobs that have ended, and old commits."""
        # A higher number may be that of a running job.
        for name in self._store.list(STAGING):
            if _STAGED.fullmatch(f"{STAGING}/{name}") and int(name[:10]) <= self.newest.number:
                self._store.remove(f"{STAGING}/{name}")
        for name in self._store.list(COMMITS):
            if _DRAFT.fullmatch(name) and int(name[:10]) <= self.newest.number:
                self._store.remove(f"{COMMITS}/{name}")
        for name in _committed(self._store.list(COMMITS))[:-KEPT]:
            self._store.remove(f"{COMMITS}/{name}")

    def _read_newest(self) -> Commit:
        names = _committed(self._store.list(COMMITS))
        if not names:
            return Commit()
        name = f"{COMMITS}/{names[-1]}"
        try:
            return _decode(self._store.read(name, MOST_BYTES), int(names[-1][:10]))
        except _Newer:
            raise JobFailed(f"{self._store.address} was written by a newer bruce") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise JobFailed(
                f"{self._store.address}/{name} is damaged: bring it back from a copy; without it a job "
                "does not know what is archived"
            ) from None


class _Newer(Exception):
    """A commit of a later version."""


def _decode(data: bytes, number: int) -> Commit:
    """The commit in a file, whose name has its number. Raises _Newer, and other errors for damage.

    A commit may be by anybody who can write into the archive: it names nothing but files of the archive.
    """
    found = json.loads(data)
    if found["version"] != _LOG_VERSION:
        raise _Newer
    spools = {_checked(_SPOOL, spool): _counts(told) for spool, told in found["spools"].items()}
    staging = found["staging"] and _checked(_STAGED, found["staging"])
    moves = [(_staged(staging, source), _checked(_FILE, target)) for source, target in found["moves"]]
    replaced = [_checked(_FILE, name) for name in found["replaced"]]
    if found["number"] != number:
        raise ValueError
    return Commit(number, spools, staging, moves, replaced)


def _checked(pattern: re.Pattern[str], name: str) -> str:
    if not pattern.fullmatch(name):
        raise ValueError
    return name


def _staged(staging: str, name: str) -> str:
    _checked(_FILE, name.removeprefix(f"{staging}/"))
    if not staging or not name.startswith(f"{staging}/"):
        raise ValueError
    return name


def _counts(told: Sequence[int]) -> list[int]:
    first, stored = told
    if not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in (first, stored)):
        raise ValueError
    return [first, stored]


def _committed(names: Sequence[str]) -> list[str]:
    return [name for name in names if _COMMIT.fullmatch(name)]


def _name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"
