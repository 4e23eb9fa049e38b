"""The archive of Spark's classes: the first session makes it, and later ones start from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.class_data import archive_of, class_data, is_missing, made
from tests.daemon import ROOT

SESSION = """
from pathlib import Path
from pipeline.session import open_session

with open_session("local[1]") as session:
    assert session.range(10).selectExpr("sum(id)").collect()[0][0] == 45
    mapped = Path(f"/proc/{session.sparkContext._gateway.proc.pid}/maps").read_text()
    print(sorted({line.split()[-1] for line in mapped.splitlines() if "/bruce/spark-" in line}))
"""


def session_in(cache: Path) -> list[str]:
    """The archives of a session in a process of its own, which writes nothing else."""
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=ROOT,
        env={**environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: list[str] = eval(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_second_session_starts_from_it(requirements: None, tmp_path: Path) -> None:
    """Java has taken it; a damaged one, and a folder where none can be kept, change nothing."""
    assert session_in(tmp_path) == []
    (archive,) = (tmp_path / "bruce").iterdir()
    assert session_in(tmp_path) == [str(archive)]
    archive.write_bytes(b"no archive" * 1000)
    assert session_in(tmp_path) == []
    (tmp_path / "file").touch()
    assert session_in(tmp_path / "file") == []


def test_other_jars_want_another_archive(tmp_path: Path) -> None:
    """So does one that has changed, and another Java; the one of before is removed."""
    jars = tmp_path / "jars"
    jars.mkdir()
    found = [archive_of("spark", tmp_path, sys.executable, jars)]
    for size in (1, 2):
        (jars / "a.jar").write_bytes(bytes(size))
        found.append(archive_of("spark", tmp_path, sys.executable, jars))
    found.append(archive_of("spark", tmp_path, str(jars / "a.jar"), jars))
    assert len(set(found)) == 4
    for archive in found[:2]:
        with made(archive) as option:
            fresh = Path(option.split()[0].partition("=")[2])
            fresh.write_bytes(b"classes")
        assert [path for path in tmp_path.iterdir() if path != jars] == [archive]
    with made(found[2]):
        """A JVM that is killed writes none."""
    assert [path for path in tmp_path.iterdir() if path != jars] == [found[1]]


def test_who_has_options_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of somebody else is left as it is; without a Java there is none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/theirs.jsa")
    with class_data(tmp_path) as options:
        assert options == ""
    assert not is_missing()
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with class_data(tmp_path) as options:
        assert options == ""
    assert not is_missing()
    assert list(tmp_path.iterdir()) == []
