"""One Spark session for all tests of a process, and the commands that run in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def requirements() -> None:
    """Spark can run here."""
    from pipeline.errors import MissingSpark
    from pipeline.spark_release import check_requirements

    try:
        check_requirements()
    except MissingSpark as error:
        pytest.skip(f"no Spark: {error}")


@pytest.fixture(scope="session")
def spark(requirements: None) -> Iterator[SparkSession]:
    """A session on two cores; it is the same for all tests, since it takes seconds to start."""
    from pipeline.session import open_session

    with open_session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as session:
        yield session


@dataclass(frozen=True, slots=True)
class Done:
    """A command's output."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def job(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Done]:
    """Runs `brucectl spark` in this process: a JVM of its own takes longer to start than most jobs to run."""
    from cli.app import brucectl

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["brucectl", "spark", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            brucectl()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run
