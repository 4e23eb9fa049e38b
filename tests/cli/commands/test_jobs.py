"""Options and checks of the commands over whole spools."""

from __future__ import annotations

import pytest

from cli.commands import jobs
from cli.commands.jobs import demand
from pipeline.errors import MissingEngine
from tests.cli.program import run


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install; the command exits 2 before it looks for a spool."""
    demand("json")
    monkeypatch.setattr(jobs, "find_spec", lambda name: None if name == "sqlframe" else name)
    with pytest.raises(MissingEngine, match=r"^sqlframe not installed: install .* bruce-spool\[query\]"):
        demand("duckdb", "pyarrow", "sqlframe")
    code, out, err = run("audit", "/nowhere", "--bootstrap-servers", "127.0.0.1:1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "sqlframe not installed" in err
