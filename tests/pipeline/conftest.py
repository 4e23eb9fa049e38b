"""One Spark session for all tests, and spools to read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.app import brucectl
from pipeline.errors import MissingSpark
from pipeline.spark_release import check_requirements
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def requirements() -> None:
    """Spark can run here."""
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

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["brucectl", "spark", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            brucectl()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolFixture]:
    """A spool with segments of 8 KiB."""
    made = SpoolFixture(tmp_path)
    yield made
    made.crash()


@pytest.fixture
def second_spool(tmp_path: Path) -> Iterator[SpoolFixture]:
    """Another one."""
    (tmp_path / "second").mkdir()
    made = SpoolFixture(tmp_path / "second")
    yield made
    made.crash()
