"""Behind a job that delivered exactly once and died: what it committed is known, and it commits no more."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import RunningBruce, consume
from tests.real_kafka.lane_task import MESSAGES, PARTITIONS, start
from tests.real_kafka.test_exactly_once import EXACTLY_ONCE, PATIENCE_S, check_once, create
from tests.router.outlet import keyed
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.crash]

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def parts() -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a job; none of them outlives a test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_a_daemon_behind_a_dead_job(
    kafka1: KafkaCluster, tmp_path: Path, parts: list[subprocess.Popen[str]]
) -> None:
    """One task died between commit and outcome file; two live on, and know nothing of the job's end.

    One of these has a transaction open, the other has not begun. A consumer at read_committed sees each
    message once, in order: what the first had committed counts as delivered, the others are refused.
    """
    topic = f"lanes-{uuid.uuid4().hex}"
    create(kafka1, topic.encode())
    with RunningBruce(tmp_path, NOWHERE, settings=EXACTLY_ONCE) as bruce:
        bruce.send(keyed(MESSAGES, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka1.bootstrap}})

        def begin(*words: object) -> subprocess.Popen[str]:
            parts.append(start(bruce.environ, bruce.spool, kafka1.bootstrap, topic, *words))
            return parts[-1]

        driver = begin("driver")
        assert driver.stdout
        epoch = driver.stdout.readline().strip()
        dead, *zombies = [
            begin("task", lane, epoch, w) for lane, w in enumerate(("committed", "open", "before"))
        ]
        assert dead.wait(PATIENCE_S) == -signal.SIGKILL
        for zombie in zombies:
            assert os.WIFSTOPPED(os.waitpid(zombie.pid, os.WUNTRACED)[1])
        driver.kill()
        bruce.start()
        bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (MESSAGES, 0), PATIENCE_S)
        for zombie in zombies:
            zombie.send_signal(signal.SIGCONT)
            assert zombie.communicate(timeout=PATIENCE_S)[0].startswith("refused: ")
        bruce.send(keyed(10, topic=topic.encode(), first=MESSAGES))
        bruce.await_status(lambda seen: seen.delivered == MESSAGES + 10, PATIENCE_S)
        assert not (bruce.spool / "delivery" / "lanes").exists()
        records = consume(kafka1.bootstrap, topic, PARTITIONS, MESSAGES + 10, PATIENCE_S)
    check_once(records, MESSAGES + 10)
