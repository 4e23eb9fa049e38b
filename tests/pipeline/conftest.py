"""Spools to read, and the engines that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pipeline.archive.files import Files
    from pipeline.engine import Engine


LONG_ON_SPARK = pytest.mark.parametrize(
    "engine",
    [pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long]), "duckdb"],
    indirect=True,
    scope="module",
)
"""For a test whose job is the same on both engines, and slow on one."""


@pytest.fixture(scope="module", params=[pytest.param("spark", marks=pytest.mark.spark), "duckdb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each in turn: what a test claims, it claims of both."""
    if request.param == "spark":
        from pipeline.spark_engine import SparkEngine

        yield SparkEngine(request.getfixturevalue("spark"))
    else:
        from pipeline.embedded.engine import DuckEngine

        yield DuckEngine()


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, engine: Engine) -> Callable[[Path], Files]:
    """The files of an archive in a directory, as this engine writes them."""
    from pipeline.embedded.archive import LocalFiles
    from pipeline.embedded.engine import DuckEngine

    def files_in(directory: Path) -> Files:
        if isinstance(engine, DuckEngine):
            return LocalFiles(engine, str(directory))
        from pipeline.archive.spark import SparkFiles

        return SparkFiles(request.getfixturevalue("spark"), str(directory))

    return files_in


@pytest.fixture(scope="module")
def working(engine: Engine) -> Iterator[Engine]:
    """An engine, its words in use."""
    with engine.working():
        yield engine


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
