"""A Spark session with settings that suit one host, or whatever master is named.

Python workers run this interpreter and find these packages wherever bruce was started: PYSPARK_PYTHON is
this environment's own python (Spark's default is `python3` of the PATH, whose workers die without saying
why), and the folder that holds `spool` and `pipeline` goes in front of their PYTHONPATH.

The JVM writes to a file of its own, from which a failed start is explained: what it says of incubator
modules, native libraries and host names is nothing that a user of bruce can act on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipeline.errors import MissingSpark
from pipeline.kafka_source import KafkaSource
from pipeline.source import BruceSource

LOCAL = "local[2]"
_HERE = Path(__file__).resolve().parent

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOCAL_SETTINGS = {
    # Names of hosts resolve differently from one machine to the next; loopback is always there.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # 200, the default, is for clusters: on two cores most of a small job would be starting tasks.
    "spark.sql.shuffle.partitions": "16",
}


@contextmanager
def open_session(master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that knows the formats `bruce` and `bruce-kafka`; it ends with the context.

    One that is already there is used as it is, and left. Raises MissingSpark when Spark does not start.
    """
    found = SparkSession.getActiveSession()
    session = found or _start(master, settings or {})
    session.dataSource.register(BruceSource)
    session.dataSource.register(KafkaSource)
    try:
        yield session
    finally:
        if found is None:
            _stop(session)


def _start(master: str, settings: Mapping[str, str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    conf = _configuration(master, settings)
    with tempfile.TemporaryFile("w+") as said:
        try:
            gateway = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, OSError) as error:
            raise MissingSpark(f"Spark does not start: {_last_line(said) or error}") from error
    return SparkSession.builder.getOrCreate()


def _stop(session: SparkSession) -> None:
    """End the session and its JVM, so that the next one starts with its own settings."""
    # Spark has no public way to its own process.
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    session.stop()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _configuration(master: str, settings: Mapping[str, str]) -> SparkConf:
    local = _LOCAL_SETTINGS if master.startswith("local") else {}
    path = os.pathsep.join(filter(None, [str(_HERE.parent), os.environ.get("PYTHONPATH")]))
    chosen = {
        "spark.app.name": "bruce",
        "spark.master": master,
        "spark.executorEnv.PYTHONPATH": path,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
        **_SETTINGS,
        **local,
        **settings,
    }
    return SparkConf(loadDefaults=False).setAll(list(chosen.items()))


def _last_line(said: IO[str]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said if line.strip() and not line.startswith("WARNING:")]
    return lines[-1] if lines else ""
