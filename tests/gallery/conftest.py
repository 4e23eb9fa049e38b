"""The good spool, once for all tests of the gallery."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gallery.good import Good, make_good


@pytest.fixture(scope="session")
def good() -> Iterator[Good]:
    """The good spool, on tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-gallery-") as name:
        yield make_good(Path(name) / "good")


@pytest.fixture
def home(good: Good) -> Iterator[Path]:
    """A directory for copies."""
    with tempfile.TemporaryDirectory(dir=good.directory.parent) as name:
        yield Path(name) / "copy"
