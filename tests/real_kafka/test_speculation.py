"""Spark makes a copy of a slow task, on a cluster, while it delivers exactly once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spool.layout import Layout
from tests.daemon import RunningBruce, consume
from tests.pipeline.standalone import COPIES, LOOK_S, PATIENCE_S, Executor, StandaloneCluster
from tests.real_kafka.test_exactly_once import EXACTLY_ONCE, check_once
from tests.router.outlet import keyed, numbers
from tools.fleets.records import read_recorded
from tools.kafka_cluster import KafkaCluster
from tools.waiting import wait_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.final]

MESSAGES = 6000
NOWHERE = "127.0.0.1:1"
IN_SMALL_STEPS = {"dispatch": {**EXACTLY_ONCE["dispatch"], "window_messages": 20}}
"""Many transactions between two outcome files."""
WITHIN_MEASURE = {**COPIES, "spark.speculation.minTaskRuntime": "5s"}
"""A task that is not kept from it ends before it is copied."""


@pytest.fixture
def cluster(kafka1: KafkaCluster, tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Two executors of one core."""
    (tmp_path / "cluster").mkdir()
    with StandaloneCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def topic(kafka1: KafkaCluster) -> str:
    """One partition: one task has it all."""
    name = f"speculation-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    return name


def test_two_attempts_at_one_task(
    kafka1: KafkaCluster, topic: str, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A worker stands still with messages committed that no file has; a copy begins, and then it goes on.

    At read_committed each message is there once, in order, and the daemon behind the drain sends none again.
    """
    brokers = {broker.port for broker in kafka1.brokers}
    with RunningBruce(tmp_path, NOWHERE, settings=IN_SMALL_STEPS) as bruce:
        bruce.send(keyed(MESSAGES, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka1.bootstrap}})
        with cluster.job("drain", "--json", conf=WITHIN_MEASURE, environ=bruce.environ) as job:
            (slow,) = cluster.await_executors(1, lambda one: one.sends_to(brokers))
            (other,) = cluster.await_executors(1, lambda one: one.pid != slow.pid)
            # Nobody makes a copy before it goes on.
            other.freeze()
            still = freeze_between_commit_and_file(kafka1, topic, Layout(bruce.spool), slow)
            other.thaw()
            wait_until(lambda: cluster.copied() is not None, PATIENCE_S, "a copy of the task", pause_s=LOOK_S)
            for worker in still:
                worker.resume()
            done = json.loads(job.result())
        assert (done["messages"], done["delivered"], done["left"]) == (MESSAGES, MESSAGES, 0)
        bruce.start()
        bruce.send(keyed(10, topic=topic.encode(), first=MESSAGES))
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (MESSAGES + 10, 0), PATIENCE_S)
        check_once(consume(kafka1.bootstrap, topic, 1, MESSAGES + 10, PATIENCE_S), MESSAGES + 10)


def freeze_between_commit_and_file(
    kafka: KafkaCluster, topic: str, layout: Layout, executor: Executor
) -> list[psutil.Process]:
    """Its workers that send, once Kafka has messages of theirs that are written down nowhere else."""
    brokers = {broker.port for broker in kafka.brokers}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    committed, workers = list[int](), list[psutil.Process]()

    def look() -> bool:
        workers[:] = executor.senders(brokers)
        for worker in workers:
            worker.suspend()
        while more := consumer.consume(MESSAGES, 0.1):
            committed.extend(numbers(more))
        # The numbers are the sequences: there is nothing else in the spool.
        if workers and read_recorded(layout).lacks(np.array(committed, np.int64)).any():
            return True
        for worker in workers:
            worker.resume()
        return False

    with closing(consumer):
        # Consumers take a while to begin, for which it need not stand still.
        wait_until(lambda: bool(consumer.poll(LOOK_S)), PATIENCE_S, "a first message")
        consumer.seek(TopicPartition(topic, 0, 0))
        wait_until(look, PATIENCE_S, "a moment between commit and file", pause_s=LOOK_S)
    return workers
