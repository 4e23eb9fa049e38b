"""Tests that a run leaves out are counted, and a test that is known to flake is red when it fails."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import ROOT

CONFTEST = """
from tests.conftest import *

def pytest_configure(config):
    for name in ("long", "flaky", "sample"):
        config.addinivalue_line("markers", name)
"""
SOME = """
import pytest

def test_short():
    pass

@pytest.mark.long
@pytest.mark.parametrize("n", range(3))
def test_long(n):
    pass
"""
SAMPLED = """
import pytest

@pytest.mark.sample("b")
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_named(name):
    print("ran", name)

@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("digit", [1, 2])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_pairs(name, digit):
    print("ran", name, digit)
"""
FLAKY = """
import pytest

@pytest.mark.flaky({})
def test_shaky():
    assert False
"""


def run(directory: Path, body: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a run of these tests by two workers, and what it prints."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").touch()
    (directory / "test_some.py").write_text(body)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_is_left_is_counted(tmp_path: Path) -> None:
    """Once, however many workers there are; a complete run leaves nothing, and says nothing of it."""
    for workers in ("0", "2"):
        code, said = run(tmp_path, SOME, "--numprocesses", workers, "-m", "not long")
        assert code == 0, said
        assert "\nlong tests: 3 left for tools/test --all\n" in said
    code, said = run(tmp_path, SOME, "--numprocesses", "2")
    assert code == 0, said
    assert "4 passed" in said
    assert "long tests" not in said


def test_the_cases_beside_a_sample_are_long(tmp_path: Path) -> None:
    """A sample names cases, or takes one of n in turn: of two parameters each value, with changing others."""
    code, said = run(tmp_path, SAMPLED, "-s", "-m", "not long")
    assert code == 0, said
    assert sorted(re.findall("ran (.*)", said)) == ["a 1", "b", "b 2", "c 1"]
    code, said = run(tmp_path, SAMPLED)
    assert "9 passed" in said
    code, said = run(tmp_path, SAMPLED.replace('sample("b")', 'sample("d")'), "-m", "not long")
    assert (code, "test_named: `sample` names cases that are not there: ['d']" in said) == (4, True), said


def test_a_flaky_test_is_red(tmp_path: Path) -> None:
    """Its reason is printed beside the traceback."""
    (tmp_path / "CONTRIBUTING.md").write_text("- `test_shaky`: the clock jumps\n")
    code, said = run(tmp_path, FLAKY.format("'the clock jumps'"))
    assert code == 1, said
    assert "known to flake" in said
    assert "the clock jumps" in said


def test_a_flaky_test_is_accounted_for(tmp_path: Path) -> None:
    """By a reason, and by a line in CONTRIBUTING.md; at most five may be."""
    (tmp_path / "CONTRIBUTING.md").write_text("nothing\n")
    code, said = run(tmp_path, FLAKY.format("'the clock jumps'"))
    assert (code, "list the test in CONTRIBUTING.md" in said) == (4, True), said
    (tmp_path / "CONTRIBUTING.md").write_text("test_shaky\n")
    code, said = run(tmp_path, FLAKY.format(""))
    assert (code, "give `flaky` a reason" in said) == (4, True), said
    many = "\n".join(FLAKY.format("'x'").replace("shaky", f"shaky_{n}") for n in range(6))
    code, said = run(tmp_path, many)
    assert (code, "6 tests are flaky; at most 5 may be" in said) == (4, True), said


ALLOWED = {
    ("tests/spool/shared/test_runtime.py", "MEMORY"): "a path of the machine",
    ("tests/cli/config/test_config.py", "SYSTEM_FILE"): "a path of the machine",
    ("tests/tools/test_class_data.py", "DIRECTORY"): "a path of the machine",
    ("tests/spool/storage/test_lock.py", "_LOCKS"): "a path of the machine",
    ("tests/spool/storage/test_lock.py", "_FIRST_PIDS"): "a pid namespace of the machine",
    ("tests/dispatch/test_librdkafka.py", "OLDEST"): "the library of the machine is newer",
    ("tests/spool/marks/test_marks.py", "_TABLES"): "an earlier release had fewer",
    ("tests/e2e/zygote.py", "BACKOFF_S"): "of a whole daemon, which takes nothing but its configuration",
    ("tests/e2e/zygote.py", "AFTER_S"): "of a whole daemon, which takes nothing but its configuration",
    ("tests/e2e/zygote.py", "LOOK_S"): "of a whole daemon, which takes nothing but its configuration",
}
"""By file, the constants of the code under test that its tests may set. Each with its reason."""
CONSTANT = re.compile(r"(?:.*\.)?(_?[A-Z][A-Z_0-9]+|__(?:kw)?defaults__)")
FOR_TESTS = {"ARMED"}
"""Failpoints are there to be set."""


def constants_set(source: str) -> set[str]:
    """The constants of other modules, and the defaults of functions, that this source sets."""
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("setattr", "patch", "patch.object")
        ):
            found += [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
    names = {match[1] for name in found if (match := CONSTANT.fullmatch(str(name)))}
    return names - FOR_TESTS


def test_no_test_sets_a_default_of_the_code() -> None:
    """A test hands its own value over as an argument, or works with the real one."""
    found = {
        (str(path.relative_to(ROOT)), constant)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for constant in constants_set(path.read_text())
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "MOST_S", 1)',
        'monkeypatch.setattr("spool.lock._MOST", 1)',
        'mock.patch.object(module, "MOST", 1)',
        'mock.patch("spool.lock.MOST", 1)',
        "web.PATIENCE_S, other = 1, 2",
        "Scan.__init__.__defaults__ = (None, 1)",
        'setattr(Scan.__init__, "__defaults__", (None, 1))',
    ],
)
def test_each_way_to_set_one_is_seen(line: str) -> None:
    """As tests have set them."""
    assert len(constants_set(line)) == 1
    assert constants_set('monkeypatch.setattr(module, "open_it", f); made.path = 1; MOST = 2') == set()
