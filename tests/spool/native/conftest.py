"""A library of loops."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spool
from tests.spool.native.tried import LOOPS, SAID, USE, WRITE, file_of, run


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our packages, loops of a test among them, and their library."""
    place = tmp_path_factory.mktemp("package")
    shutil.copytree(
        Path(spool.__file__).parent, place / "spool", ignore=shutil.ignore_patterns("__pycache__")
    )
    (place / "spool" / "tried.py").write_text(LOOPS)
    assert run(place, USE + WRITE) == f"{SAID}{file_of(place)}\n"
    return place
