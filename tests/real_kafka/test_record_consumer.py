"""Records as columns, of what the embedded Kafka has not: transactions, deletion, the brokers' own times."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dispatch.record_consumer import UNTIMED, RecordConsumer
from tests.dispatch.fixture import PATIENCE_S, await_true
from tests.dispatch.test_record_consumer import plain, read
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka


def make(cluster: KafkaCluster, **config: str) -> str:
    """A topic of two partitions that was not used before."""
    name = f"records-{uuid.uuid4().hex}"
    make_topics(cluster.bootstrap, [NewTopic(name, 2, config=config)])
    return name


def produce(producer: Producer, topic: str, partition: int, *sequences: int) -> None:
    """Messages of the spool, which the broker has when this returns."""
    for key, value, sent_ms, headers in plain(*sequences):
        producer.produce(topic, value, key, partition, timestamp=sent_ms, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def test_transactions(kafka1: KafkaCluster) -> None:
    """Aborted records are not seen, nor those of open transactions; positions go over them to the ends."""
    topic = make(kafka1)
    writer = Producer({"bootstrap.servers": kafka1.bootstrap, "transactional.id": topic})
    writer.init_transactions(PATIENCE_S)
    for first, end in (
        (0, writer.commit_transaction),
        (10, writer.abort_transaction),
        (20, writer.commit_transaction),
    ):
        writer.begin_transaction()
        produce(writer, topic, 0, *range(first, first + 5))
        end(PATIENCE_S)
    writer.begin_transaction()
    produce(writer, topic, 0, 30)
    produce(writer, topic, 1, 40)
    with closing(RecordConsumer({"bootstrap.servers": kafka1.bootstrap})) as consumer:
        assert consumer.topics_known(PATIENCE_S)[topic] == 2
        consumer.assign({(topic, 0): 0, (topic, 1): 0})
        assert read(consumer).sequence.tolist() == [*range(5), *range(20, 25)]
        # Three transactions of five records and an end each.
        assert consumer.positions == {(topic, 0): 18, (topic, 1): 0}
        writer.abort_transaction(PATIENCE_S)
        assert not len(read(consumer).offset)
        assert consumer.positions == {(topic, 0): 20, (topic, 1): 2}
        assert consumer.error == ""


def test_what_is_not_there_any_more(kafka1: KafkaCluster) -> None:
    """Reading begins at the oldest record; `ends` says which it is. A broker's time is no sender's."""
    topic = make(kafka1, **{"message.timestamp.type": "LogAppendTime"})
    produce(Producer({"bootstrap.servers": kafka1.bootstrap}), topic, 0, *range(10))
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        answer.result(PATIENCE_S)
    with closing(RecordConsumer({"bootstrap.servers": kafka1.bootstrap})) as consumer:
        consumer.assign({(topic, 0): 2})
        found = read(consumer)
        assert (found.offset.tolist(), found.sent_ms.tolist()) == ([6, 7, 8, 9], [UNTIMED] * 4)
        assert consumer.ends(PATIENCE_S) == {(topic, 0): (6, 10)}


@pytest.mark.long
def test_a_broker_that_is_killed(kafka1: KafkaCluster) -> None:
    """The consumer says so, and reads on from where it was when the broker is there again."""
    topic = make(kafka1)
    producer = Producer({"bootstrap.servers": kafka1.bootstrap})
    produce(producer, topic, 0, *range(10))
    with closing(RecordConsumer({"bootstrap.servers": kafka1.bootstrap})) as consumer:
        consumer.assign({(topic, 0): 0})
        assert read(consumer).sequence.tolist() == list(range(10))
        kafka1.kill(1)
        await_true(lambda: not len(consumer.consume(0.1).offset) and consumer.error != "")
        kafka1.start(1)
        produce(producer, topic, 0, 10)
        assert read(consumer).sequence.tolist() == [10]
        assert consumer.error == ""
