"""A feature that the installed Spark lacks is one sentence, or done in another way."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from cli import app
from pipeline import spark_release
from pipeline.spark_release import ARROW_FUNCTIONS, FILTERS, OLDEST, READ_LIMITS, has, java_here, lacks
from tests.daemon import ROOT

OF_4_1 = ["pushFilters spares no segment before 4.1"]
OF_4_2 = ["a batch of a stream takes all there is before 4.2"]


@pytest.mark.parametrize(
    ("version", "able", "lacking"),
    [
        ("3.5.9", (), OF_4_1 + OF_4_2),
        ("4.0.5", (OLDEST,), OF_4_1 + OF_4_2),
        ("4.1.4", (OLDEST, FILTERS, ARROW_FUNCTIONS), OF_4_2),
        ("4.2.0.dev1", (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS), []),
        ("10.0.0", (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS), []),
    ],
)
def test_releases_are_told_by_number(
    monkeypatch: pytest.MonkeyPatch, version: str, able: tuple[object, ...], lacking: list[str]
) -> None:
    """Ten is more than four, and the text behind the second number counts for nothing."""
    monkeypatch.setattr(spark_release, "version", lambda: version)
    every = (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS)
    assert [one for one in every if has(one)] == list(able)
    assert lacks() == lacking


def test_what_an_old_one_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Filters are passed over with one sentence; a limit that would not be kept ends with one."""
    pytest.importorskip("pyspark")
    from pipeline.errors import BadOption
    from pipeline.source.schema import SCHEMA
    from pipeline.source.source import BruceSource

    monkeypatch.setattr(spark_release, "version", lambda: "4.0.5")
    monkeypatch.setattr("pipeline.source.source.version", lambda: "4.0.5")
    with pytest.warns(UserWarning, match=r"pushFilters spares nothing here: PySpark 4\.0\.5 tells a source"):
        BruceSource({"path": str(tmp_path), "pushFilters": "true"}).reader(SCHEMA)
    with pytest.raises(
        BadOption, match=r"maxBytesPerTrigger needs PySpark 4\.2 or newer, and this is 4\.0\.5"
    ):
        BruceSource({"path": str(tmp_path), "maxBytesPerTrigger": "1"}).streamReader(SCHEMA)


COMMANDS = {
    "audit": ["/nowhere", "--bootstrap-servers", "127.0.0.1:1"],
    "archive": ["/nowhere", "--to", "/nowhere"],
    "query": ["SELECT 1"],
    "stats": ["/nowhere"],
    "drain": ["/nowhere", "--bootstrap-servers", "127.0.0.1:1"],
    "replay": ["/nowhere", "--from", "0", "--bootstrap-servers", "127.0.0.1:1"],
    "run": ["/nowhere", "--bootstrap-servers", "127.0.0.1:1"],
    "witness": ["/nowhere"],
}
EACH = f"""
import json, sys
sys.path.append({str(ROOT)!r})
sys.modules["pyspark"] = None
from tests.cli.program import run
for name, arguments in json.loads(sys.argv[1]).items():
    print(json.dumps([name, *run("spark", name, *arguments)]))
"""

ON_EXECUTORS = f"""
import os, sys
sys.path = [sys.argv[1], *(path for path in sys.path if os.path.realpath(path) != {str(ROOT)!r})]
import pipeline.delivery.route, pipeline.delivery.sink, pipeline.source.source
import pipeline.kafka.reader, pipeline.kafka.source, pipeline.kafka.writer, pipeline.source.reader
print(os.path.dirname(pipeline.__path__[0]), "lmdb" in sys.modules)
"""


def java(folder: Path, version: str) -> Path:
    """A program in `folder`/bin that says it is this Java, as Java does; `folder`."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho 'Picked up X: -Dy' >&2\necho 'openjdk version \"{version}\" 2018' >&2\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_all_commands_are_asked() -> None:
    """The list above has every command of `brucectl spark`."""
    assert set(typer.main.get_group(app.jobs).commands) == set(COMMANDS)  # type: ignore[attr-defined]


def test_each_command_says_what_is_missing(tmp_path: Path) -> None:
    """In one sentence, with exit code 2, and before anything else that needs Spark."""
    config = tmp_path / "bruce.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[witness]\ndirectory = "/nowhere"\n')
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(COMMANDS)],
        cwd="/",
        env={"PATH": os.environ["PATH"], "BRUCE_CONFIG": str(config)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    sentence = "pyspark is not installed; install bruce with its extra: bruce-spool[spark]\n"
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert ended == [[name, 2, "", sentence] for name in COMMANDS]


def test_the_pyspark_that_would_be_imported_counts(tmp_path: Path) -> None:
    """One in PYTHONPATH, as a Spark installation's own, goes before what pip has installed."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "version.py").write_text('__version__ = "3.5.9"\n')
    code = f"import sys; sys.path.append({str(ROOT)!r})\n"
    code += "from pipeline.spark_release import check_requirements as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stderr.splitlines()[-1] == (
        "pipeline.errors.MissingSpark: pyspark 3.5.9 is too old: this needs 4.0 or newer"
    )


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"PATH": "/nowhere"}, "there is no Java on the PATH: Spark needs Java 17 or newer"),
        (
            {"JAVA_HOME": "/nowhere"},
            "JAVA_HOME is /nowhere, and there is no bin/java: Spark needs Java 17 or newer",
        ),
    ],
)
def test_no_java(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], sentence: str) -> None:
    """Spark starts that of JAVA_HOME, else the one on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert java_here() == (False, sentence)


@pytest.mark.parametrize(
    ("version", "ok"),
    [("1.8.0_412", False), ("16.0.2", False), ("17", True), ("21.0.1", True), ("25-ea", True)],
)
def test_versions_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, ok: bool) -> None:
    """As Java writes them: the first number counts, and before 9 the second."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    found = java_here()
    assert found.ok == ok
    assert version in found.sentence


def test_spark_submit_has_a_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """If spark-submit started us its JVM runs already, wherever it found Java."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert java_here().ok


def test_executors_import_only_what_the_wheel_has(tmp_path: Path) -> None:
    """With nothing of ours but the packages of the wheel their modules are found; LMDB they do without."""
    pytest.importorskip("pyspark")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    for package in build["targets"]["wheel"]["packages"]:
        (tmp_path / package).symlink_to(ROOT / package)
    command = [sys.executable, "-c", ON_EXECUTORS, str(tmp_path)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} False\n"), done.stderr
