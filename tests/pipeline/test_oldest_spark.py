"""The tests marked `oldest_spark`, run on the oldest PySpark that is supported, installed for that.

It is fetched once, into .cache (434 MB). Without an index to fetch it from the test is skipped; on CI (the
variable CI is set) it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.daemon import ROOT

RELEASE = "4.0.5"
KEPT = ROOT / ".cache" / "pyspark" / RELEASE
INSTALL_S, TESTS_S = 800, 1100
MARK = "pytest.mark.oldest_spark"
FILES = [str(path) for path in sorted(Path(__file__).parent.rglob("test_*.py")) if MARK in path.read_text()]
"""Others may import what that PySpark does not have."""
PYTEST = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider"]
# This PySpark leaves it to the collector to close its sockets.
QUIETLY = ["-W", "ignore::ResourceWarning"]


@pytest.fixture(scope="module")
def oldest(requirements: None) -> Path:
    """A directory with that PySpark and nothing else."""
    if not KEPT.exists():
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT.parent) as directory:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            done = subprocess.run(
                [*install, "--target", f"{directory}/new", f"pyspark=={RELEASE}"],
                env={**os.environ, "TMPDIR": directory},
                capture_output=True,
                text=True,
                check=False,
                timeout=INSTALL_S,
            )
            if done.returncode:
                refuse = pytest.fail if os.environ.get("CI") else pytest.skip
                refuse(f"pyspark {RELEASE} cannot be installed: {done.stderr.strip()}")
            os.rename(f"{directory}/new", KEPT)
    return KEPT


def environment(oldest: Path) -> dict[str, str]:
    """The environment of a process whose PySpark is the oldest one."""
    ours = ("PYTEST_", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(oldest)}


@pytest.mark.long
def test_the_oldest_can_be_installed(oldest: Path) -> None:
    """By pip, beside the PySpark of the environment: a process that has it on its path imports that one."""
    ask = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    done = subprocess.run(
        ask, env=environment(oldest), capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == RELEASE


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(TESTS_S + 50)
def test_what_holds_on_the_oldest_pyspark(oldest: Path) -> None:
    """Each test marked so passes there: none is skipped, and none was run on another PySpark."""
    done = subprocess.run(
        [*PYTEST, *QUIETLY, "-m", "oldest_spark", *FILES],
        cwd=ROOT,
        env={**environment(oldest), "BRUCE_OLDEST_SPARK": RELEASE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TESTS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert "passed" in summary, done.stdout
    assert "skipped" not in summary, done.stdout


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_this_is_the_oldest_where_it_is_meant_to_be(requirements: None) -> None:
    """In the process that the test above starts PySpark is the one that was installed."""
    import pyspark

    from pipeline.spark_release import lacks, pyspark_here

    assert pyspark.__version__ == os.environ.get("BRUCE_OLDEST_SPARK", pyspark.__version__)
    assert pyspark_here() == (True, "; ".join([f"pyspark {pyspark.__version__}", *lacks()]))
