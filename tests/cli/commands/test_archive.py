"""`brucectl archive`: what it says, and its exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.commands.archive import _show
from pipeline.archive.job import ArchiveReport
from tests.cli.program import run
from tests.pipeline.archive.test_job import fill
from tests.spool.fixture import SpoolFixture


def test_topics_that_are_shown_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is longer than Kafka's is cut; two that are cut to the same are one row, with their sum."""
    topics = {"t" * 300: 2, "t" * 301: 3, "u": 1}
    _show(ArchiveReport("a", topics, files=1, unreadable=0, missed=0, spools={}), as_json=False)
    assert capsys.readouterr().out.splitlines()[:2] == ["t" * 248 + "…\t5", "u\t1"]


@pytest.fixture
def spool(tmp_path: Path) -> SpoolFixture:
    """A spool with 100 messages, and room for 20 a segment or so."""
    made = SpoolFixture(tmp_path)
    fill(made, 100)
    made.crash()
    return made


def test_what_is_new(spool: SpoolFixture, tmp_path: Path) -> None:
    """Once; an address is refused, with the command that takes it."""
    to = ("--to", str(tmp_path / "a"))
    code, out, err = run("archive", str(spool.options.directory), *to)
    assert (code, err) == (0, "")
    assert f"100 new messages of 2 topics went into 2 files of {tmp_path / 'a'}." in out
    code, out, err = run("archive", str(spool.options.directory), *to)
    assert "0 new messages of 0 topics went into 0 files" in out
    code, out, err = run("archive", str(spool.options.directory), "--to", "s3://me:secret@bucket/a")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "brucectl spark archive writes to addresses" in err
    assert "secret" not in err


def test_damage(spool: SpoolFixture, tmp_path: Path) -> None:
    """A damaged frame is counted, and then it exits 1."""
    first = min(spool.layout.segments.iterdir())
    with first.open("r+b") as file:
        file.seek(4096 + 200)
        file.write(os.urandom(16))
    code, out, err = run("archive", str(spool.options.directory), "--to", str(tmp_path / "a"), "--json")
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert report["unreadable"] > 0
    assert report["messages"] + report["unreadable"] == 100
