"""`brucectl spark run` in transactions, on real brokers: killed on its way, each message is in Kafka once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.daemon import RunningBruce, consume
from tests.e2e.test_spark_run import running
from tests.real_kafka.test_exactly_once import PARTITIONS, check_once, create
from tests.real_kafka.test_spark_drain import kill_all
from tests.router.outlet import keyed
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.crash, pytest.mark.long]

EACH = 1500
PATIENCE_S = 600.0
IN_TRANSACTIONS = {"dispatch": {"engine": "spark", "mode": "exactly_once"}}


def test_killed_on_its_way(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """SIGKILL of a task behind its commit, and of one ahead of it; then of the driver and all others.

    Messages committed, and not written down, are not sent again; those in Kafka, and not committed, are. With
    messages that come in meanwhile: at read_committed there is no gap, and no message twice.
    """
    topic = f"once-{uuid.uuid4().hex}".encode()
    create(kafka1, topic)
    points, sent = tmp_path / "points", 0
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=IN_TRANSACTIONS) as bruce:
        bruce.environ["BRUCE_CRASH_POINTS"] = str(points)
        for point in ("task.settled", "transaction.flushed"):
            points.write_text(f"{point}\n")
            sent += bruce.send(keyed(EACH, topic=topic, first=sent))
            with running(bruce) as query:
                bruce.await_true(lambda: not points.read_text() or query.poll() is not None, PATIENCE_S)
                sent += bruce.send(keyed(EACH, topic=topic, first=sent))
                kill_all(query.pid)
            assert points.read_text() == ""
            assert bruce.status().backlog > 0
        with running(bruce):
            bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (sent, 0), PATIENCE_S)
        records = consume(kafka1.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S)
    check_once(records, sent)
