"""Keys that a partitioner hashes, end to end: where clients of Java and librdkafka put them, and in order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from spool.format.wire import encode
from tests.daemon import RunningBruce, consume
from tests.real_kafka.test_bruce import check_totals
from tests.router.outlet import NOW_MS
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PATIENCE_S = 120.0
BEFORE, AFTER = 3, 7
KEYS = [b"k%d" % n * (1 + n % 5) for n in range(60)] + [
    b"\x00",
    b"\xff\xfe\xfd",
    bytes(range(256)),
    b"a" * 1023,
]
"""Lengths of each remainder by four, and bytes above 127."""
THEIRS = {"murmur2": "murmur2_random", "crc32": "consistent_random"}
"""Our names, and librdkafka's."""


def places(cluster: KafkaCluster, partitioner: str, partitions: int) -> dict[bytes, int]:
    """Key -> the partition that librdkafka itself puts it into, seen in Kafka."""
    name = f"theirs-{uuid.uuid4().hex}"
    make_topics(cluster.bootstrap, [NewTopic(name, partitions)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": THEIRS[partitioner]})
    for key in KEYS:
        producer.produce(name, b"", key)
    assert producer.flush(PATIENCE_S) == 0
    records = consume(cluster.bootstrap, name, partitions, len(KEYS), PATIENCE_S)
    return {record.key() or b"": record.partition() for record in records}


def keyed(topic: str, first: int, count: int) -> list[bytes]:
    """AnyPartition messages with the keys in turn, numbered."""
    return [
        encode(topic.encode(), b"%d" % n, key=KEYS[n % len(KEYS)], timestamp=NOW_MS + n)
        for n in range(first, first + count)
    ]


def number(record: Message) -> int:
    """The number of a message, from its record."""
    return int(record.value() or b"")


def firsts(records: Sequence[Message]) -> dict[bytes, list[tuple[int, int]]]:
    """Key -> (number, partition) as they first appear; those of a partition are in the order of its log."""
    seen: set[int] = set()
    found: dict[bytes, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for record in records:
        if number(record) not in seen:
            seen.add(number(record))
            found[record.key() or b""].append((number(record), record.partition()))
    return found


class Traffic:
    """The messages for a topic of each partitioner, the same for all."""

    def __init__(self, cluster: KafkaCluster, bruce: RunningBruce, topics: Iterable[str]) -> None:
        self._cluster, self._bruce, self._topics = cluster, bruce, list(topics)
        self.sent = 0
        """To each topic."""

    def send(self) -> None:
        """Some of each key."""
        for name in self._topics:
            self._bruce.send(keyed(name, self.sent, 3 * len(KEYS)))
        self.sent += 3 * len(KEYS)

    def await_delivery(self) -> None:
        """Return when all of it is in Kafka."""
        total = self.sent * len(self._topics)
        check_totals(self._bruce.await_status(lambda s: s.delivered == total, PATIENCE_S))

    def die_in_flight(self) -> None:
        """Send to a stopped broker; SIGKILL with messages on their way to it; let it go on."""
        self._cluster.freeze(1)
        self.send()
        total = self.sent * len(self._topics)
        self._bruce.await_status(
            lambda s: (
                s.received == total
                # Messages that are committed after the restart are counted by the new partitions.
                and s.watermarks.synced == s.watermarks.accepted
                and any(broker.in_flight for broker in s.brokers)
            ),
            PATIENCE_S,
        )
        self._bruce.kill9()
        self._cluster.thaw(1)

    def has_spread(self) -> bool:
        """Whether each topic has records in all of its partitions."""
        return all(
            {
                record.partition()
                for record in consume(self._cluster.bootstrap, name, AFTER, self.sent, PATIENCE_S)
            }
            == set(range(AFTER))
            for name in self._topics
        )


def check_key(numbers: list[tuple[int, int]], changed: int, old: int, new: int) -> None:
    """A key's (number, partition): by the old count below `changed`, then by the new; in order in each."""
    assert all(partition == (new if number >= changed else old) for number, partition in numbers)
    for partition in (old, new):
        there = [number for number, where in numbers if where == partition]
        assert there == sorted(there)


def test_hashed_keys_keep_place_and_order(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Through SIGKILLs with messages in flight, restarts, and growth while messages wait; by both hashes.

    Each key's messages first appear in order, and are where librdkafka's own partitioner puts the key, by the
    count before up to one message, and by the count after from there on.
    """
    topics = {partitioner: f"{partitioner}-{uuid.uuid4().hex}" for partitioner in THEIRS}
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    make_topics(kafka1.bootstrap, [NewTopic(name, BEFORE) for name in topics.values()])
    settings = {f'topics."{name}"': {"partitioner": partitioner} for partitioner, name in topics.items()}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
        traffic = Traffic(kafka1, bruce, topics.values())
        for _ in range(2):
            traffic.send()
            traffic.await_delivery()
            traffic.die_in_flight()
            bruce.start()
        traffic.await_delivery()
        traffic.die_in_flight()
        waited = traffic.sent
        for grown in admin.create_partitions([NewPartitions(n, AFTER) for n in topics.values()]).values():
            grown.result(60)
        bruce.start()
        traffic.await_delivery()
        # Until the new count is known, which an answer about the cluster tells.
        while not traffic.has_spread():
            traffic.send()
            traffic.await_delivery()
    for partitioner, name in topics.items():
        old, new = places(kafka1, partitioner, BEFORE), places(kafka1, partitioner, AFTER)
        found = firsts(consume(kafka1.bootstrap, name, AFTER, traffic.sent, PATIENCE_S))
        assert sorted(n for numbers in found.values() for n, _ in numbers) == list(range(traffic.sent))
        changed = min(n for key, numbers in found.items() for n, p in numbers if p != old[key])
        assert changed >= waited, "messages that waited when the topic grew were counted again"
        for key, numbers in found.items():
            check_key(numbers, changed, old[key], new[key])
