"""`brucectl spark witness` beside real brokers: transactions, a SIGKILL, and an end in order."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.daemon import ROOT
from tests.real_kafka.test_witness import (
    ALTERED,
    DOUBLED,
    LOST,
    MESSAGES,
    PATIENCE_S,
    WITHHELD,
    Scene,
    runs,
)
from tools.fleets.jobs import BRUCECTL
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.long]


class OnSpark(Scene):
    """The witness is Spark's."""

    def start(self) -> None:
        """Start it on two cores."""
        options = ["--late", "1", "--config", str(self.config), "--master", "local[2]"]
        self.witness = subprocess.Popen(
            [*BRUCECTL, "spark", "witness", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        """SIGKILL, if it is there."""
        assert self.witness is not None
        self.witness.send_signal(signal.SIGKILL)
        self.witness.communicate()


@pytest.mark.usefixtures("requirements")
def test_planted_faults_are_found(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """Those of an aborted transaction, whose marker is the last that partitions have, and of the others.

    The positions go over the marker: else nothing would be due. The witness is killed, and counts no record
    twice; SIGTERM ends it without a word.
    """
    scene = OnSpark(kafka3, tmp_path)
    sent = [one for one in range(MESSAGES) if one not in LOST and one not in WITHHELD]
    scene.send(sent)
    aborted = Producer({"bootstrap.servers": kafka3.bootstrap, "transactional.id": f"{scene.topic}-aborted"})
    aborted.init_transactions(PATIENCE_S)
    aborted.begin_transaction()
    scene.send(LOST - {9000}, aborted)
    aborted.abort_transaction(PATIENCE_S)
    scene.start()
    try:
        scene.await_row(lag=0, judged=WITHHELD.start, missing=len(LOST), records=len(sent))
        scene.send(DOUBLED)
        scene.kill()
        scene.send(WITHHELD)
        scene.deliver(MESSAGES)
        scene.start()
        scene.await_row(lag=0, late=0, judged=MESSAGES, missing=len(LOST), altered_blocks=1)
        assert scene.witness is not None
        scene.witness.send_signal(signal.SIGTERM)
        said, _ = scene.witness.communicate(timeout=PATIENCE_S)
        assert (scene.witness.returncode, said) == (0, b"")
    finally:
        scene.kill()
    (tier,) = scene.audit(code=1)["tiers"]
    (row,) = tier["spools"]
    assert row["missing_runs"] == runs(LOST)
    assert row["duplicated_runs"] == runs(DOUBLED)
    assert row["altered"] == sorted(ALTERED)
    assert tier["records"] == len(sent) + len(DOUBLED) + len(WITHHELD)
