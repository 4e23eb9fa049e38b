"""The systemd units: as systemd itself judges them, without a systemd that runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.debian import INSTALL

UNITS = INSTALL / "systemd"
MOST_EXPOSED = 2.0


@pytest.fixture(autouse=True)
def _systemd() -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a program and pages that are there on this host."""
    for path in UNITS.glob("bruce.*"):
        text = path.read_text().replace("/usr/bin/bruce", "/bin/true")
        (tmp_path / path.name).write_text(re.sub("^Documentation=.*\n", "", text, flags=re.MULTILINE))
    return tmp_path


def test_the_units_are_right(units: Path) -> None:
    """No key that systemd does not know, no value that it would ignore, no unit that is not there."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units.glob("bruce.*")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_little_exposed(units: Path) -> None:
    """The measure is the sum that `systemd-analyze security` makes of what the service could still do."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", units / "bruce.service"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = re.search(r"Overall exposure level for bruce.service: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < MOST_EXPOSED
