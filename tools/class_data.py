"""Archives of the classes that Spark and Kafka load (Java's class data sharing).

    python -m tools.class_data      makes the missing ones; the tests use them if they exist

A JVM that maps one need not read, check and link the classes again, which is most of the start of a session
on Spark. Files: .cache/class_data/spark-DIGEST.jsa, kafka-DIGEST.jsa; the digest is of the Java and of the
jars. Java itself checks whether an archive fits, and goes on without one that does not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from confluent_kafka import Consumer, Producer

from tools.kafka_cluster import KafkaCluster
from tools.kafka_install import KafkaMissing, fetch_jars, jars_directory
from tools.waiting import end_by_sigterm, wait_until

DIRECTORY = Path(__file__).resolve().parent.parent / ".cache/class_data"
FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that live for seconds: optimising compilation and parallel collection cost more than they save."""
PATIENCE_S = 900.0

_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""Keeps warnings about an archive that does not fit out of the JVM's output."""
_JOB = """
import sys
from pipeline.session import open_session

with open_session("local[2]") as session:
    rows = session.range(1000).selectExpr("id", "cast(id as string) text", "id % 7 part")
    sorted_ = rows.repartition("part").sortWithinPartitions("id").mapInArrow(lambda found: found, rows.schema)
    sorted_.write.partitionBy("part").parquet(sys.argv[1])
    session.read.parquet(sys.argv[1]).createOrReplaceTempView("rows")
    session.sql("select part, min(text) from rows where id > 3 group by part order by part").collect()
"""


def frugal_environ() -> dict[str, str]:
    """Variables that make Spark's drivers and our brokers start fastest, with the existing archives."""
    return {
        "SPARK_SUBMIT_OPTS": spark_options(),
        "SPARK_LAUNCHER_OPTS": FRUGAL,
        "KAFKA_JVM_PERFORMANCE_OPTS": _options(kafka_archive()),
    }


def spark_options() -> str:
    """For any JVM of Spark."""
    return _options(spark_archive())


def spark_archive() -> Path | None:
    """The path of the archive of Spark's classes; None without PySpark or Java."""
    found = importlib.util.find_spec("pyspark")
    java = shutil.which("java", path=_java_path())
    if not java or not found or not found.submodule_search_locations:
        return None
    return _archive("spark", java, Path(found.submodule_search_locations[0]) / "jars")


def kafka_archive() -> Path | None:
    """The path of the archive of Kafka's classes; None without jars or Java."""
    java, jars = shutil.which("java"), jars_directory()
    return _archive("kafka", java, jars) if java and jars else None


def _java_path() -> str | None:
    """The path at which Spark looks for Java; None: on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin") if home else None


def _archive(name: str, java: str, jars: Path) -> Path:
    files = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    known = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return DIRECTORY / f"{name}-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa"


def _options(archive: Path | None) -> str:
    there = archive is not None and archive.exists()
    return f"{FRUGAL} -XX:SharedArchiveFile={archive} {_SILENT}" if there else FRUGAL


@contextmanager
def _made(archive: Path) -> Iterator[str]:
    """The option by which a JVM writes the archive at its end; moves it into place if all went well."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        fresh = Path(name) / "fresh.jsa"
        yield f"{FRUGAL} -XX:ArchiveClassesAtExit={fresh} {_SILENT}"
        for old in archive.parent.glob(f"{archive.name.partition('-')[0]}-*.jsa"):
            old.unlink()
        fresh.rename(archive)


def make_spark(archive: Path) -> None:
    """Run a job with a bit of everything."""
    with _made(archive) as options, tempfile.TemporaryDirectory() as name:
        subprocess.run(
            [sys.executable, "-c", _JOB, f"{name}/rows"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LAUNCHER_OPTS": FRUGAL},
            cwd=DIRECTORY.parent.parent,
            check=True,
            timeout=PATIENCE_S,
        )


def make_kafka(archive: Path) -> None:
    """Run a broker with a producer, in a transaction, and a consumer."""
    with _made(archive) as options, tempfile.TemporaryDirectory() as name:
        cluster = KafkaCluster(Path(name), 1)
        with mock.patch.dict(os.environ, {"KAFKA_JVM_PERFORMANCE_OPTS": options}):
            cluster.up()
        (broker,) = cluster.brokers
        try:
            _exchange(cluster.bootstrap)
            broker.send(signal.SIGTERM)
            wait_until(lambda: broker.pid is None, PATIENCE_S, "the broker to write its archive")
        finally:
            cluster.down()


def _exchange(servers: str) -> None:
    """Produce and consume one record."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "one"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"v")
    producer.commit_transaction(PATIENCE_S)
    reader = {"bootstrap.servers": servers, "group.id": "one", "auto.offset.reset": "earliest"}
    consumer, end = Consumer(reader), time.monotonic() + PATIENCE_S
    consumer.subscribe(["t"])
    while consumer.poll(1.0) is None and time.monotonic() < end:
        pass
    consumer.commit()
    consumer.close()


def main() -> None:
    """Make the missing archives."""
    end_by_sigterm()
    try:
        fetch_jars()
    except KafkaMissing as error:
        print(error)
    for archive, make in ((spark_archive(), make_spark), (kafka_archive(), make_kafka)):
        if archive is not None and not archive.exists():
            make(archive)


if __name__ == "__main__":
    main()
