"""Searching Kafka for a record, and the headers by which one is known; more is in tests/real_kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import Message, Producer, TopicPartition

from dispatch.consumer import NAMELESS, Wanted, find_id, find_records, open_consumer, read_headers
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable
from tests.dispatch.fixture import produce_bytes


def test_nobody_to_ask(capfd: pytest.CaptureFixture[str]) -> None:
    """Kafka away, and a wrong property: one sentence each, and not a word of librdkafka's."""
    wanted = Wanted("t", bytes(24), 0)
    with pytest.raises(BadProperty, match="No such configuration property"):
        find_records({"bootstrap.servers": "127.0.0.1:1", "nonsense": "1"}, wanted)
    with pytest.raises(Unreachable, match="Kafka cannot be searched: no broker can be reached"):
        find_records({"bootstrap.servers": "127.0.0.1:1"}, wanted, seconds=1)
    assert capfd.readouterr().err == ""


STAMP, OTHER = b"a" * 24, b"b" * 24


def test_the_first_of_its_name_is_the_id() -> None:
    """One behind it is the sender's; and if the first is no id, the record has none."""
    assert find_id([("x", b""), ("bruce-id", STAMP), ("bruce-id", OTHER)]) == 1
    assert find_id([("bruce-id", STAMP[:-1]), ("bruce-id", OTHER)]) is None
    assert find_id([("bruce-id", None), ("bruce-id", OTHER)]) is None
    assert find_id([("Bruce-id", STAMP), (NAMELESS, STAMP)]) is None
    assert find_id([]) is None


def test_names_that_are_no_text(kafka: EmbeddedKafka) -> None:
    """They end nothing, however many there are; what is beside them is read, each time.

    Behind a thousand others, too: by then Python has adapted the calls to what they were.
    """
    headers = [
        (b"\xff", b"1"),
        (b"bruce-id", STAMP),
        (b"\xc3(", b""),
        (b"\xe2\x82", b"3"),
        (b"h\xc3\xa9", b"4"),
    ]
    produce_bytes(kafka.bootstrap_servers, "t", headers)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(1000):
        producer.produce("t", b"v", partition=0, headers=[("bruce-id", OTHER)])
    assert producer.flush(60) == 0
    for _ in range(3):
        produce_bytes(kafka.bootstrap_servers, "t", headers)
    consumer = open_consumer({"bootstrap.servers": kafka.bootstrap_servers})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[Message] = []
    while len(found) < 1004:
        found += [message for message in consumer.consume(1004, 1) if not message.error()]
    consumer.close()
    names = [NAMELESS, "bruce-id", NAMELESS, NAMELESS, "hé"]
    for _ in range(2):
        every = [read_headers(message) for message in found]
        assert list(every[0]) == list(zip(names, [value for _, value in headers], strict=True))
        assert every[1:1001] == [[("bruce-id", OTHER)]] * 1000
        assert every[1001:] == [every[0]] * 3
        assert [find_id(one) for one in every] == [1, *[0] * 1000, *[1] * 3]
