"""`brucectl spark query`: what it writes, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spool.format.wire import encode
from tests.spark import Done
from tests.spool.fixture import SpoolFixture

pytestmark = pytest.mark.spark


def test_query_command(job: Callable[..., Done], spool: SpoolFixture) -> None:
    """`brucectl spark query` writes rows, and nothing else; wrong SQL exits 2."""
    spool.append([encode(b"orders", b"%d" % i) for i in range(3)])
    spool.step()
    sql = "SELECT value, topic FROM spool ORDER BY sequence"
    done = job("query", sql, spool.options.directory, "--form", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"value": str(i), "topic": "orders"} for i in range(3)
    ]
    done = job("query", "SELECT nope FROM spool", spool.options.directory, "--form", "json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
