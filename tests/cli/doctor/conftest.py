"""A directory that every user may look into."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    """On tmpfs: only their user may look into the directories of pytest."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
