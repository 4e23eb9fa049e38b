"""The brokers of tools/kafka are real ones: they keep messages, and keep them over a crash."""

import time
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.cimpl import NewTopic

from tests.class_archive import check_mapped
from tools.class_data import kafka_archive
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

MESSAGES = [f"message {number}".encode() for number in range(100)]
TIMEOUT_S = 60.0


def create_topic(cluster: KafkaCluster) -> str:
    """A new topic with the cluster's own defaults."""
    name = f"smoke-{uuid4().hex}"
    make_topics(cluster.bootstrap, [NewTopic(name)])
    return name


def produce(cluster: KafkaCluster, topic: str, values: list[bytes]) -> list[KafkaError]:
    """Send the values with acks=all and return the errors of those that were refused."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    outcomes: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(TIMEOUT_S)
    assert len(outcomes) == len(values)
    return [error for error in outcomes if error]


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    """Read the topic from its start until `count` messages have come, or for a minute."""
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **group})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    consumer.close()
    return values


@pytest.mark.long
def test_one_broker_gives_back_what_it_was_given(kafka1: KafkaCluster) -> None:
    """A hundred messages come back, each once."""
    topic = create_topic(kafka1)
    assert produce(kafka1, topic, MESSAGES) == []
    assert sorted(consume(kafka1, topic, len(MESSAGES))) == sorted(MESSAGES)


@pytest.mark.long
def test_three_brokers_outlive_one(kafka3: KafkaCluster) -> None:
    """Messages sent before, during and after a broker's death all come back, each once."""
    topic = create_topic(kafka3)
    address = kafka3.broker(2).address
    assert produce(kafka3, topic, MESSAGES[:30]) == []
    kafka3.kill(2)
    assert kafka3.broker(2).state == "dead"
    assert produce(kafka3, topic, MESSAGES[30:60]) == []
    kafka3.start(2)
    assert kafka3.broker(2).address == address
    assert produce(kafka3, topic, MESSAGES[60:]) == []
    assert sorted(consume(kafka3, topic, len(MESSAGES))) == sorted(MESSAGES)


@pytest.mark.long
def test_a_frozen_broker_goes_on_where_it_stood(kafka1: KafkaCluster) -> None:
    """A frozen broker accepts connections but answers none; thawed, it answers again."""
    broker = kafka1.broker(1)
    kafka1.freeze(1)
    assert broker.state == "frozen"
    assert broker.known_brokers() == set()
    kafka1.thaw(1)
    assert broker.known_brokers() == {1}


@pytest.mark.long
def test_a_dead_broker_is_found_again_from_its_directory(kafka1: KafkaCluster) -> None:
    """Another process sees the same brokers, and starts on the same ports what the first killed."""
    topic = create_topic(kafka1)
    assert produce(kafka1, topic, MESSAGES) == []
    kafka1.kill(1)
    other = KafkaCluster.load(kafka1.directory)
    assert other.bootstrap == kafka1.bootstrap
    other.start(1)
    assert sorted(consume(kafka1, topic, len(MESSAGES))) == sorted(MESSAGES)


def test_a_broker_starts_from_the_archive_of_its_classes(kafka3: KafkaCluster) -> None:
    """It fits the classes that Kafka loads, and Java has taken it."""
    for broker in kafka3.brokers:
        check_mapped(broker.pid or 0, kafka_archive())
