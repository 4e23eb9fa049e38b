"""Archives of the classes that Spark and Kafka load (Java's class data sharing).

    python -m tools.class_data      makes the missing ones; the tests use them if they exist

A JVM that maps one need not read, check and link the classes again, which is most of the start of a session
on Spark. Files: .cache/class_data/spark-DIGEST.jsa, kafka-DIGEST.jsa; the digest is of the Java and of the
jars. Java itself checks whether an archive fits, and goes on without one that does not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from confluent_kafka import Consumer, Producer

from pipeline.class_data import SILENT, archive_of, made
from pipeline.class_data import spark_archive as spark_archive_in
from tools.kafka_cluster import KafkaCluster
from tools.kafka_install import KafkaMissing, fetch_jars, jars_directory
from tools.waiting import end_by_sigterm, wait_until

DIRECTORY = Path(__file__).resolve().parent.parent / ".cache/class_data"
FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that live for seconds: optimising compilation and parallel collection cost more than they save."""
PATIENCE_S = 900.0

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
    return spark_archive_in(DIRECTORY)


def kafka_archive() -> Path | None:
    """The path of the archive of Kafka's classes; None without jars or Java."""
    java, jars = shutil.which("java"), jars_directory()
    return archive_of("kafka", DIRECTORY, java, jars) if java and jars else None


def _options(archive: Path | None) -> str:
    there = archive is not None and archive.exists()
    return f"{FRUGAL} -XX:SharedArchiveFile={archive} {SILENT}" if there else FRUGAL


def make_spark(archive: Path) -> None:
    """Run a job with a bit of everything."""
    with made(archive) as option, tempfile.TemporaryDirectory() as name:
        options = f"{FRUGAL} {option}"
        subprocess.run(
            [sys.executable, "-c", _JOB, f"{name}/rows"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LAUNCHER_OPTS": FRUGAL},
            cwd=DIRECTORY.parent.parent,
            check=True,
            timeout=PATIENCE_S,
        )


def make_kafka(archive: Path) -> None:
    """Run a broker with a producer, in a transaction, and a consumer."""
    with made(archive) as option, tempfile.TemporaryDirectory() as name:
        options = f"{FRUGAL} {option}"
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
