"""Jobs over a fleet of 500 spools: a plan of some hundred conditions would overflow the JVM's stack."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from pipeline.source.plan import find_spools
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPOOLS, EACH = 500, 8
LOST = {(7, 3), (250, 0), (499, 7)}
"""(spool, message)"""


class Fleet(NamedTuple):
    """Spools side by side."""

    glob: str
    uuids: list[bytes]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each with a few messages, and the daemon is gone."""
    # On a disk it would take minutes.
    place = Path("/dev/shm") / tmp_path_factory.mktemp("fleet").name
    shutil.rmtree(place, ignore_errors=True)
    uuids = []
    for number in range(SPOOLS):
        directory = place / f"host{number}"
        directory.mkdir(parents=True)
        spool = SpoolFixture(directory)
        spool.append([encode(b"clicks", b"%d %d" % (number, i), timestamp=1000 + i) for i in range(EACH)])
        spool.step()
        spool.crash()
        uuids.append(spool.identity.spool)
    yield Fleet(str(place / "*/spool"), uuids)
    shutil.rmtree(place)


@pytest.mark.long
@pytest.mark.spark
def test_audit(spark: SparkSession, fleet: Fleet) -> None:
    """Each message of each spool is judged."""
    from pipeline.audit_job import run_audit
    from pipeline.spark_engine import SparkEngine

    with EmbeddedKafka(brokers=1, topics=[("clicks", 2)]) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        producer = Producer({**properties, "linger.ms": 5})
        for number, uuid in enumerate(fleet.uuids):
            for i in {*range(EACH)} - {i for spool, i in LOST if spool == number}:
                stamp = ("bruce-id", uuid + i.to_bytes(8, "big"))
                value = b"%d %d" % (number, i)
                producer.produce("clicks", value, None, number % 2, timestamp=1000 + i, headers=[stamp])
        assert producer.flush(30) == 0
        report = run_audit(SparkEngine(spark), [fleet.glob], properties)
    assert len(report.spools) == SPOOLS
    found = {name: count for name, count in report.total.items() if count}
    stored = SPOOLS * EACH
    assert found == {"stored": stored, "once": stored - len(LOST), "lost": len(LOST)}


def forget(fleet: Fleet) -> None:
    """Nothing is delivered."""
    for layout in find_spools([fleet.glob]):
        shutil.rmtree(layout.delivery, ignore_errors=True)


@pytest.mark.long
@pytest.mark.spark
def test_drain(spark: SparkSession, fleet: Fleet) -> None:
    """All is delivered, and a second time nothing."""
    from pipeline.delivery.drain import run_drain

    forget(fleet)
    with EmbeddedKafka(brokers=1, topics=[("clicks", 2)]) as kafka:
        options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
        for expected in (SPOOLS * EACH, 0):
            sent = run_drain(lambda: spark, [fleet.glob], options, {})
            assert (sent.messages, sent.delivered, sent.left) == (expected, expected, 0)


@pytest.mark.long
@pytest.mark.spark
def test_run(spark: SparkSession, fleet: Fleet) -> None:
    """One streaming query delivers what all of them hold."""
    from pipeline.delivery.run import run_stream

    forget(fleet)
    delivered: list[int] = []
    with EmbeddedKafka(brokers=1, topics=[("clicks", 2)]) as kafka:
        options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
        told = lambda sent: delivered.append(sent.delivered)  # noqa: E731
        run_stream(spark, [fleet.glob], options, {}, told, once=True)
    assert sum(delivered) == SPOOLS * EACH


@pytest.mark.long
@pytest.mark.spark
def test_archive(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """All is archived, and a second time nothing."""
    from pipeline.archive.job import run_archive
    from pipeline.archive.spark import SparkFiles
    from pipeline.spark_engine import SparkEngine

    engine, files = SparkEngine(spark), SparkFiles(spark, str(tmp_path / "lake"))
    first = run_archive(engine, files, [fleet.glob])
    assert (sum(first.topics.values()), first.sound) == (SPOOLS * EACH, True)
    assert not run_archive(engine, files, [fleet.glob]).topics
