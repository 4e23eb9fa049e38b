"""`brucectl spark archive`: what it says, and its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.archive.test_job import fill
from tests.spark import Done
from tests.spool.fixture import SpoolFixture

pytestmark = pytest.mark.spark


def test_command(job: Callable[..., Done], spool: SpoolFixture, tmp_path: Path) -> None:
    """`brucectl spark archive` says what it did; a damaged frame is counted, and then it exits 1."""
    fill(spool, 100)
    spool.crash()
    first = min(spool.layout.segments.iterdir())
    with first.open("r+b") as file:
        file.seek(4096 + 200)
        file.write(os.urandom(16))
    done = job("archive", spool.options.directory, "--to", tmp_path / "a", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert report["unreadable"] > 0
    assert report["messages"] + report["unreadable"] == 100
