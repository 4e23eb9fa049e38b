"""What the tests of the spool share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.spool.rig import Rig

# No example may be called slow: the machine may have other work.
settings.register_profile("bruce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bruce")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A fresh spool with segments of 8 KiB."""
    made = Rig(tmp_path)
    yield made
    made.crash()
