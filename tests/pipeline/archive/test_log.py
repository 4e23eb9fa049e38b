"""The commits of an archive, in either engine's store: a job happens whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.archive.files import Files
from pipeline.archive.log import ArchiveLog, Store
from pipeline.engine import Engine
from pipeline.errors import JobFailed

StoreIn = Callable[[Path], Store]
OLD, NEW = ["topic=a/date=2026-11-21/old-1", "topic=a/date=2026-11-21/old-2"], "topic=a/date=2026-11-21/new"


@pytest.fixture
def store(engine: Engine, files: Callable[[Path], Files]) -> StoreIn:
    """The store of an archive in a directory."""
    assert engine
    return lambda directory: files(directory).store


class Died(BaseException):
    """Simulates SIGKILL: no handler catches it, so nothing happens after it."""


def mortal(store: Store, steps: int) -> Store:
    """A store that dies before it changes anything for the time `steps`."""
    left = steps

    def dying(change: Callable[..., None]) -> Callable[..., None]:
        def do(*given: object) -> None:
            nonlocal left
            if left == 0:
                raise Died
            left -= 1
            change(*given)

        return do

    for name in ("publish", "move", "remove", "sync"):
        setattr(store, name, dying(getattr(store, name)))
    return store


def files(directory: Path) -> set[str]:
    """The files that a reader of the archive sees."""
    return {str(path.relative_to(directory)) for path in directory.glob("topic=*/*/[!.]*")}


def kill_everywhere(place: Path, store: StoreIn, mortals: Callable[[Path, int], Store]) -> int:
    """Kill a job before each of its steps, and start it again; how many steps it has.

    Mark and files go together; no reader sees both. Fails when files move before the commit is published, or
    new ones before old ones are gone. `mortals`: stores that die behind so many steps.
    """
    for steps in range(100):
        directory = place / str(steps)
        for name in OLD:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
        log = ArchiveLog(store(directory))
        staging = log.new_staging()
        staged = directory / staging / NEW
        staged.parent.mkdir(parents=True)
        staged.touch()
        log._store = mortals(directory, steps)
        try:
            log.commit({"s": [10, 10]}, staging, [(f"{staging}/{NEW}", NEW)], OLD)
        except Died:
            assert not (NEW in files(directory) and files(directory) & set(OLD)), steps
            again = ArchiveLog(store(directory))
            whole = ({}, set(OLD)), ({"s": [10, 10]}, {NEW})
            assert (again.newest.spools, files(directory)) in whole, steps
        else:
            assert not list((directory / "_bruce/staging").iterdir())
            return steps
    raise AssertionError("it never ended")


def test_a_job_happens_whole_or_not_at_all(store: StoreIn, tmp_path: Path) -> None:
    """Killed before each change of its store."""
    assert kill_everywhere(tmp_path, store, lambda place, steps: mortal(store(place), steps)) > 6


def test_of_two_jobs_one_wins(store: StoreIn, tmp_path: Path) -> None:
    """Of two jobs that began at the same commit the second gets an error, and changes nothing."""
    first, second = (ArchiveLog(store(tmp_path)) for _ in range(2))
    first.commit({"s": [10, 10]}, "", (), ())
    with pytest.raises(JobFailed, match="another job writes to"):
        second.commit({"s": [20, 20]}, "", (), ())
    assert ArchiveLog(store(tmp_path)).newest.spools == {"s": [10, 10]}


def test_old_commits_go(store: StoreIn, tmp_path: Path) -> None:
    """Ten stay, and each says how far every spool is."""
    log = ArchiveLog(store(tmp_path))
    for number in range(14):
        log.commit({f"s{number % 3}": [number, 0]}, "", (), ())
    assert len(list((tmp_path / "_bruce/commits").glob("[0-9]*.json"))) == 10
    assert ArchiveLog(store(tmp_path)).newest.spools == {
        "s0": [12, 0],
        "s1": [13, 0],
        "s2": [11, 0],
    }
