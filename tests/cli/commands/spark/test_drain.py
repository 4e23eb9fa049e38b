"""`brucectl spark drain`: what it says, and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.pipeline.delivery.test_drain import fill
from tests.spool.fixture import SpoolFixture

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]


@pytest.mark.long
@pytest.mark.spark
def test_the_command(kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path) -> None:
    """`brucectl spark drain`: a document of what was done, and 1 while something is left."""
    fill(spool, 60)
    config = tmp_path / "bruce.toml"
    config.write_text(f'[kafka]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n')
    command = [*BRUCECTL, "spark", "drain", str(spool.options.directory), "--config", str(config)]
    kafka.down(-1)
    short = subprocess.run(
        [*command, "--timeout", "1"], capture_output=True, text=True, check=False, timeout=300
    )
    assert short.returncode == 3, short.stderr
    kafka.up(-1)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["messages"], found["delivered"], found["left"]) == (60, 60, 0)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert again.stdout.startswith("drained: 0 of 0 messages delivered")
