"""`bruce run` and real brokers: records as sent; brokers that die and leaders that move lose nothing."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode
from status.report import Snapshot
from tests.daemon import RunningBruce, consume
from tests.router.outlet import NOW_MS, check_order, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PARTITIONS = 6
PATIENCE_S = 90.0
STORY = (
    r" INFO: delivery has started: Kafka acknowledges what it gets$",
    r" ERROR: (no broker can be reached|127\.0\.0\.1:\d+ ).*; \d+ messages? waits?$",
    r" WARNING: Kafka is back after \d+ s; 300 messages waited$",
    r" INFO: the 300 messages that waited are delivered, in \d+ s$",
)
"""The lines of bruce's own about Kafka, from the start to the end of an outage."""


@pytest.fixture
def topic() -> bytes:
    """A name that was not used before."""
    return f"bruce-{uuid.uuid4().hex}".encode()


def create(cluster: KafkaCluster, topic: bytes) -> None:
    """Make a topic, and wait until it is there."""
    name = topic.decode()
    make_topics(cluster.bootstrap, [NewTopic(name, PARTITIONS)])


def leaders(cluster: KafkaCluster, topic: bytes) -> dict[int, int]:
    """By partition, the broker that leads it."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic.decode(), 30)
    return {p.id: p.leader for p in found.topics[topic.decode()].partitions.values()}


def check_totals(seen: Snapshot) -> None:
    """Check the sums that hold in every status."""
    assert seen.received == seen.delivered + sum(seen.discarded.values()) + seen.backlog


def check_all_there(records: Sequence[Message], sent: int) -> None:
    """Every message, first appearances in order, those of a key in one partition."""
    assert set(numbers(records)) == set(range(sent))
    check_order(records)


def test_records_are_as_sent(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Key, null key, value, empty value, timestamp and header; the topic is made by Kafka on demand."""
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(
            [
                encode(topic, b"with a key", key=b"key", timestamp=NOW_MS + 1),
                encode(topic, b"without", timestamp=NOW_MS + 2),
                encode(topic, b"", timestamp=NOW_MS + 3, partition_key=9),
                encode(topic, bytes(range(256)) * 40, timestamp=NOW_MS + 4),
            ]
        )
        bruce.await_status(lambda s: s.delivered == 4, PATIENCE_S)
        spool = uuid.UUID(bruce.status().spool.uuid).bytes
        records = consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 4, PATIENCE_S)
    assert len(records) == 4
    found = {r.value(): (r.key(), r.timestamp()[1] - NOW_MS, r.headers()) for r in records}
    headers = [[("bruce-id", spool + n.to_bytes(8, "big"))] for n in range(4)]
    assert found == {
        b"with a key": (b"key", 1, headers[0]),
        b"without": (None, 2, headers[1]),
        b"": (None, 3, headers[2]),
        bytes(range(256)) * 40: (None, 4, headers[3]),
    }
    assert next(r.partition() for r in records if r.value() == b"") == 9 % PARTITIONS


@pytest.mark.long
def test_a_timestamp_that_kafka_refuses(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Kafka refuses the whole batch for one record: that one is discarded, its neighbours are delivered."""
    create(kafka1, topic)
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bad = encode(topic, b"0:99999:", partition_key=0, timestamp=NOW_MS + 86_400_000)
        bruce.send(keyed(500, topic=topic))
        bruce.send([bad])
        bruce.send(keyed(500, topic=topic, first=500))
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 1001, PATIENCE_S)
        check_totals(seen)
        assert seen.discarded == {"invalid_record": 1}
        assert seen.delivered == 1000
        records = consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 1000, PATIENCE_S)
        assert set(numbers(records)) == set(range(1000))


def test_a_broker_is_killed_and_comes_back(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """In the middle of traffic: none lost, in order, and the totals balance all the time."""
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        sent = 0
        for step in range(30):
            sent += bruce.send(keyed(200, topic=topic, first=sent))
            check_totals(bruce.status())
            if step == 8:
                kafka3.kill(2)
            if step == 20:
                kafka3.start(2)
            time.sleep(0.1)
        seen = bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_totals(seen)
        assert (seen.received, seen.discarded) == (sent, {})
        check_all_there(consume(kafka3.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.long
def test_the_log_tells_of_an_outage(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Began, and why; back, after how long, and what waited; that it is delivered: a line each, no more."""
    create(kafka1, topic)
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        sent = bruce.send(keyed(100, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        kafka1.kill(1)
        bruce.await_true(lambda: bruce.logged(" ERROR") > 0, PATIENCE_S)
        sent += bruce.send(keyed(300, topic=topic, first=sent))
        bruce.await_status(lambda s: s.received == sent, PATIENCE_S)
        kafka1.start(1)
        seen = bruce.await_status(lambda s: s.delivered == sent and s.trouble is None, PATIENCE_S)
        check_totals(seen)
        bruce.await_true(lambda: bruce.logged("that waited are delivered") == 1, PATIENCE_S)
        lines = [line for line in bruce.log.read_text().splitlines() if " bruce[" in line][1:]
    assert len(lines) == len(STORY), lines
    for line, words in zip(lines, STORY, strict=True):
        assert re.search(words, line)


@pytest.mark.long
def test_leaders_move_between_kill_and_restart(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Killed with messages in flight to a frozen broker; when bruce is back others lead its partitions."""
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        sent = bruce.send(keyed(1200, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        before = leaders(kafka3, topic)
        away = before[0]
        kafka3.freeze(away)
        sent += bruce.send(keyed(6000, topic=topic, first=sent))
        bruce.await_status(
            lambda s: s.received == sent and any(b.id == away and b.in_flight for b in s.brokers), PATIENCE_S
        )
        bruce.kill9()
        check_totals(bruce.status())
        kafka3.kill(away)
        bruce.await_true(lambda: away not in leaders(kafka3, topic).values(), PATIENCE_S)
        bruce.start()
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        kafka3.start(away)
        check_all_there(consume(kafka3.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)
