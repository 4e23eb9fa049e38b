"""The archive's commits: a job happens whole or not at all, whenever it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OLD, NEW = ["topic=a/date=2026-11-21/old-1", "topic=b/date=2026-11-21/old-2"], "topic=a/date=2026-11-21/new"


class Died(BaseException):
    """Stands for SIGKILL: nobody catches it, so nothing happens after it."""


def mortal(session: SparkSession, directory: Path, steps: int) -> Any:
    """A store that dies before it changes anything for the time `steps`."""
    from pipeline.store import Store

    class Mortal(Store):
        left = steps

        def _step(self) -> None:
            if self.left == 0:
                raise Died
            self.left -= 1

        def _rename(self, source: Any, target: Any) -> None:
            self._step()
            super()._rename(source, target)

        def _sync(self, names: Any) -> None:
            self._step()
            super()._sync(names)

        def remove(self, name: str) -> None:
            self._step()
            super().remove(name)

    return Mortal(session, str(directory))


def files(directory: Path) -> set[str]:
    """What a reader of the archive sees."""
    return {str(path.relative_to(directory)) for path in directory.glob("topic=*/*/[!.]*")}


def test_a_job_happens_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before each of its steps and started again, mark and files go together; no reader sees both.

    Fails when files move before the commit is published, or new ones before old ones are gone.
    """
    from pipeline.archive_log import ArchiveLog
    from pipeline.store import Store

    for steps in range(100):
        directory = tmp_path / str(steps)
        for name in OLD:
            (directory / name).parent.mkdir(parents=True)
            (directory / name).touch()
        log = ArchiveLog(Store(spark, str(directory)))
        staging = log.new_staging()
        staged = directory / staging / NEW
        staged.parent.mkdir(parents=True)
        staged.touch()
        log._store = mortal(spark, directory, steps)
        try:
            log.commit({"s": [10, 10]}, staging, [(f"{staging}/{NEW}", NEW)], OLD)
        except Died:
            assert not (NEW in files(directory) and files(directory) & set(OLD)), steps
            again = ArchiveLog(Store(spark, str(directory)))
            assert (again.newest.spools, files(directory)) in (({}, set(OLD)), ({"s": [10, 10]}, {NEW})), (
                steps
            )
        else:
            break
    assert steps > 6
    assert not list((directory / "_bruce/staging").iterdir())


def test_of_two_jobs_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    """Two that began at the same commit: the second is told so, and changes nothing."""
    from pipeline.archive_log import ArchiveLog
    from pipeline.errors import JobFailed
    from pipeline.store import Store

    first, second = (ArchiveLog(Store(spark, str(tmp_path))) for _ in range(2))
    first.commit({"s": [10, 10]}, "", (), ())
    with pytest.raises(JobFailed, match="another job writes to"):
        second.commit({"s": [20, 20]}, "", (), ())
    assert ArchiveLog(Store(spark, str(tmp_path))).newest.spools == {"s": [10, 10]}


def test_old_commits_go(spark: SparkSession, tmp_path: Path) -> None:
    """Ten stay, and each says how far every spool is."""
    from pipeline.archive_log import ArchiveLog
    from pipeline.store import Store

    log = ArchiveLog(Store(spark, str(tmp_path)))
    for number in range(14):
        log.commit({f"s{number % 3}": [number, 0]}, "", (), ())
    assert len(list((tmp_path / "_bruce/commits").glob("[0-9]*.json"))) == 10
    assert ArchiveLog(Store(spark, str(tmp_path))).newest.spools == {
        "s0": [12, 0],
        "s1": [13, 0],
        "s2": [11, 0],
    }
