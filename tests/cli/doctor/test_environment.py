"""The environment: packages of others that are called like ours, and Spark."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from cli.clashes import HOME, PACKAGES, find_clashes
from cli.doctor import environment
from cli.doctor.environment import check_loops, check_owners, check_path
from cli.doctor.finding import Level

PYPROJECT = tomllib.loads(Path(HOME, "pyproject.toml").read_text(encoding="utf-8"))


def test_our_packages_are_those_of_the_wheel() -> None:
    """The names that are looked for are what pyproject.toml puts into the wheel."""
    assert sorted(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(PACKAGES)


def test_programs_begin_where_clashes_are_refused() -> None:
    """Both console scripts go by cli.start, which imports nothing that could be hidden."""
    assert PYPROJECT["project"]["scripts"] == {"bruce": "cli.start:bruce", "brucectl": "cli.start:brucectl"}


def test_a_distribution_with_a_package_of_ours_is_named() -> None:
    """By package and distribution; bruce itself, and packages that are nobody's of ours, are none."""
    found = check_owners({"cli": ["bruce-spool", "shellkit"], "status": ["web", "web"], "numpy": ["n"]})
    assert found.level is Level.PROBLEM
    assert "cli is of shellkit, too; status is of web, too" in found.sentence
    assert check_owners({"cli": ["bruce-spool"], "numpy": ["numpy"]}).level is Level.OK


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
    assert check_path(clean, home).level is Level.OK
    found = check_path([str(other), *clean], home)
    assert (found.level, f"router in {other} hides bruce's" in found.sentence) == (Level.PROBLEM, True)
    found = check_path([*clean, str(other)], home)
    assert (found.level, f"router in {other} is hidden by bruce's" in found.sentence) == (Level.PROBLEM, True)


def test_loops_that_are_not_kept_are_advised_about() -> None:
    """By the first of their files."""
    found = check_loops(["/opt/bruce/spool/scan.py", "/opt/bruce/spool/frame.py"])
    assert (found.level, "beside /opt/bruce/spool/scan.py" in found.sentence) == (Level.ADVICE, True)
    assert check_loops([]).level is Level.OK


def test_this_environment_has_no_clash() -> None:
    """The one that the tests run in."""
    assert list(find_clashes(sys.path)) == []


def test_without_pyspark_nothing_is_wrong() -> None:
    """A host that runs only the daemon needs neither pyspark nor Java."""
    with mock.patch.object(environment, "find_spec", return_value=None), mock.patch.dict(os.environ, PATH=""):
        found = list(environment.look())
    assert {one.level for one in found} == {Level.OK}, found
    assert "no pyspark" in found[-1].sentence
