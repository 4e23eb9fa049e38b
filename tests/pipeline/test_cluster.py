"""Executors in processes of their own, one of which dies in the middle of a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spool.wire import encode
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow]

JOB = """
import os, signal, sys
import psutil
from pipeline.archiving import run_archive
from pipeline.progress import watch
from pipeline.session import open_session

killed = []

def is_executor(process):
    try:
        return any("ExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False  # it has ended meanwhile, or is a zombie

def kill_one(done, of):
    if killed or not 3 <= done < of:
        return
    executors = list(filter(is_executor, psutil.Process().children(recursive=True)))
    assert len(executors) == 2, executors
    os.kill(executors[0].pid, signal.SIGKILL)
    killed.append((done, of))

with open_session("local-cluster[2,1,1024]") as session:
    with watch(session, kill_one):
        report = run_archive(session, [sys.argv[1]], sys.argv[2])
assert killed, "the job was over before anybody was killed"
print(report.messages, report.unreadable)
"""


def test_an_executor_dies_in_the_middle(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """Two executors, one killed by SIGKILL with tasks done and tasks to do: each message is archived once."""
    from pipeline.archive_files import read_archive

    count = 6000
    for first in range(0, count, 50):
        rig.append([encode(b"t", b"%d" % i + bytes(90)) for i in range(first, first + 50)])
    rig.step()
    assert len(rig.layout.list_segments()) > 50
    target = tmp_path / "archive"
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(rig.options.directory), str(target)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, f"{count} 0\n"), done.stderr
    rows = read_archive(spark, str(target)).select("sequence").collect()
    assert sorted(row.sequence for row in rows) == list(range(count))


def test_spark_submit(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """`spark-submit` runs a command of `brucectl spark` with its own settings, and hands on the exit code."""
    import cli.spark_submit

    rig.append([encode(b"t", b"v") for _ in range(10)])
    rig.step()
    submit = Path(sys.executable).with_name("spark-submit")
    conf = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.ui.enabled=false"]
    sql = "SELECT current_timezone() AS zone, count(*) AS n FROM spool"
    query = ["query", sql, str(rig.options.directory), "--form", "json"]
    done = subprocess.run(
        [submit, "--master", "local[1]", *conf, cli.spark_submit.__file__, *query],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={"PATH": f"{submit.parent}:/usr/bin:/bin", "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"zone": "Asia/Tokyo", "n": 10}
