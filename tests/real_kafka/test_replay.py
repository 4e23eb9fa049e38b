"""`brucectl replay` on real brokers: each message once at read_committed, wherever it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cli.program import run
from tests.daemon import ROOT, RunningBruce, consume
from tests.real_kafka.test_exactly_once import PARTITIONS, PATIENCE_S, check_once, create
from tests.router.outlet import keyed
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

MESSAGES = 2_000
POINTS = ("mark.acknowledged", "mark.written", "mark.acknowledged", "mark.committed")
"""A transaction is in Kafka, and the marks do not have it, or not surely, or they do."""


def test_once_through_kills(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """SIGKILL right behind a transaction, again and again: no gap, nothing doubled, all in order."""
    source, target = (f"replay-{uuid.uuid4().hex}".encode() for _ in range(2))
    for topic in (source, target):
        create(kafka1, topic)
    place = tmp_path / "crash"
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(keyed(MESSAGES, topic=source))
        bruce.await_status(lambda s: s.delivered == MESSAGES, PATIENCE_S)
        arguments = ["replay", "--from", "0", "--to-topic", target.decode(), "--yes"]
        arguments += ["--state", str(tmp_path / "states")]
        for point in POINTS:
            place.write_text(f"{point}\n")
            done = subprocess.run(
                [*program, *arguments, "--rate", "100"],
                cwd=ROOT,
                env={**bruce.environ, "BRUCE_CRASH_POINTS": str(place)},
                capture_output=True,
                check=False,
                timeout=PATIENCE_S,
            )
            assert done.returncode == -signal.SIGKILL, done.stderr
        done_at_last = run(*arguments, environ=bruce.environ)
        assert done_at_last.returncode == 0, done_at_last.stderr
        check_once(consume(kafka1.bootstrap, target.decode(), PARTITIONS, MESSAGES, PATIENCE_S), MESSAGES)
