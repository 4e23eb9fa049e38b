"""`brucectl doctor`: what each check finds, and packages of others that are called like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from cli import doctor
from cli.clashes import HOME, PACKAGES, find_clashes
from cli.doctor import Check, check_owners, check_path
from tests.cli.program import run

PYPROJECT = tomllib.loads(Path(HOME, "pyproject.toml").read_text(encoding="utf-8"))


def test_our_packages_are_those_of_the_wheel() -> None:
    """The names that are looked for are what pyproject.toml puts into the wheel."""
    assert sorted(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(PACKAGES)


def test_programs_begin_where_clashes_are_refused() -> None:
    """Both console scripts go by cli.start, which imports nothing that could be hidden."""
    assert PYPROJECT["project"]["scripts"] == {"bruce": "cli.start:bruce", "brucectl": "cli.start:brucectl"}


def test_a_distribution_with_a_package_of_ours_is_named() -> None:
    """By package and distribution; bruce itself, and packages that are nobody's of ours, are none."""
    ok, sentence = check_owners(
        {"cli": ["bruce-spool", "shellkit"], "status": ["web", "web"], "numpy": ["n"]}
    )
    assert not ok
    assert "cli is of shellkit, too; status is of web, too" in sentence
    assert check_owners({"cli": ["bruce-spool"], "numpy": ["numpy"]}).ok


@pytest.mark.parametrize("kind", ["package", "module"])
def test_another_place_on_the_path_is_named(tmp_path: Path, kind: str) -> None:
    """Before ours it hides, behind ours it is hidden; empty folders, and ours named twice, do not."""
    home, other = str(tmp_path / "home"), tmp_path / "other"
    other.mkdir()
    (tmp_path / "none" / "spool").mkdir(parents=True)
    if kind == "package":
        (other / "router").mkdir()
        (other / "router" / "__init__.py").touch()
    else:
        (other / "router.py").touch()
    clean = [home, str(tmp_path / "none"), os.path.join(home, "..", "home")]
    assert check_path(clean, home).ok
    ok, sentence = check_path([str(other), *clean], home)
    assert (ok, f"router in {other} hides bruce's" in sentence) == (False, True)
    ok, sentence = check_path([*clean, str(other)], home)
    assert (ok, f"router in {other} is hidden by bruce's" in sentence) == (False, True)


@pytest.mark.parametrize("hidden", ["status", "spool"])
def test_a_program_whose_packages_are_hidden_says_so(tmp_path: Path, hidden: str) -> None:
    """Instead of a traceback: one sentence with both places, and exit code 2."""
    (tmp_path / f"{hidden}.py").touch()
    code = f"import sys; sys.path.append({HOME!r}); from cli.start import brucectl; brucectl()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"the package {hidden} in {tmp_path} hides that of bruce, in {HOME}: ")
    assert done.stderr.count("\n") == 1


def test_this_environment_has_no_clash() -> None:
    """The one that the tests run in."""
    assert list(find_clashes(sys.path)) == []


@pytest.mark.parametrize(
    ("checks", "code"),
    [([Check(True, "a"), Check(True, "b")], 0), ([Check(True, "a"), Check(False, "b")], 1)],
)
def test_the_command(checks: list[Check], code: int) -> None:
    """A line a check, or one document; exits with 1 when one of them finds something."""
    with mock.patch.object(doctor, "examine", return_value=checks):
        said, document = run("doctor"), run("doctor", "--json")
    assert (said.returncode, document.returncode) == (code, code)
    assert said.stdout == "".join(f"{'ok' if check.ok else 'wrong'}\t{check.sentence}\n" for check in checks)
    assert json.loads(document.stdout) == {
        "version": 1,
        "ok": code == 0,
        "checks": [check._asdict() for check in checks],
    }


def test_without_pyspark_nothing_is_wrong() -> None:
    """A host that runs only the daemon needs neither pyspark nor Java."""
    with mock.patch.object(doctor, "find_spec", return_value=None), mock.patch.dict(os.environ, PATH=""):
        checks = doctor.examine()
    assert all(check.ok for check in checks), checks
    assert "no pyspark" in checks[-1].sentence
