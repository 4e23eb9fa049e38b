"""`brucectl spark drain` on real brokers: its workers are killed in the middle; a daemon starts behind it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.cimpl import NewTopic

from tests.daemon import ROOT, RunningBruce, consume
from tests.real_kafka.test_exactly_once import EXACTLY_ONCE, check_once, create
from tests.router.outlet import check_order, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.crash]

PARTITIONS = 6
MESSAGES = 20_000
NOWHERE = "127.0.0.1:1"
PATIENCE_S = 600.0
FEW = ("--conf", "spark.sql.shuffle.partitions=2")
"""Tasks of a shuffle: of so few rows each takes as long to start as to run."""


@pytest.mark.long
def test_a_worker_killed_in_the_middle_loses_nothing(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """With a broker frozen tasks cannot end; their workers get SIGKILL, the broker goes on: all is there.

    The audit finds nothing missing, and a daemon that starts on the spool sends none of them again.
    """
    topic = f"bruce-{uuid.uuid4().hex}"
    # One copy each: no other task can take the messages of the partitions whose broker is frozen.
    wanted = NewTopic(topic, PARTITIONS, 1, config={"min.insync.replicas": "1"})
    make_topics(kafka3.bootstrap, [wanted])
    with RunningBruce(tmp_path, NOWHERE) as bruce:
        for first in range(0, MESSAGES, 1000):
            bruce.send(keyed(1000, topic=topic.encode(), first=first))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka3.bootstrap}})
        kafka3.freeze(2)
        with start(bruce, "drain") as drain:
            before = consume(kafka3.bootstrap, topic, PARTITIONS, 100, PATIENCE_S)
            assert len(set(numbers(before))) < MESSAGES
            kill_senders(drain.pid, {broker.port for broker in kafka3.brokers})
            kafka3.thaw(2)
            said, errors = drain.communicate(timeout=PATIENCE_S)
        assert drain.returncode == 0, errors
        done = json.loads(said)
        assert (done["messages"], done["delivered"], done["left"]) == (MESSAGES, MESSAGES, 0)
        with start(bruce, "audit", *FEW) as audit:
            said, errors = audit.communicate(timeout=PATIENCE_S)
        total = json.loads(said)["total"]
        assert (total["stored"], total["once"] + total["duplicated"]) == (MESSAGES, MESSAGES), errors
        assert [total[fault] for fault in ("lost", "altered", "reordered", "backlog")] == [0, 0, 0, 0]
        drained = consume(kafka3.bootstrap, topic, PARTITIONS, MESSAGES, PATIENCE_S)
        bruce.start()
        bruce.send(keyed(10, topic=topic.encode(), first=MESSAGES))
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (MESSAGES + 10, 0), PATIENCE_S)
    records = consume(kafka3.bootstrap, topic, PARTITIONS, len(drained) + 10, PATIENCE_S)
    check_order(records)
    assert set(numbers(records)) == set(range(MESSAGES + 10))
    assert len(records) == len(drained) + 10


@pytest.mark.long
def test_killed_between_commit_and_outcome_file(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """A worker dies with its transaction committed and nothing written down, then driver and executors do.

    The daemon that starts behind them sends none of that again: at read_committed each message is there once.
    """
    topic = f"once-{uuid.uuid4().hex}"
    create(kafka1, topic.encode())
    points = tmp_path / "points"
    with RunningBruce(tmp_path, NOWHERE, settings=EXACTLY_ONCE) as bruce:
        bruce.send(keyed(1200, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == 1200, PATIENCE_S)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka1.bootstrap}})
        points.write_text("task.settled\n")
        bruce.environ["BRUCE_CRASH_POINTS"] = str(points)
        with start(bruce, "drain") as drain:
            bruce.await_true(lambda: not points.read_text() or drain.poll() is not None, PATIENCE_S)
            kill_all(drain.pid)
        assert points.read_text() == ""
        bruce.start()
        bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (1200, 0), PATIENCE_S)
        records = consume(kafka1.bootstrap, topic, PARTITIONS, 1200, PATIENCE_S)
    check_once(records, 1200)


def kill_all(driver: int) -> None:
    """SIGKILL a driver and all its children, before any of them can do more."""
    try:
        process = psutil.Process(driver)
        everybody = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in everybody:
        with suppress(psutil.NoSuchProcess):
            one.kill()


@contextmanager
def start(bruce: RunningBruce, job: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`brucectl spark JOB` over the daemon's spool; it does not outlive a test that fails."""
    brucectl = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    with subprocess.Popen(
        [*brucectl, "spark", job, "--json", *options],
        cwd=ROOT,
        env=bruce.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_senders(driver: int, ports: set[int]) -> None:
    """SIGKILL the Python workers below this process that are connected to one of the brokers."""
    below = psutil.Process(driver).children(recursive=True)
    senders = [process for process in below if is_sender(process, ports)]
    assert senders
    for process in senders:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def is_sender(process: psutil.Process, ports: set[int]) -> bool:
    """Whether this is a Python worker of Spark with a connection to one of the ports."""
    try:
        connections = process.net_connections() if "pyspark" in " ".join(process.cmdline()) else []
    except psutil.NoSuchProcess:
        return False  # it has ended meanwhile, or is a zombie
    return any(found.raddr and found.raddr.port in ports for found in connections)
