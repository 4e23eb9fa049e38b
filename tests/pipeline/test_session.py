"""The session of a job: its settings, what it shows, and what it says when it cannot start."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.class_archive import check_mapped
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture
from tools.class_data import spark_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
GIB = 1 << 30


def test_the_heap_suits_the_host() -> None:
    """A quarter of the memory, within bounds, so that a small host keeps its daemon."""
    pytest.importorskip("pyspark")
    from pipeline.session import heap_mib

    assert [heap_mib(gib * GIB) for gib in (1, 8, 256)] == [768, 2048, 4096]


def test_another_python_brings_its_own_packages() -> None:
    """Executors find ours where the driver has them; with an environment of their own nothing hides its."""
    pytest.importorskip("pyspark")
    from pipeline.session import _configuration

    assert _configuration("spark://x:1", {}).get("spark.executorEnv.PYTHONPATH", "").split(":")[0] == str(
        ROOT
    )
    packed = _configuration("spark://x:1", {"spark.pyspark.python": "./bruce/bin/python"})
    assert packed.get("spark.executorEnv.PYTHONPATH") is None


def test_a_users_java_options_come_beside_ours() -> None:
    """With options of the user's own, Spark's log is still where bruce looks for the reason of a failure."""
    pytest.importorskip("pyspark")
    from pipeline.session import _configuration

    made = _configuration("local[1]", {"spark.driver.extraJavaOptions": "-Dany=thing"})
    assert made.get("spark.driver.extraJavaOptions") == "-Dany=thing"
    assert "log4j2.properties" in (made.get("spark.driver.defaultJavaOptions") or "")


@pytest.mark.spark
def test_arrow_is_read_without_a_check_at_each_value(spark: SparkSession) -> None:
    """Arrow in the session's JVM looks at no bounds and no nulls again; executors get the same options."""
    arrow = spark._jvm.org.apache.arrow  # type: ignore[union-attr]
    assert arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    assert arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED is False
    conf = spark.sparkContext.getConf()
    ours, executors = (conf.get(f"spark.{who}.defaultJavaOptions", "") for who in ("driver", "executor"))
    assert executors
    assert (ours or "").startswith(executors)


@pytest.mark.spark
def test_all_cores_by_default(spark: SparkSession) -> None:
    """Without a master Spark runs here, on every core, and its page is open to this host only."""
    from pipeline.session import LOCAL

    assert LOCAL == "local[*,4]"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.spark
def test_progress_is_told_to_the_last_task(spark: SparkSession) -> None:
    """While a job runs its tasks are counted, and never more done than known."""
    from pyspark.sql import functions as f

    from pipeline.session import watch

    told: list[tuple[int, int]] = []
    with watch(spark, lambda done, of: told.append((done, of))):
        while not told or told[-1][0] < 4:
            spark.range(0, 40_000_000, 1, 4).agg(f.sum(f.hash("id"))).collect()
    assert all(done <= of for done, of in told)


@pytest.mark.long
@pytest.mark.spark
def test_a_terminal_gets_a_bar_and_the_link(spark: SparkSession) -> None:
    """On a terminal, a narrow one too, Spark's page is named and stays so; tasks are counted, and that goes.

    Spark itself says nothing.
    """
    code = (
        "from urllib.request import urlopen\n"
        "from cli.commands.spark.options import job_session\n"
        "with job_session('local[1]', None) as session:\n"
        "    assert urlopen(session.sparkContext.uiWebUrl).status == 200\n"
        "    session.range(0, 4, 1, 4).repartition(3).collect()\n"
    )
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=child, text=True)
    os.close(child)
    seen = b""
    while piece := _read(parent):
        seen += piece
    os.close(parent)
    assert process.communicate(timeout=120) == ("", None)
    assert process.returncode == 0, seen
    page, bar = seen.split(b"\n", 1)
    assert re.fullmatch(rb"Spark's own page, while this runs: http://127\.0\.0\.1:\d+\r", page), seen
    # The counts are of all stages, or of those that had begun at the last look.
    assert re.search(rb" of [47] tasks", bar)
    assert b"tasks/s" not in bar
    # The line of the bar is erased.
    assert bar.endswith(b"\x1b[2K"), seen
    assert b"WARN" not in seen


ENDLESS = "SELECT count(*) FROM range(1000000000000) WHERE id % 7 = hash(id)"
COLLECTED = f"""
import sys, typer
from cli.commands.spark.options import job_session
try:
    with job_session("local[1]", None) as session:
        session.sql({ENDLESS!r}).collect()
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@pytest.mark.long
@pytest.mark.sample(one_of=2)
@pytest.mark.spark
@pytest.mark.parametrize("way", ["rows as they come", "all at once"])
def test_an_interrupt_is_one_sentence(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Control-C in the middle of a job: the bar goes, one sentence stays, and the exit code is 130.

    So it is with all rows asked for at once, where py4j has the main thread.
    """
    query = [*BRUCECTL, "spark", "query", ENDLESS, str(tmp_path), "--master", "local[1]"]
    job = query if way == "rows as they come" else [sys.executable, "-c", COLLECTED]
    seen, code = _interrupted(job, b" tasks")
    assert code == 130, seen
    said = seen.rpartition(b"\x1b[2K")[2].decode().replace("\r", "").strip()
    assert said == "interrupted: the job has not come to its end; the same command may be given again"
    assert b"Traceback" not in seen
    assert seen.count(b"\n") == 3, seen


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "code", "end"),
    [
        ([], 0, "ended: the same command goes on from here"),
        (
            ["--once"],
            130,
            "interrupted: the job has not come to its end; the same command may be given again",
        ),
    ],
)
def test_an_interrupt_of_a_run(
    spark: SparkSession, spool: SpoolFixture, tmp_path: Path, words: list[str], code: int, end: str
) -> None:
    """A run until Control-C says so, and ends well by it; with --once that comes too early."""
    spool.append([encode(b"late", b"1")])
    spool.step()
    spool.crash()
    with EmbeddedKafka(brokers=1) as kafka:
        config = tmp_path / "bruce.toml"
        config.write_text(
            f'kafka."bootstrap.servers" = "{kafka.bootstrap_servers}"\n'
            'kafka."allow.auto.create.topics" = "false"\n'
        )
        run = [*BRUCECTL, "spark", "run", str(spool.options.directory), "--config", str(config), *words]
        seen, ended = _interrupted(run, b"1 left")
        assert ended == code, seen
    # The terminal shows the key that was pressed.
    assert seen.decode().strip().replace("\r", "\n").splitlines()[-1].removeprefix("^C") == end
    assert (b"until Control-C" in seen) == (not words)
    assert b"Traceback" not in seen


def _interrupted(command: Sequence[str], at: bytes) -> tuple[bytes, int]:
    """Run a command on a terminal of 80 columns, press Control-C when it shows `at`: (output, exit code)."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], cwd=ROOT, stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    seen = b""
    while at not in seen and (piece := _read(parent)):
        seen += piece
    os.write(parent, b"\x03")
    while piece := _read(parent):
        seen += piece
    os.close(parent)
    return seen, process.wait()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.spark
def test_a_session_starts_from_the_archive_of_its_classes(spark: SparkSession) -> None:
    """It fits the classes that Spark loads, and Java has taken it."""
    check_mapped(spark.sparkContext._gateway.proc.pid, spark_archive())
