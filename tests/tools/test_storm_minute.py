"""The one-minute storm, and a small outage: nothing may be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.kafka_cluster import KafkaMissing, fetch_jars

STORM = Path(__file__).resolve().parents[2] / "tools/storm"


def storm(directory: Path, *arguments: str) -> None:
    """Run it; what it says is the test's output when it finds something."""
    command = [sys.executable, STORM, *arguments, "--dir", directory / "storm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is missing" in done.stdout


@pytest.mark.long
@pytest.mark.crash
def test_nothing_is_missing_after_a_minute_of_storm(tmp_path: Path) -> None:
    """On the embedded Kafka: 16 kills of bruce's processes, a broker down and one frozen."""
    storm(tmp_path, "--minute", "--embedded")


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.real_kafka
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_nothing_is_missing_after_a_minute_of_storm_on_real_kafka(tmp_path: Path, mode: str) -> None:
    """The same on three real brokers: duplicates are explained by kills, and exactly once there is none."""
    try:
        fetch_jars()
    except KafkaMissing as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real Kafka: {error}")
    storm(tmp_path, "--minute", "--mode", mode)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("form", [[], ["--move-leaders"]], ids=["away", "leaders move"])
def test_nothing_is_missing_after_an_outage(tmp_path: Path, form: list[str]) -> None:
    """Everything is killed while Kafka is away, or while one of its brokers is frozen."""
    storm(tmp_path, "--minute", "--embedded", "--outage", "--messages", "50000", *form)
