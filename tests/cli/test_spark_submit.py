"""The file that `spark-submit` starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spool.format.wire import encode
from tests.pipeline.conftest import spool
from tests.spool.fixture import SpoolFixture

__all__ = ["spool"]

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.long]


def test_spark_submit(requirements: None, spool: SpoolFixture, tmp_path: Path) -> None:
    """`spark-submit` runs a command of `brucectl spark` with its own settings, and hands on the exit code."""
    import cli.spark_submit

    spool.append([encode(b"t", b"v") for _ in range(10)])
    spool.step()
    submit = Path(sys.executable).with_name("spark-submit")
    conf = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.ui.enabled=false"]
    sql = "SELECT current_timezone() AS zone, count(*) AS n FROM spool"
    query = ["query", sql, str(spool.options.directory), "--form", "json"]
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
