"""`brucectl spark audit`: its report, its exit code, and a host without Java."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.pipeline.test_audit_job import Delivery
from tests.spool.fixture import SpoolFixture

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]


@pytest.mark.long
@pytest.mark.spark
def test_command(kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path) -> None:
    """`brucectl spark audit` runs from any folder, writes nothing but its report, and exits 1 for a loss."""
    Delivery(spool, kafka, 50).send(*range(49))
    spool.crash()
    command = ["spark", "audit", str(spool.options.directory), "--conf", "spark.sql.shuffle.partitions=2"]
    done = subprocess.run(
        [*BRUCECTL, *command, "--json", "--bootstrap-servers", kafka.bootstrap_servers],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert (report["version"], report["sound"], report["total"]["lost"]) == (1, False, 1)


@pytest.mark.spark
def test_command_without_java(spool: SpoolFixture, tmp_path: Path) -> None:
    """Without Java the command says so in one sentence and exits 2."""
    done = subprocess.run(
        [*BRUCECTL, "spark", "audit", str(spool.options.directory), "--bootstrap-servers", "127.0.0.1:1"],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "there is no Java on the PATH: Spark needs Java 17 or newer\n"
