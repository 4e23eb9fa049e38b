"""A topic that gets more partitions while messages wait, on real brokers, and over a restart."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.daemon import RunningBruce, consume
from tests.router.outlet import keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

PATIENCE_S = 90.0
BEFORE, AFTER = 3, 7


def grow(cluster: KafkaCluster, topic: str) -> None:
    """Do as `kafka-topics --alter --partitions` does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(topic, AFTER)])[topic].result(60)


def by_key(records: list[Message]) -> dict[int, list[tuple[int, int]]]:
    """Key -> (number, partition) of its messages by number, each once."""
    found: dict[int, dict[int, int]] = {}
    for record, number in zip(records, numbers(records), strict=True):
        key = int((record.value() or b"").split(b":")[0])
        assert found.setdefault(key, {}).setdefault(number, record.partition()) == record.partition()
    return {key: sorted(places.items()) for key, places in found.items()}


@pytest.mark.parametrize("restart", [False, True])
def test_a_topic_grows_while_messages_wait(kafka1: KafkaCluster, tmp_path: Path, *, restart: bool) -> None:
    """Each message of a key is where the count of its time says, and the count changes once, for all keys."""
    topic = f"bruce-{uuid.uuid4().hex}"
    make_topics(kafka1.bootstrap, [NewTopic(topic, BEFORE)])
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(keyed(600, topic=topic.encode()))
        bruce.await_status(lambda s: s.delivered == 600, PATIENCE_S)
        kafka1.freeze(1)
        bruce.send(keyed(600, topic=topic.encode(), first=600))
        bruce.await_status(lambda s: s.received == 1200, PATIENCE_S)
        if restart:
            bruce.stop()
        kafka1.thaw(1)
        grow(kafka1, topic)
        if restart:
            bruce.start()
        bruce.await_status(lambda s: s.delivered >= 1200, PATIENCE_S)
        number = 1200
        while AFTER - 1 not in {
            p for places in by_key(records(kafka1, topic, number)).values() for _, p in places
        }:
            bruce.send(keyed(120, topic=topic.encode(), first=number))
            number += 120
            bruce.await_status(lambda s, number=number: s.delivered >= number, PATIENCE_S)
        found = by_key(records(kafka1, topic, number))
    assert sorted(n for places in found.values() for n, _ in places) == list(range(number))
    last_before = max(n for key, places in found.items() for n, p in places if p != key % AFTER)
    first_after = min(n for key, places in found.items() for n, p in places if p != key % BEFORE)
    assert last_before + 12 >= 1200
    assert last_before < first_after


def records(cluster: KafkaCluster, topic: str, count: int) -> list[Message]:
    """All records of the topic, at least `count`."""
    return consume(cluster.bootstrap, topic, AFTER, count, PATIENCE_S)
