"""One Spark session for all tests, and spools to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import MissingSpark
from pipeline.requirements import check_requirements
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores; it is the same for all tests, since it takes seconds to start."""
    try:
        check_requirements()
    except MissingSpark as error:
        pytest.skip(f"no Spark: {error}")
    from pipeline.session import open_session

    with open_session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as session:
        yield session


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A spool with segments of 8 KiB."""
    made = Rig(tmp_path)
    yield made
    made.crash()


@pytest.fixture
def second_rig(tmp_path: Path) -> Iterator[Rig]:
    """Another one."""
    (tmp_path / "second").mkdir()
    made = Rig(tmp_path / "second")
    yield made
    made.crash()
