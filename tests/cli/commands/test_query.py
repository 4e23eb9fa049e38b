"""`brucectl query`: what it writes, and its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil
import pytest

from cli.commands import jobs
from spool.format.wire import encode
from tests.cli.program import run
from tests.spool.fixture import SpoolFixture
from tools.waiting import wait_until


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A spool with three messages."""
    spool = SpoolFixture(tmp_path_factory.mktemp("query"))
    spool.append([encode(b"orders", b"%d" % i, timestamp=1_795_000_000_000) for i in range(3)])
    spool.step()
    spool.crash()
    return str(spool.options.directory)


def test_rows(path: str) -> None:
    """They are objects, a table or CSV, and nothing else is written; times say that they are UTC."""
    sql = "SELECT value, topic, created_at, sum(sequence) OVER () AS s FROM spool ORDER BY sequence LIMIT 2"
    code, out, err = run("query", sql, path, "--form", "json")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"value": str(i), "topic": "orders", "created_at": "2026-11-18T11:06:40Z", "s": 3} for i in range(2)
    ]
    assert run("query", "SELECT count(*) AS n FROM spool", path, "--form", "csv")[1] == "n\n3\n"
    assert run("query", "SELECT topic FROM spool LIMIT 1", path)[1] == "orders\n"


def test_wrong_sql(path: str) -> None:
    """One sentence, and exit code 2; 3 for a spool that is not there."""
    code, out, err = run("query", "SELECT nope FROM spool", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'Referenced column "nope" not found' in err
    code, _, err = run("query", "SELECT count(*) FROM spool", f"{path}/nowhere")
    assert (code, err.count("\n")) == (3, 1)
    assert f"{path}/nowhere holds no spool" in err


def test_without_duckdb(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(jobs, "find_spec", lambda name: None if name == "duckdb" else name)
    code, out, err = run("query", "SELECT 1", path)
    assert (code, out) == (2, "")
    assert "duckdb not installed: install bruce with its extra, bruce-spool[query]" in err


def test_an_interrupt(path: str) -> None:
    """Control-C ends a question that would take years."""
    code = "from cli.app import brucectl; brucectl()"
    sql = "SELECT sum(hash(i) % 7) FROM range(1000000000000000) AS r(i)"
    command = [sys.executable, "-c", code, "query", sql, path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # Its imports take less.
        busy = psutil.Process(process.pid)
        wait_until(lambda: busy.cpu_times().user > 8, 120, "it to count")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err.count("\n")) == (130, "", 1)
    assert err.startswith("interrupted: ")
