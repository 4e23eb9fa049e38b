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
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from pipeline.errors import JobFailed

_LOG_VERSION = 1
COMMITS, STAGING = "_bruce/commits", "_bruce/staging"
KEPT = 10
"""Commits that stay; the newest says all that is needed."""


class Store(Protocol):
    """The files of an archive. Names are paths below its directory."""

    address: str
    """As readers and reports name it."""

    def list(self, name: str) -> list[str]:
        """The names in a directory, in order; none when there is no such directory."""

    def read(self, name: str) -> str:
        """A small file."""

    def publish(self, name: str, text: str) -> None:
        """Write a small file, all or nothing. Raises ArchiveConflict when there is one of this name."""

    def move(self, source: str, target: str) -> None:
        """Give a file the name it keeps; no error when that was done before."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents; no error when it is gone."""

    def sync(self, names: Iterable[str]) -> None:
        """Sync files and their directories; only of a local disk, since other stores do it themselves."""


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
        """Finish the commit of a killed job. Raises JobFailed for an archive of a newer bruce."""
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
        self._store.sync([source for source, _ in moves])
        self._store.publish(_name(done.number), json.dumps({"version": _LOG_VERSION, **asdict(done)}))
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
            self._store.sync([target for _, target in done.moves])
        self._clear()

    def _clear(self) -> None:
        """Remove the staged files of jobs that have ended, and old commits."""
        for name in self._store.list(STAGING):
            # A higher number may be that of a running job.
            if int(name.partition("-")[0]) <= self.newest.number:
                self._store.remove(f"{STAGING}/{name}")
        for name in _committed(self._store.list(COMMITS))[:-KEPT]:
            self._store.remove(f"{COMMITS}/{name}")

    def _read_newest(self) -> Commit:
        names = _committed(self._store.list(COMMITS))
        if not names:
            return Commit()
        found = json.loads(self._store.read(f"{COMMITS}/{names[-1]}"))
        if found.pop("version") != _LOG_VERSION:
            raise JobFailed(f"{self._store.address} was written by a newer bruce")
        return Commit(**found)


def _committed(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".json")]


def _name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"
