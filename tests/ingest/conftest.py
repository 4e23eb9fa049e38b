"""The fixtures that the tests of the intake share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.ingest.intake import Intake
from tests.ingest.processes import end_children

settings.register_profile("bruce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bruce")


@pytest.fixture(autouse=True)
def _childless() -> Iterator[None]:
    """No process outlives a test that fails."""
    yield
    end_children()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs for a spool and its staging."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        yield Path(name)


@pytest.fixture
def intake(memory: Path) -> Iterator[Intake]:
    """Socket, staging, spool and worker in this process."""
    made = Intake(memory)
    yield made
    made.close()
