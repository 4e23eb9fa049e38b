"""Packages of others that hide ours, or are hidden by them."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

from cli.doctor import Level
from cli.doctor.host import (
    check_owners,
    check_path,
)
from cli.terminal.clashes import HOME, PACKAGES, find_clashes

PYPROJECT = tomllib.loads(Path(HOME, "pyproject.toml").read_text(encoding="utf-8"))


def test_our_packages_are_those_of_the_wheel() -> None:
    """Doctor looks for the names that pyproject.toml puts into the wheel."""
    assert sorted(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(PACKAGES)


def test_a_distribution_with_a_package_of_ours_is_named() -> None:
    """By package and distribution; bruce itself, and packages with other names than ours, are not named."""
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


def test_this_environment_has_no_clash() -> None:
    """The environment of the tests has no clash."""
    assert list(find_clashes(sys.path)) == []
