"""A record that real brokers refuse goes alone; topics that go; replicas that are missing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode
from tests.daemon import RunningBruce, consume
from tests.router.outlet import NOW_MS, check_order, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PARTITIONS = 2
PATIENCE_S = 90.0
LIMIT = 1000

Config = Mapping[str, str]


def create(cluster: KafkaCluster, config: Config | None = None, partitions: int = PARTITIONS) -> str:
    """A new topic."""
    name = f"bad-{uuid.uuid4().hex}"
    create_as(cluster, name, config, partitions)
    return name


def create_as(
    cluster: KafkaCluster, name: str, config: Config | None = None, partitions: int = PARTITIONS
) -> None:
    """A topic of this name."""
    make_topics(cluster.bootstrap, [NewTopic(name, partitions, config=dict(config or {}))])


def message(topic: str, number: int, value: bytes, key: bytes = b"k") -> bytes:
    """A numbered message for partition 0."""
    return encode(
        topic.encode(), b"0:%d:" % number + value, key=key, timestamp=NOW_MS + number, partition_key=0
    )


def read(cluster: KafkaCluster, topic: str, count: int, partitions: int = PARTITIONS) -> list[Message]:
    """All records of a topic."""
    return consume(cluster.bootstrap, topic, partitions, count, PATIENCE_S)


@contextmanager
def broker_setting(cluster: KafkaCluster, name: str, value: str) -> Iterator[None]:
    """A dynamic setting of the only broker, for a while."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(60)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def check_dead_letters(cluster: KafkaCluster, dead: str, sent: list[bytes], reason: bytes) -> None:
    """The dead-letter topic holds these datagrams and no others, each for this reason."""
    records = read(cluster, dead, len(sent))
    assert sorted(record.value() or b"" for record in records) == sorted(sent)
    assert {dict(record.headers() or [])["bruce-reason"] for record in records} == {reason}


@pytest.mark.sample("topic")
@pytest.mark.parametrize("whose", ["topic", "broker"])
def test_larger_than_the_limit(kafka1: KafkaCluster, tmp_path: Path, whose: str) -> None:
    """By its value, or by the overhead of its batch: dead-lettered alone; its neighbours are delivered."""
    dead = create(kafka1, {"max.message.bytes": "1000000"})
    with broker_setting(kafka1, "message.max.bytes", str(LIMIT if whose == "broker" else 1_000_000)):
        topic = create(kafka1, {"max.message.bytes": str(LIMIT)} if whose == "topic" else None)
        sizes = {7: 5000, 20: LIMIT - 10, 33: 60_000}
        sent = [message(topic, n, b"." * sizes.get(n, 10)) for n in range(40)]
        settings = {"dispatch": {"dead_letter_topic": dead}}
        with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
            bruce.send(sent)
            seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 40, PATIENCE_S)
            assert (seen.delivered, seen.discarded, seen.dead_lettered) == (37, {"too_large": 3}, 3)
    records = read(kafka1, topic, 37)
    assert sorted(numbers(records)) == [n for n in range(40) if n not in sizes]
    check_dead_letters(kafka1, dead, [sent[n] for n in sizes], b"too_large")


@pytest.mark.long
def test_a_batch_beyond_the_limit(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Kafka refuses it as a whole, and takes every message of it in smaller ones: none is discarded.

    A batch that was in flight behind it may be in Kafka before it: the producer id is a new one.
    """
    topic = create(kafka1, {"max.message.bytes": str(LIMIT)})
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(message(topic, n, b"." * 50) for n in range(300))
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 300, PATIENCE_S)
        assert (seen.delivered, seen.discarded) == (300, {})
    assert sorted(numbers(read(kafka1, topic, 300))) == list(range(300))


@pytest.mark.long
def test_compressed_it_fits(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """The size as sent counts: a compressible message is delivered, random bytes are not."""
    topic = create(kafka1, {"max.message.bytes": str(LIMIT)})
    noise = uuid.uuid4().bytes * 10 + b"".join(uuid.uuid4().bytes for _ in range(200))
    settings = {"kafka": {"compression.type": "zstd"}}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
        bruce.send([message(topic, 0, b"a" * 50_000), message(topic, 1, noise), message(topic, 2, b"end")])
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 3, PATIENCE_S)
        assert (seen.delivered, seen.discarded) == (2, {"too_large": 1})
    assert numbers(read(kafka1, topic, 2)) == [0, 2]


@pytest.mark.long
def test_too_large_for_the_dead_letter_topic(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Discarded for its reason; the smaller one in the same batch of letters is not."""
    topic = create(kafka1, {"max.message.bytes": str(LIMIT)})
    dead = create(kafka1, {"max.message.bytes": "3000"}, partitions=1)
    sent = [message(topic, n, b"." * size) for n, size in enumerate((1500, 20_000, 1600, 10))]
    with RunningBruce(
        tmp_path, kafka1.bootstrap, settings={"dispatch": {"dead_letter_topic": dead}}
    ) as bruce:
        bruce.send(sent)
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 4, PATIENCE_S)
        assert (seen.delivered, seen.discarded, seen.dead_lettered) == (1, {"too_large": 3}, 2)
    records = read(kafka1, dead, 2, partitions=1)
    assert {record.value() for record in records} == {sent[0], sent[2]}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_no_key_on_a_compacted_topic(kafka1: KafkaCluster, tmp_path: Path, mode: str) -> None:
    """INVALID_RECORD: that one is dead-lettered, its neighbours are delivered; in transactions, too."""
    topic, dead = create(kafka1, {"cleanup.policy": "compact"}), create(kafka1)
    sent = [message(topic, n, b"v", key=b"" if n % 10 == 3 else b"k%d" % n) for n in range(30)]
    with RunningBruce(
        tmp_path, kafka1.bootstrap, settings={"dispatch": {"dead_letter_topic": dead, "mode": mode}}
    ) as bruce:
        bruce.send(sent)
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 30, PATIENCE_S)
        assert (seen.delivered, seen.discarded, seen.dead_lettered) == (27, {"invalid_record": 3}, 3)
    assert numbers(read(kafka1, topic, 27)) == [n for n in range(30) if n % 10 != 3]
    check_dead_letters(kafka1, dead, [sent[n] for n in (3, 13, 23)], b"invalid_record")


@pytest.mark.long
def test_a_topic_is_deleted_and_made_anew(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """In the middle of traffic: the rest is dead-lettered, others never wait; later it is used again."""
    topic, other, dead = create(kafka1, partitions=4), create(kafka1), create(kafka1)
    settings = {
        "kafka": {"allow.auto.create.topics": False},
        "dispatch": {"dead_letter_topic": dead, "unknown_topic_seconds": 3},
    }
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap, "log_level": 0})
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
        sent = 0
        for step in range(40):
            sent += bruce.send(keyed(25, topic=topic.encode(), first=sent))
            if step == 10:
                bruce.await_status(lambda s: s.delivered > 0, PATIENCE_S)
                admin.delete_topics([topic])[topic].result(60)
            time.sleep(0.05)
        bruce.send(keyed(50, topic=other.encode()))
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == sent + 50, PATIENCE_S)
        assert seen.delivered + seen.dead_lettered == sent + 50
        assert seen.discarded == {"unknown_topic": seen.dead_lettered}
        assert 0 < seen.dead_lettered < sent
        assert len(read(kafka1, other, 50)) == 50
        assert len(read(kafka1, dead, seen.dead_lettered)) >= seen.dead_lettered
        create_as(kafka1, topic, partitions=1)
        before = seen.delivered
        # Until the metadata says so, the topic is gone.
        while bruce.status().delivered == before:
            sent += bruce.send(keyed(1, topic=topic.encode(), first=sent))
            bruce.await_status(lambda s: s.backlog == 0, PATIENCE_S)
        first = sent
        sent += bruce.send(keyed(100, topic=topic.encode(), first=sent))
        bruce.await_status(lambda s: s.backlog == 0 and s.received == sent + 50, PATIENCE_S)
        records = read(kafka1, topic, 100, partitions=1)
        # Messages for a partition that is gone wait, until it is certain that there are fewer.
        assert set(numbers(records)) >= set(range(first, sent))
        check_order(records)


def test_too_few_replicas(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """min.insync.replicas = 3 and a broker down: nothing is discarded, all is delivered when it is back."""
    topic = create(kafka3, {"min.insync.replicas": "3"})
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        bruce.send(keyed(100, topic=topic.encode()))
        bruce.await_status(lambda s: s.delivered == 100, PATIENCE_S)
        kafka3.kill(2)
        bruce.send(keyed(300, topic=topic.encode(), first=100))
        bruce.await_status(lambda s: s.received == 400, PATIENCE_S)
        bruce.await_true(lambda: refusal(kafka3, topic) == KafkaError.NOT_ENOUGH_REPLICAS, PATIENCE_S)
        time.sleep(3)
        seen = bruce.status()
        assert (seen.discarded, seen.backlog) == ({}, 300)
        kafka3.start(2)
        seen = bruce.await_status(lambda s: s.delivered == 400, PATIENCE_S)
        assert seen.discarded == {}
    records = [r for r in read(kafka3, topic, 400) if (r.value() or b"") != b"probe"]
    assert set(numbers(records)) == set(range(400))
    check_order(records)


def refusal(cluster: KafkaCluster, topic: str) -> int | None:
    """The code that a producer without patience gets."""
    codes: list[int | None] = []
    probe = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "retries": 0, "message.timeout.ms": 5000}
    )
    probe.produce(topic, b"probe", on_delivery=lambda error, _: codes.append(error.code() if error else None))
    probe.flush(10)
    return codes[0] if codes else None
