"""A Spark session with settings for one host, or for a given master; and the progress of its jobs.

Python workers run this interpreter and find these packages wherever bruce was started: PYSPARK_PYTHON is
this environment's own python (Spark's default is `python3` of the PATH, whose workers die without saying
why), and the folder that holds `spool` and `pipeline` goes in front of their PYTHONPATH.

The JVM writes to a file of its own, which explains a failed start: its warnings of incubator modules, native
libraries and host names are nothing that a user of bruce can act on.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from pipeline.class_data import class_data
from pipeline.errors import MissingSpark
from pipeline.kafka.source import KafkaSource
from pipeline.source.source import BruceSource

LOCAL = "local[*,4]"
"""Every core; and a task is tried four times, as on a cluster."""
Session = SparkSession
"""The type that commands pass on, since they know no pyspark."""

_NO_REASON = ("WARNING:", "Picked up ", "\t", "...")
"""The beginnings of JVM lines that give no reason: warnings, and the rows of a traceback."""
_THREAD = 'Exception in thread "main"'
_ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds our packages."""
_LOG = Path(__file__).resolve().with_name("log4j2.properties")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The default is a type of its own, which others read as another time, and which has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.daemon.module": "pipeline.worker_daemon",
    # Every row goes through it, and TCP on loopback makes reading take a third longer.
    "spark.python.unix.domain.socket.enabled": "true",
}
_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Options of the JVMs. Without them Arrow checks for each bit and value of a row the bounds of a buffer, and
that it is still held: a sixth of the tasks' time. Batches come from pyarrow in our own workers."""
_LOCAL_SETTINGS = {
    # Host names resolve differently on each machine; loopback always exists.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # 200, the default, is for clusters: on two cores a small job would spend most of its time starting tasks.
    "spark.sql.shuffle.partitions": "16",
}
_LEAST_MIB, _MOST_MIB = 768, 4096
EVERY_S = 0.25
"""Between two checks of a job's progress."""


@contextmanager
def open_session(master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that knows the formats `bruce` and `bruce-kafka`; it ends with the context.

    Uses an existing session unchanged, and leaves it open. Raises MissingSpark when Spark does not start.
    """
    # Each also writes to standard error the errors that it raises: an error in SQL, as JSON, and an
    # interrupted call, of Java or by it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_py4js)
    found = SparkSession.getActiveSession()
    with nullcontext("") if found or not master.startswith("local") else class_data() as options:
        session = found or _start(master, settings or {}, options)
        for source in (BruceSource, KafkaSource):
            _register(session, source)
        try:
            yield session
        finally:
            if found is None:
                _stop(session)


def _register(session: SparkSession, source: type[DataSource]) -> None:
    """Make a format known: a session of spark-submit may look for it with a Python that has no bruce."""
    try:
        session.dataSource.register(source)
    except AnalysisException as error:
        # PySpark 4.0, which has found it by the name of its package.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """A filter for records logged under no name."""
    return Path(record.pathname).parent.name != "py4j"


def _start(master: str, settings: Mapping[str, str], options: str) -> SparkSession:
    """`options`: of the JVM, where it is ours."""
    if _submitted():
        return _join(master, settings)
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        # The address of Spark's web page; else it is open to the network.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = _configuration(master, settings, options)
    with tempfile.TemporaryFile("w+") as said:
        try:
            gateway = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, Py4JJavaError, OSError) as error:
            reason = str(getattr(error, "java_exception", "")) or _first_reason(said) or error
            raise MissingSpark(f"Spark does not start: {reason}") from error
    return SparkSession.builder.getOrCreate()


def _submitted() -> bool:
    """Whether spark-submit started us, and has a JVM for us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _join(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session in the JVM of spark-submit, whose own settings have precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    conf = SparkConf(loadDefaults=True, _jvm=gateway.jvm)
    for key, value in _configuration(master, settings).getAll():
        conf.setIfMissing(key, value)
    SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.getOrCreate()


def _stop(session: SparkSession) -> None:
    """End the session and its JVM, so that the next one starts with its own settings."""
    if _submitted():
        session.stop()
        return
    # Spark has no public way to its own process.
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    # The JVM may be gone; whoever used it last has said so.
    with suppress(Py4JError, OSError):
        session.stop()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _configuration(master: str, settings: Mapping[str, str], options: str = "") -> SparkConf:
    local: Mapping[str, str] = {}
    if master.startswith("local"):
        local = {**_LOCAL_SETTINGS, "spark.driver.memory": f"{heap_mib(memory_bytes())}m"}
    executors: Mapping[str, str] = {}
    if "spark.pyspark.python" not in settings:
        # Workers on our Python find our packages here. Another Python brings its own.
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        executors = {"spark.executorEnv.PYTHONPATH": path}
    chosen = {
        "spark.app.name": "bruce",
        "spark.master": master,
        "spark.driver.defaultJavaOptions": f"{_UNCHECKED} -Dlog4j2.configurationFile={_LOG} {options}",
        "spark.executor.defaultJavaOptions": _UNCHECKED,
        **_SETTINGS,
        **executors,
        **local,
        **settings,
    }
    return SparkConf(loadDefaults=False).setAll(list(chosen.items()))


def heap_mib(host_bytes: int) -> int:
    """The JVM's heap on a host with this much memory: a quarter, since Python workers need the rest."""
    return min(max(host_bytes // 4 >> 20, _LEAST_MIB), _MOST_MIB)


def memory_bytes() -> int:
    """The memory of this host, or the limit of our control group."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return host
    return min(host, int(limit)) if limit.isdigit() else host


def _first_reason(said: IO[str]) -> str:
    """The reason that a JVM gives before it ends, without the lines that follow from it."""
    said.seek(0)
    lines = [line.strip().removeprefix(_THREAD).strip() for line in said if not line.startswith(_NO_REASON)]
    return next(filter(None, lines), "")


@contextmanager
def watch(session: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Call `tell` with tasks done and tasks known, of all jobs so far, from a thread, until the context ends.

    More tasks become known as Spark goes on from one stage to the next.
    """
    ended = Event()
    thread = Thread(target=_look, args=(session, tell, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look(session: SparkSession, tell: Callable[[int, int], None], ended: Event) -> None:
    # Spark's store keeps a thousand finished stages: this remembers the counts of all.
    seen: dict[int, tuple[int, int]] = {}
    tracker = session.sparkContext.statusTracker()
    while not ended.wait(EVERY_S):
        try:
            running = set(tracker.getActiveStageIds())
            for stage in running | {stage for stage, (done, of) in seen.items() if done < of}:
                if info := tracker.getStageInfo(stage):
                    seen[stage] = (info.numCompletedTasks, info.numTasks)
        except (Py4JError, OSError):
            return  # the JVM is gone; the job itself will report it
        if seen:
            tell(sum(done for done, _ in seen.values()), sum(of for _, of in seen.values()))
