"""Spark's store: a job that is killed between any two of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.archive.log import ArchiveLog
from tests.pipeline.archive.test_log import NEW, OLD, Died, files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def mortal(session: SparkSession, directory: Path, steps: int) -> Any:
    """A store that dies before it changes anything for the time `steps`."""
    from pipeline.archive.spark import HadoopStore

    class Mortal(HadoopStore):
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


def test_a_job_happens_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before each of its steps and started again, mark and files go together; no reader sees both.

    Fails when files move before the commit is published, or new ones before old ones are gone.
    """
    from pipeline.archive.spark import HadoopStore

    for steps in range(100):
        directory = tmp_path / str(steps)
        for name in OLD:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
        log = ArchiveLog(HadoopStore(spark, str(directory)))
        staging = log.new_staging()
        staged = directory / staging / NEW
        staged.parent.mkdir(parents=True)
        staged.touch()
        log._store = mortal(spark, directory, steps)
        try:
            log.commit({"s": [10, 10]}, staging, [(f"{staging}/{NEW}", NEW)], OLD)
        except Died:
            assert not (NEW in files(directory) and files(directory) & set(OLD)), steps
            again = ArchiveLog(HadoopStore(spark, str(directory)))
            assert (again.newest.spools, files(directory)) in (({}, set(OLD)), ({"s": [10, 10]}, {NEW})), (
                steps
            )
        else:
            break
    assert steps > 6
    assert not list((directory / "_bruce/staging").iterdir())
