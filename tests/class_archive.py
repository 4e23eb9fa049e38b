"""Whether a JVM has been started from the archive of its classes (`tools.class_data`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def check_mapped(pid: int, archive: Path | None) -> None:
    """A process has the archive in its memory; `tools/test` always makes it before the tests begin."""
    assert archive is not None
    if not archive.exists():
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse("there is no archive of classes; python -m tools.class_data makes it")
    assert f"{archive}\n" in Path(f"/proc/{pid}/maps").read_text()
