"""What fails where several work is tried again where nothing can disturb it, and no failure is hidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import ROOT
from tests.second_try import MOST, SecondTry

CONFTEST = """
from tests.second_try import SecondTry

def pytest_configure(config):
    config.addinivalue_line("markers", "final: its first verdict stands")
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(SecondTry())
"""
POLLUTED = """
import os, pytest
pytest.polluted = False

def test_before():
    pytest.polluted = True

def test_disturbed():
    assert not pytest.polluted, "somebody was here"
"""


def run(directory: Path, body: str) -> tuple[int, str]:
    """How a run of these tests ends, and what it says."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").touch()
    (directory / "test_some.py").write_text(POLLUTED + body)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "1", "-p", "no:cacheprovider"],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout


def test_who_was_disturbed_passes_alone(tmp_path: Path) -> None:
    """The run passes, and says what failed at first, with its traceback."""
    code, said = run(tmp_path, "")
    assert code == 0, said
    assert "AssertionError: somebody was here" in said
    assert "1 failed, 1 passed" in said
    assert "\n== once more, alone: test_some.py::test_disturbed\n-- passed\n" in said
    assert said.endswith("1 of 1 that failed at first passed alone; they want mending\n")


def test_who_fails_twice_has_failed(tmp_path: Path) -> None:
    """So has the run, whoever else passes alone; and who is skipped then has not passed."""
    broken = """
def test_broken():
    assert False, "always"

def test_skipped():
    assert not pytest.polluted
    pytest.skip("alone")
"""
    code, said = run(tmp_path, broken)
    assert code == 1, said
    assert said.count("\n-- passed") == 1
    assert said.count("\n-- not passed") == 2
    assert said.count("E       AssertionError: always") == 2
    assert said.endswith("1 of 3 that failed at first passed alone; they want mending\n")


def test_of_many_none_is_tried_again(tmp_path: Path) -> None:
    """Something is broken, then."""
    many = f"""
@pytest.mark.parametrize("n", range({MOST}))
def test_many(n):
    assert not pytest.polluted
"""
    code, said = run(tmp_path, many)
    assert code == 1, said
    assert "once more, alone" not in said


def test_who_dies_is_not_tried_again(tmp_path: Path) -> None:
    """Nor is anybody else: the run has failed."""
    code, said = run(tmp_path, "def test_dies():\n    os._exit(1)")
    assert code == 1, said
    assert "once more, alone" not in said


@pytest.mark.parametrize(
    ("said", "keywords", "may"),
    [
        ("assert 1 == 2", {}, True),
        ("Failed: Timeout (>900.0s) from pytest-timeout.", {}, False),
        ("assert 1 == 2", {"final": 1}, False),
        ("AssertionError: waited in vain", {"final": 1}, True),
        ("TookTooLong: waited 60 s in vain for it", {"final": 1}, True),
    ],
)
def test_whose_first_verdict_stands(said: str, keywords: dict[str, int], *, may: bool) -> None:
    """Of who hangs, and of who judges the fate of messages, but for one that waited too long for it."""
    report = pytest.TestReport("a/test_b.py::test_c", ("a", 1, "b"), keywords, "failed", said, "call")
    assert SecondTry()._may(report) == may
