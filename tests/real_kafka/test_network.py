"""The network is cut: packets to real brokers are dropped, without an error."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from tests.daemon import RunningBruce, consume
from tests.real_kafka.test_bruce import PARTITIONS, check_all_there, check_totals, create, leaders
from tests.router.outlet import keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PATIENCE_S = 120.0


@pytest.fixture
def topic() -> bytes:
    """A name that was not used before."""
    return f"cut-{uuid.uuid4().hex}".encode()


def pids(bruce: RunningBruce) -> dict[str, int]:
    """The workers that run."""
    return {worker.role: worker.pid for worker in bruce.status().workers}


def test_all_packets_are_dropped(kafka1: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Messages wait, no worker ends, status says why; mended, each is delivered once, in order."""
    create(kafka1, topic)
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        sent = bruce.send(keyed(1000, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        before = pids(bruce)
        kafka1.cut(1)
        sent += bruce.send(keyed(3000, topic=topic, first=sent))
        words = "127.0.0.1", "answer"
        seen = bruce.await_status(
            lambda s: s.received == sent and any(said in str(s.trouble) for said in words), PATIENCE_S
        )
        check_totals(seen)
        assert seen.backlog > 0
        assert "\n" not in str(seen.trouble)
        kafka1.mend(1)
        seen = bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_totals(seen)
        assert pids(bruce) == before
        bruce.await_status(lambda s: s.trouble is None, PATIENCE_S)
        records = consume(kafka1.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S)
        assert len(records) == sent, "a broker that cannot be reached was asked again, and took it twice"
        check_all_there(records, sent)


@pytest.mark.long
def test_one_broker_of_three_is_cut_off(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """Only its own partitions wait, until others lead them; nothing is lost, keys stay in order."""
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        sent = bruce.send(keyed(1200, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        away = leaders(kafka3, topic)[0]
        kafka3.cut(away)
        assert not kafka3.broker(away).known_brokers(), "it answers: nothing was cut"
        more = keyed(3000, topic=topic, first=sent)
        sent += bruce.send(more)
        # Partitions led by the other two are delivered at once, or when a cut-off controller has a successor.
        bruce.await_status(lambda s: s.delivered > sent - len(more), PATIENCE_S)
        check_totals(bruce.status())
        kafka3.mend(away)
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        records = consume(kafka3.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S)
        check_all_there(records, sent)
        assert len(set(numbers(records))) == sent


@pytest.mark.long
def test_partitions_without_a_leader(kafka3: KafkaCluster, tmp_path: Path, topic: bytes) -> None:
    """The only broker that has them is dead: their messages wait, others do not; then all is delivered."""
    name = topic.decode()
    make_topics(kafka3.bootstrap, [NewTopic(name, PARTITIONS, 1, config={"min.insync.replicas": "1"})])
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        sent = bruce.send(keyed(600, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        before = leaders(kafka3, topic)
        away = before[0]
        kafka3.kill(away)
        orphans = {partition for partition, leader in before.items() if leader == away}
        more = keyed(1200, topic=topic, first=sent)
        sent += bruce.send(more)
        # Twelve keys, in turn: a partition has those that are its number modulo the partitions.
        others = sum(i % 12 % PARTITIONS not in orphans for i in range(len(more)))
        seen = bruce.await_status(lambda s: s.delivered >= sent - len(more) + others, PATIENCE_S)
        assert seen.delivered == sent - len(more) + others
        assert seen.discarded == {}
        check_totals(seen)
        kafka3.start(away)
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_all_there(consume(kafka3.bootstrap, name, PARTITIONS, sent, PATIENCE_S), sent)
