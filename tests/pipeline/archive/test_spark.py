"""Spark's store: a job that is killed between any two of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.archive.test_log import Died, kill_everywhere

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

        def _sync(self, names: Any, **how: Any) -> None:
            self._step()
            super()._sync(names, **how)

        def remove(self, name: str) -> None:
            self._step()
            super().remove(name)

    return Mortal(session, str(directory))


def test_a_job_happens_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before each rename, sync and removal, also within one change of the store."""
    from pipeline.archive.spark import HadoopStore

    def store(directory: Path) -> HadoopStore:
        return HadoopStore(spark, str(directory))

    assert kill_everywhere(tmp_path, store, lambda place, steps: mortal(spark, place, steps)) > 6
