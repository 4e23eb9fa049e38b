"""How an archive grows by whole jobs: the commits beside its files.

    ARCHIVE/_bruce/commits/0000000007.json      Spark's readers pass over names that begin with _
    ARCHIVE/_bruce/staging/0000000007-.../      what a job writes, until its commit

A commit says how far each spool has been archived, which staged files get which names, and which files they
replace. It is one file, made by a rename: with it, a job has happened. Then the old files go and the
new ones come; whoever opens the archive next finishes that for a job that was killed. So a job that is
started again finds what it did, or nothing of it, and no message is in the archive twice at any moment.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pipeline.errors import JobFailed
from pipeline.store import Store

VERSION = 1
COMMITS, STAGING = "_bruce/commits", "_bruce/staging"
KEPT = 10
"""Commits that stay; the newest says all that is needed."""


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
        """Finishes what a killed job had committed. Raises JobFailed for an archive of a newer bruce."""
        self._store = store
        self.newest = self._read_newest()
        if self.newest.number:
            self._finish()

    def new_staging(self) -> str:
        """A name for a directory in which a job may write, and nobody else will."""
        return f"{STAGING}/{self.newest.number + 1:010d}-{uuid.uuid4().hex}"

    def commit(
        self,
        spools: Mapping[str, Sequence[int]],
        staging: str,
        moves: Sequence[tuple[str, str]],
        replaced: Sequence[str],
    ) -> None:
        """Make it happen. Raises JobFailed when another job was faster, and then nothing has."""
        known = {**self.newest.spools, **spools}
        done = Commit(self.newest.number + 1, known, staging, moves, replaced)
        self._store.sync([source for source, _ in moves])
        self._store.publish(_name(done.number), json.dumps({"version": VERSION, **asdict(done)}))
        self.newest = done
        self._finish()

    def _finish(self) -> None:
        """What the newest commit says; again, when part of it was done."""
        done = self.newest
        if done.staging and self._store.list(done.staging):
            for name in done.replaced:
                self._store.remove(name)
            for source, target in done.moves:
                self._store.move(source, target)
            self._store.sync([target for _, target in done.moves])
        self._clear()

    def _clear(self) -> None:
        """Remove what jobs left that are over, and old commits."""
        for name in self._store.list(STAGING):
            # A higher number may be that of a job which is at work.
            if int(name.partition("-")[0]) <= self.newest.number:
                self._store.remove(f"{STAGING}/{name}")
        for name in _committed(self._store.list(COMMITS))[:-KEPT]:
            self._store.remove(f"{COMMITS}/{name}")

    def _read_newest(self) -> Commit:
        names = _committed(self._store.list(COMMITS))
        if not names:
            return Commit()
        found = json.loads(self._store.read(f"{COMMITS}/{names[-1]}"))
        if found.pop("version") != VERSION:
            raise JobFailed(f"{self._store.address} was written by a newer bruce")
        return Commit(**found)


def _committed(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".json")]


def _name(number: int) -> str:
    return f"{COMMITS}/{number:010d}.json"
