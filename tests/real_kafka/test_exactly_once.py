"""Delivery mode exactly_once on real brokers: each message once for a consumer at read_committed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode
from tests.daemon import RunningBruce, consume
from tests.real_kafka.test_bruce import leaders
from tests.router.outlet import NOW_MS, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PARTITIONS = 6
PATIENCE_S = 150.0
EXACTLY_ONCE = {"dispatch": {"mode": "exactly_once"}}


@pytest.fixture
def topic() -> bytes:
    """A name that was not used before."""
    return f"once-{uuid.uuid4().hex}".encode()


def create(cluster: KafkaCluster, topic: bytes) -> None:
    """Make a topic, and wait until it is there."""
    name = topic.decode()
    make_topics(cluster.bootstrap, [NewTopic(name, PARTITIONS)])


def check_once(records: Sequence[Message], sent: int) -> None:
    """Each number once, and those of a partition in order."""
    assert sorted(numbers(records)) == list(range(sent))
    for partition in range(PARTITIONS):
        found = numbers([record for record in records if record.partition() == partition])
        assert found == sorted(found)


def kill_delivery(bruce: RunningBruce) -> None:
    """SIGKILL the delivery worker, if there is one now."""
    worker = next(w for w in bruce.status().workers if w.role == "delivery")
    if worker.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def test_once_through_kills_of_the_delivery_worker(
    kafka1: KafkaCluster, tmp_path: Path, topic: bytes
) -> None:
    """SIGKILLs at any instant of a transaction, with messages in it."""
    create(kafka1, topic)
    chance = random.Random(1)
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=EXACTLY_ONCE) as bruce:
        sent = 0
        for _ in range(8):
            before = bruce.status().delivered
            for _ in range(chance.randrange(1, 6)):
                sent += bruce.send(keyed(700, topic=topic, first=sent))
                time.sleep(chance.uniform(0.0, 0.1))
            bruce.await_status(lambda s, least=before: s.delivered > least, PATIENCE_S)
            time.sleep(chance.uniform(0.0, 0.3))
            kill_delivery(bruce)
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.long
def test_once_through_reloads_and_a_stop(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Workers that give way in the middle of traffic, and a stop that drains what has just come."""
    create(kafka1, topic)
    settings = {"dispatch": {**EXACTLY_ONCE["dispatch"], "drain_seconds": int(PATIENCE_S)}}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
        sent = 0
        for turn in range(3):
            sent += bruce.send(keyed(1500, topic=topic, first=sent))
            bruce.configure({"kafka": {"linger.ms": str(5 + turn)}})
            bruce.tell(signal.SIGHUP)
            sent += bruce.send(keyed(1500, topic=topic, first=sent))
            bruce.await_true(lambda times=turn + 1: bruce.logged("gave way") == times, PATIENCE_S)  # type: ignore[misc]
        sent += bruce.send(keyed(1500, topic=topic, first=sent))
        assert bruce.stop(2 * PATIENCE_S) == 0
        assert bruce.logged("0 messages are left in the spool") == 1
        check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.long
def test_once_while_every_broker_dies_in_turn(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Leaders and the coordinator of the transactions move, with transactions open."""
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap, settings=EXACTLY_ONCE) as bruce:
        sent = bruce.send(keyed(1000, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        for broker in (1, 2, 3):
            for _ in range(10):
                sent += bruce.send(keyed(200, topic=topic, first=sent))
                time.sleep(0.02)
            kafka3.kill(broker)
            for _ in range(10):
                sent += bruce.send(keyed(200, topic=topic, first=sent))
                time.sleep(0.05)
            bruce.await_status(lambda s, all_=sent: s.delivered == all_, PATIENCE_S)
            kafka3.start(broker)
        check_once(consume(kafka3.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.long
def test_the_progress_topic_is_compacted(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """It is made by the first daemon that needs it."""
    name = f"progress-{topic.decode()}"
    settings = {"dispatch": {"mode": "exactly_once", "progress_topic": name}}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:
        bruce.send(keyed(10, topic=topic))
        bruce.await_status(lambda s: s.delivered == 10, PATIENCE_S)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    found = admin.describe_configs([resource])
    assert found[resource].result(30)["cleanup.policy"].value == "compact"


def records_in(cluster: KafkaCluster, topic: str) -> int:
    """How many records all partitions of a topic have got by now, ends of transactions among them."""
    with contextlib.closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "test"})) as reader:
        partitions = reader.list_topics(topic, PATIENCE_S).topics[topic].partitions
        return sum(reader.get_watermark_offsets(TopicPartition(topic, p), PATIENCE_S)[1] for p in partitions)


@contextlib.contextmanager
def copied(cluster: KafkaCluster, directory: Path, topic: bytes) -> Iterator[tuple[RunningBruce, Path]]:
    """A daemon that has delivered 100 messages and stopped, and the place of a copy of everything."""
    create(cluster, topic)
    one, other = directory / "one", directory / "other"
    one.mkdir()
    with RunningBruce(one, cluster.bootstrap, settings=EXACTLY_ONCE) as first:
        first.send(keyed(100, topic=topic))
        first.await_status(lambda s: s.delivered == 100, PATIENCE_S)
        assert first.stop() == 0
        shutil.copytree(one, other)
        yield first, other


@pytest.mark.long
def test_a_copied_spool_fences_the_other(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Two daemons with one identity: who began last delivers, the other says so and stops."""
    with copied(kafka1, tmp_path, topic) as (first, other):
        sent = 100
        before = records_in(kafka1, "bruce-progress")
        first.start()
        # A claim is a record and the end of its transaction: the other begins when both are there.
        first.await_true(lambda: records_in(kafka1, "bruce-progress") >= before + 2, PATIENCE_S)
        with RunningBruce(other, kafka1.bootstrap, settings=EXACTLY_ONCE) as second:
            more = second.send(keyed(100, topic=topic, first=sent))
            second.await_status(lambda s: s.delivered == sent + more, PATIENCE_S)
            first.send(keyed(100, topic=topic, first=1000))
            first.await_true(lambda: first.logged("with this spool's identity delivers") > 0, PATIENCE_S)
            assert first.status().backlog == 100
            check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 200, PATIENCE_S), 200)


@pytest.mark.long
def test_a_copied_spool_that_begins_later(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """The other's deliveries under the same sequences are not taken for its own: all messages arrive."""
    with copied(kafka1, tmp_path, topic) as (first, other):
        sent = 100
        with RunningBruce(other, kafka1.bootstrap, settings=EXACTLY_ONCE) as second:
            sent += second.send(keyed(100, topic=topic, first=sent))
            second.await_status(lambda s: s.delivered == sent, PATIENCE_S)
            first.start()
            first.send(keyed(100, topic=topic, first=sent))
            first.await_status(lambda s: s.delivered == sent, PATIENCE_S)
            second.send(keyed(100, topic=topic, first=1000))
            second.await_true(lambda: second.logged("with this spool's identity delivers") > 0, PATIENCE_S)
            assert second.status().backlog == 100
            check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 300, PATIENCE_S), 300)


@pytest.mark.long
def test_older_marks_stop_delivery(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Messages delivered after the copy would go twice: nothing is sent, and the log says why."""
    create(kafka1, topic)
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=EXACTLY_ONCE) as bruce:
        sent = bruce.send(keyed(100, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        assert bruce.stop() == 0
        older = tmp_path / "older"
        shutil.copytree(bruce.spool / "delivery", older)
        bruce.start()
        for _ in range(2):
            # The marks that the second record is based on are not in the copy.
            sent += bruce.send(keyed(100, topic=topic, first=sent))
            bruce.await_status(lambda s, all_=sent: s.delivered == all_, PATIENCE_S)
        assert bruce.stop() == 0
        shutil.rmtree(bruce.spool / "delivery")
        shutil.copytree(older, bruce.spool / "delivery")
        bruce.start()
        sent += bruce.send(keyed(100, topic=topic, first=sent))
        bruce.await_true(lambda: b"older than what Kafka knows" in bruce.log.read_bytes(), PATIENCE_S)
        check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 300, PATIENCE_S), 300)


def test_marks_that_miss_the_last_transaction(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Killed between the commit in Kafka and the marks: the progress record says what was delivered."""
    create(kafka1, topic)
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=EXACTLY_ONCE) as bruce:
        sent = bruce.send(keyed(100, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        assert bruce.stop() == 0
        older = tmp_path / "older"
        shutil.copytree(bruce.spool / "delivery", older)
        bruce.start()
        sent += bruce.send(keyed(100, topic=topic, first=sent))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        bruce.kill9()
        shutil.rmtree(bruce.spool / "delivery")
        shutil.copytree(older, bruce.spool / "delivery")
        bruce.start()
        sent += bruce.send(keyed(100, topic=topic, first=sent))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.long
def test_a_record_that_kafka_refuses(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """It aborts its transactions until it is alone in one; it is discarded, and all others are there once."""
    create(kafka1, topic)
    tomorrow = encode(topic, b"0:99999:", partition_key=0, timestamp=NOW_MS + 86_400_000)
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=EXACTLY_ONCE) as bruce:
        bruce.send([*keyed(200, topic=topic), tomorrow, *keyed(200, topic=topic, first=200)])
        seen = bruce.await_status(lambda s: s.backlog == 0 and s.received == 401, PATIENCE_S)
        assert (seen.delivered, seen.discarded) == (400, {"invalid_record": 1})
        check_once(consume(kafka1.bootstrap, topic.decode(), PARTITIONS, 400, PATIENCE_S), 400)


@pytest.mark.long
def test_a_broker_that_stands_still(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """It costs a transaction, and is left out: others get theirs. Nothing is lost, nothing comes twice."""
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap, settings=EXACTLY_ONCE) as bruce:
        sent = bruce.send(keyed(600, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        led = leaders(kafka3, topic)
        kafka3.freeze(2)
        more = keyed(600, topic=topic, first=sent)
        sent += bruce.send(more)
        # Twelve keys, in turn: a partition has those that are its number modulo the partitions.
        others = sum(led[i % 12 % PARTITIONS] != 2 for i in range(len(more)))
        bruce.await_status(lambda s: s.delivered >= sent - len(more) + others, PATIENCE_S)
        kafka3.thaw(2)
        sent += bruce.send(keyed(600, topic=topic, first=sent))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_once(consume(kafka3.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)
