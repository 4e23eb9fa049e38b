"""`brucectl spark stats`: what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spool.format.wire import encode
from tests.pipeline.test_stats import store
from tests.spark import Done
from tests.spool.fixture import SpoolFixture

pytestmark = pytest.mark.spark


def test_command(job: Callable[..., Done], spool: SpoolFixture) -> None:
    """`brucectl spark stats --json` has the figures, and what was discarded at intake, by reason."""
    store(spool, 0, 3)
    spool.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    spool.step()
    spool.crash()
    done = job("stats", spool.options.directory, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["total"]["messages"] == 4
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == [("", 5)]
    assert [(row["reason"], row["messages"]) for row in found["discard_hours"]] == [
        (found["discards"][0]["reason"], 5)
    ]
