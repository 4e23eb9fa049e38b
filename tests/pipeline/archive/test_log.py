"""The commits of an archive, in either engine's store: a job happens whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.archive.files import Files
from pipeline.archive.log import ArchiveLog, Store
from pipeline.engine import Engine
from pipeline.errors import ArchiveConflict, JobFailed

StoreIn = Callable[[Path], Store]
OLD = ["topic=a/date=2026-11-21/old-1.parquet", "topic=a/date=2026-11-21/old-2.parquet"]
NEW = "topic=a/date=2026-11-21/new.parquet"
SPOOLS = [f"{number:032x}" for number in range(3)]
COMMIT = {"version": 1, "number": 1, "spools": {}, "staging": "", "moves": [], "replaced": []}
STAGED = f"_bruce/staging/0000000001-{'a' * 32}"


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
        def do(*given: object, **named: object) -> None:
            nonlocal left
            if left == 0:
                raise Died
            left -= 1
            change(*given, **named)

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
            log.commit({SPOOLS[0]: [10, 10]}, staging, [(f"{staging}/{NEW}", NEW)], OLD)
        except Died:
            assert not (NEW in files(directory) and files(directory) & set(OLD)), steps
            again = ArchiveLog(store(directory))
            whole = ({}, set(OLD)), ({SPOOLS[0]: [10, 10]}, {NEW})
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
    first.commit({SPOOLS[0]: [10, 10]}, "", (), ())
    with pytest.raises(JobFailed, match="another job writes to"):
        second.commit({SPOOLS[0]: [20, 20]}, "", (), ())
    assert ArchiveLog(store(tmp_path)).newest.spools == {SPOOLS[0]: [10, 10]}


def test_a_job_that_many_others_overtake(store: StoreIn, tmp_path: Path) -> None:
    """The number of its commit is free again, since old commits go: it gets an error all the same."""
    slow, others = (ArchiveLog(store(tmp_path)) for _ in range(2))
    for number in range(12):
        others.commit({SPOOLS[0]: [number, number]}, "", (), ())
    commits = tmp_path / "_bruce/commits"
    assert not (commits / "0000000001.json").exists()
    staging = slow.new_staging()
    staged = tmp_path / staging / NEW
    staged.parent.mkdir(parents=True)
    staged.touch()
    with pytest.raises(ArchiveConflict):
        slow.commit({SPOOLS[0]: [20, 20]}, staging, [(f"{staging}/{NEW}", NEW)], ())
    assert not (commits / "0000000001.json").exists()
    assert not (tmp_path / NEW).exists()
    assert ArchiveLog(store(tmp_path)).newest.spools == {SPOOLS[0]: [11, 11]}


def test_old_commits_go(store: StoreIn, tmp_path: Path) -> None:
    """Ten stay, and each says how far every spool is."""
    log = ArchiveLog(store(tmp_path))
    for number in range(14):
        log.commit({SPOOLS[number % 3]: [number, 0]}, "", (), ())
    assert len(list((tmp_path / "_bruce/commits").glob("[0-9]*.json"))) == 10
    assert ArchiveLog(store(tmp_path)).newest.spools == {
        SPOOLS[0]: [12, 0],
        SPOOLS[1]: [13, 0],
        SPOOLS[2]: [11, 0],
    }


def test_the_draft_of_a_killed_job_is_nobody_s(store: StoreIn, tmp_path: Path) -> None:
    """Killed behind the commit, it left a second name of it: another job's draft is a file of its own."""
    late = ArchiveLog(store(tmp_path))
    ArchiveLog(store(tmp_path)).commit({SPOOLS[0]: [10, 10]}, "", (), ())
    commit = tmp_path / "_bruce/commits/0000000001.json"
    for draft in ("0000000001.json.tmp", "0000000001.json.1234.tmp"):
        os.link(commit, commit.with_name(draft))
    with pytest.raises(ArchiveConflict):
        late.commit({SPOOLS[0]: [20, 20]}, "", (), ())
    assert ArchiveLog(store(tmp_path)).newest.spools == {SPOOLS[0]: [10, 10]}
    assert [path.name for path in commit.parent.glob("0*")] == [commit.name]


def test_the_slower_job_hears_of_the_faster_one(store: StoreIn, tmp_path: Path) -> None:
    """Which has removed what the slower one had staged: it may begin again."""
    faster, slower = (ArchiveLog(store(tmp_path)) for _ in range(2))
    staging = slower.new_staging()
    staged = tmp_path / staging / NEW
    staged.parent.mkdir(parents=True)
    staged.touch()
    faster.commit({SPOOLS[0]: [10, 10]}, "", (), ())
    assert not staged.exists()
    with pytest.raises(ArchiveConflict):
        slower.commit({SPOOLS[0]: [20, 20]}, staging, [(f"{staging}/{NEW}", NEW)], ())


@pytest.mark.parametrize(
    "change",
    [
        {"replaced": ["{victim}"]},
        {"replaced": ["topic=a/../../victim.parquet"]},
        {"replaced": ["topic=../date=/../victim.parquet"]},
        {"staging": "_bruce"},
        {"staging": "{victim}"},
        {"staging": STAGED, "moves": [["{victim}", NEW]]},
        {"staging": STAGED, "moves": [[f"{STAGED}/{NEW}", "{victim}"]]},
        {"staging": STAGED, "moves": [[f"{STAGED}/../../../{NEW}", NEW]]},
        {"moves": [[f"{STAGED}/{NEW}", NEW]]},
        {"spools": {"x": [1, 1]}},
        {"spools": {SPOOLS[0]: [-1, 1]}},
        {"spools": {SPOOLS[0]: [1]}},
        {"spools": [1]},
        {"number": 2},
        {"moves": None},
    ],
)
def test_a_commit_names_files_of_the_archive_alone(
    store: StoreIn, tmp_path: Path, change: dict[str, object]
) -> None:
    """A stranger who writes into a shared archive has nothing else moved or removed: it is one sentence."""
    victim = tmp_path / "victim.parquet"
    victim.touch()
    place, commit = tmp_path / "archive", {**COMMIT, **change}
    (place / STAGED).mkdir(parents=True)
    (place / STAGED / "something").touch()
    (place / "_bruce/commits").mkdir()
    text = json.dumps(commit).replace("{victim}", str(victim))
    (place / "_bruce/commits/0000000001.json").write_text(text)
    with pytest.raises(JobFailed, match="is damaged"):
        ArchiveLog(store(place))
    assert victim.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"version": 1}', "[" * 100_000])
def test_a_damaged_commit_is_one_sentence(store: StoreIn, tmp_path: Path, text: str) -> None:
    """Which names the file; one of a later version is said to be that."""
    commit = tmp_path / "_bruce/commits/0000000001.json"
    commit.parent.mkdir(parents=True)
    commit.write_text(text)
    with pytest.raises(JobFailed, match=r"0000000001\.json is damaged"):
        ArchiveLog(store(tmp_path))
    commit.write_text(json.dumps({**COMMIT, "version": 2}))
    with pytest.raises(JobFailed, match="newer bruce"):
        ArchiveLog(store(tmp_path))


def test_names_of_others_are_passed_over(store: StoreIn, tmp_path: Path) -> None:
    """Among the commits and in the folder of staged files."""
    for name in ("commits/notes.json", "commits/x.tmp", "staging/x", "staging/1-y"):
        path = tmp_path / "_bruce" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    ArchiveLog(store(tmp_path)).commit({SPOOLS[0]: [10, 10]}, "", (), ())
    assert ArchiveLog(store(tmp_path)).newest.number == 1
    assert (tmp_path / "_bruce/staging/x").exists()
