"""Fixtures that the tests of the spool share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.spool.fixture import SpoolFixture

# Without a limit of time for an example: the machine may have other work.
settings.register_profile("bruce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bruce")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs: its tests do not depend on how long a sync takes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        yield Path(name)


@pytest.fixture
def spool(memory: Path) -> Iterator[SpoolFixture]:
    """A fresh spool with segments of 8 KiB."""
    made = SpoolFixture(memory)
    yield made
    made.crash()
