"""Spools to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spool.fixture import SpoolFixture


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
