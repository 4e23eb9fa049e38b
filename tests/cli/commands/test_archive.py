"""`brucectl archive`: what it says, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands.archive import _show
from pipeline.archive.iceberg import TABLE
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


def in_catalog(environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    """`brucectl archive` in a process of its own: pyiceberg reads its configuration once."""
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "archive", *words]
    done = subprocess.run(
        program, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_a_table(spool: SpoolFixture, tmp_path: Path) -> None:
    """In a directory with its catalog, or in a catalog of pyiceberg's configuration; else one sentence."""
    path, lake = str(spool.options.directory), tmp_path / "lake"
    code, out, err = run("archive", path, "--to", str(lake), "--table", "iceberg")
    assert (code, err) == (0, "")
    assert f"100 new messages of 2 topics went into 2 files of file://{lake}/bruce/messages." in out
    prod = {
        "PYICEBERG_CATALOG__PROD__TYPE": "sql",
        "PYICEBERG_CATALOG__PROD__URI": f"sqlite:///{lake}/catalog.db",
    }
    named = ("--table", "iceberg", "--catalog", "prod")
    # The catalog's own name is in its rows: this one is another's, with an archive of its own.
    for messages in (100, 0):
        warehouse = {"PYICEBERG_CATALOG__PROD__WAREHOUSE": str(lake / "prod")}
        code, out, err = in_catalog({**prod, **warehouse}, path, "--to", TABLE, *named)
        assert (code, err) == (0, "")
        assert f"{messages} new messages" in out
    code, out, err = in_catalog(prod, path, "--to", "messages", *named)
    assert (code, out, err) == (
        4,
        "",
        "'messages' is no name of a table: it takes NAMESPACE.TABLE, as bruce.messages\n",
    )
    code, out, err = in_catalog({}, path, "--to", TABLE, *named)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "the catalog prod cannot be used" in err
    code, out, err = run("archive", path, "--to", str(lake), "--catalog", "prod")
    assert (code, err) == (2, "--catalog is for --table iceberg\n")


def test_one_kind_of_archive_a_folder(spool: SpoolFixture, tmp_path: Path) -> None:
    """A query reads either kind; a job of the other kind is refused, and touches nothing."""
    path, lake, plain = str(spool.options.directory), str(tmp_path / "lake"), str(tmp_path / "plain")
    assert run("archive", path, "--to", lake, "--table", "iceberg")[0] == 0
    assert run("archive", path, "--to", plain)[0] == 0
    question = "SELECT count(*) n, count(DISTINCT sequence) d, min(topic) t, max(date) IS NULL u FROM archive"
    said = {run("query", question, path, "--archive", place, "--form", "csv") for place in (lake, plain)}
    ((code, out, err),) = said
    assert (code, out.splitlines()[1].split(",")[:2], err) == (0, ["100", "100"], "")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run("archive", path, "--to", lake)
    assert (code, err) == (
        2,
        f"{lake} is an Iceberg table: go on with --table iceberg, or give another folder\n",
    )
    code, _, err = run("archive", path, "--to", plain, "--table", "iceberg")
    assert (code, err.count("\n"), "holds an archive of plain Parquet files" in err) == (4, 1, True)
    assert sorted(tmp_path.rglob("*")) == before


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
