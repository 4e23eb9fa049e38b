"""`brucectl replay` on real brokers: each message once at read_committed, whenever it is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.cli.program import run
from tests.daemon import ROOT, RunningBruce, consume
from tests.real_kafka.test_exactly_once import PARTITIONS, PATIENCE_S, check_once, create
from tests.router.outlet import keyed
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.final]

MESSAGES = 6_000
KILLS = 3


def test_once_through_kills(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """SIGKILLs at any instant of a transaction: no gap, nothing doubled, in order; the copy is complete."""
    source, target = (f"replay-{uuid.uuid4().hex}".encode() for _ in range(2))
    for topic in (source, target):
        create(kafka1, topic)
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "replay"]
    chance = random.Random(5)
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(keyed(MESSAGES, topic=source, first=0))
        bruce.await_status(lambda s: s.delivered == MESSAGES, PATIENCE_S)
        arguments = ["--from", "0", "--to-topic", target.decode(), "--state", tmp_path / "states"]

        def left() -> int:
            done = run("replay", *arguments, "--json", environ=bruce.environ)
            return int(json.loads(done.stdout)["left"])

        for _ in range(KILLS):
            before = left()
            process = subprocess.Popen(
                [*program, *map(str, arguments), "--yes", "--rate", "100"],
                cwd=ROOT,
                env=bruce.environ,
                stderr=subprocess.DEVNULL,
            )
            bruce.await_true(lambda least=before: left() < least, PATIENCE_S)
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
            process.wait()
        assert 0 < left() < MESSAGES
        done = run("replay", *arguments, "--yes", environ=bruce.environ)
        assert done.returncode == 0, done.stderr
        check_once(consume(kafka1.bootstrap, target.decode(), PARTITIONS, MESSAGES, PATIENCE_S), MESSAGES)
