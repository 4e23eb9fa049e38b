"""Spark makes a copy of a slow task, on a cluster, while it delivers exactly once: a drain, and a writer."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from spool.layout import Layout
from tests.daemon import RunningBruce, consume
from tests.pipeline.standalone import COPIES, LOOK_S, PATIENCE_S, Executor, StandaloneCluster
from tests.real_kafka.test_exactly_once import EXACTLY_ONCE, check_once
from tests.router.outlet import keyed, numbers
from tools.fleets.records import read_recorded
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.waiting import wait_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.long]

MESSAGES = 6000
NOWHERE = "127.0.0.1:1"
WRITER = (sys.executable, "-m", "tests.real_kafka.writer_job")
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
    make_topics(kafka1.bootstrap, [NewTopic(name, 1)])
    return name


def test_two_attempts_at_one_task(
    kafka1: KafkaCluster, topic: str, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A worker hangs with messages committed that no file has; a copy begins, and then it goes on.

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
            # No copy begins before it goes on.
            other.freeze()
            layout = Layout(bruce.spool)
            # The numbers are the sequences: there is nothing else in the spool.
            still, _ = freeze_when(
                kafka1,
                topic,
                slow,
                lambda have: bool(read_recorded(layout).lacks(np.array(have, np.int64)).any()),
            )
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


def test_two_attempts_at_one_write(
    kafka1: KafkaCluster, topic: str, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """`write.format("bruce-kafka")`: a worker hangs with some committed; a copy of its task goes on.

    Then both go on at the same time, as Spark's own log of events has it: the first one learns that it was
    fenced, and sends nothing more. At read_committed each message is there once, in order.
    """
    brokers = {broker.port for broker in kafka1.brokers}
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        **WITHIN_MEASURE,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    with RunningBruce(tmp_path, NOWHERE) as bruce:
        bruce.send(keyed(MESSAGES, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)
        bruce.kill9()
        words = bruce.spool, kafka1.bootstrap, topic
        with cluster.job(*words, conf=conf, environ=bruce.environ, program=WRITER) as job:
            (slow,) = cluster.await_executors(1, lambda one: one.sends_to(brokers))
            (other,) = cluster.await_executors(1, lambda one: one.pid != slow.pid)
            other.freeze()
            still, before = freeze_when(kafka1, topic, slow, lambda have: 0 < len(have) < MESSAGES)
            other.thaw()
            copies, _ = freeze_when(kafka1, topic, other, lambda have: before < len(have) < MESSAGES)
            for worker in still:
                worker.resume()
            told = "another attempt at this task goes on with it"
            wait_until(lambda: slow.logged(told) > 0, PATIENCE_S, "the first to follow", pause_s=LOOK_S)
            for worker in copies:
                worker.resume()
            job.result()
    check_once(consume(kafka1.bootstrap, topic, 1, MESSAGES, PATIENCE_S), MESSAGES)
    assert ran_together(events)


def ran_together(events: Path) -> bool:
    """Whether Spark began a speculative attempt at a task before the first one had ended."""
    (log,) = (path for path in events.rglob("*") if path.is_file() and path.suffix != ".crc")
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    starts = [one for one in found if one["Event"] == "SparkListenerTaskStart"]
    ends = {
        one["Task Info"]["Task ID"]: one["Task Info"]["Finish Time"]
        for one in found
        if one["Event"] == "SparkListenerTaskEnd"
    }
    copies = [one for one in starts if one["Task Info"]["Speculative"]]
    return any(
        ends.get(one["Task Info"]["Task ID"], np.inf) > copy["Task Info"]["Launch Time"]
        for copy in copies
        for one in starts
        if one is not copy
        and (one["Stage ID"], one["Task Info"]["Index"]) == (copy["Stage ID"], copy["Task Info"]["Index"])
    )


def freeze_when(
    kafka: KafkaCluster, topic: str, executor: Executor, is_it: Callable[[list[int]], bool]
) -> tuple[list[psutil.Process], int]:
    """Its workers that send, standing still once what Kafka has is so; and how many messages that is."""
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
        if workers and is_it(committed):
            return True
        for worker in workers:
            worker.resume()
        return False

    with closing(consumer):
        # Consumers take a while to begin, for which it need not stand still.
        wait_until(lambda: bool(consumer.poll(LOOK_S)), PATIENCE_S, "a first message")
        consumer.seek(TopicPartition(topic, 0, 0))
        wait_until(look, PATIENCE_S, "a moment to stand still at", pause_s=LOOK_S)
    return workers, len(committed)
