"""Headers, nulls, partitions and batches, from a program's socket into Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message as Record

from bruce_client import Client, Message
from bruce_client.message import encode, encode_batch, encode_message
from dispatch.embedded import EmbeddedKafka
from tests.bruce_client.doors import Doors
from tests.daemon import RunningBruce, consume

PARTITIONS = 3


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    """A daemon with every input, and two topics in Kafka."""
    with EmbeddedKafka(brokers=1, topics=[("orders", PARTITIONS), ("trade", 1)]) as kafka:
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=4 << 20)
        doors = Doors(bruce, kafka.bootstrap_servers)
        with bruce:
            doors.await_streams()
            yield doors


def records(doors: Doors, topic: str, partitions: int, count: int) -> list[Record]:
    """The records of a topic, once they are that many."""
    return consume(doors.servers, topic, partitions, count)


def as_bytes(data: str | bytes | None) -> bytes | None:
    """As it is sent."""
    return data.encode() if isinstance(data, str) else data


def own_headers(record: Record) -> list[tuple[str, bytes | None]]:
    """The headers of a record that are its sender's: bruce's is the first."""
    found = record.headers() or []
    assert found[0][0] == "bruce-id"
    return [(name, value) for name, value in found[1:]]


def test_all_that_a_message_can_have_is_in_kafka(doors: Doors) -> None:
    """Headers with doubles and nulls in order, null and empty keys and values, by datagram and by stream."""
    headers = [("b", b"1"), ("a", b"\xff\x00"), ("b", None), ("", b""), ("\u00e9", b"x" * 500)]
    sent = [
        Message("trade", "v", key="k", headers=headers),
        Message("trade", None, key="gone"),
        Message("trade", b"", key=b""),
        Message("trade", "v"),
        Message("trade", "v", headers=[(f"h{number}", b"%d" % number) for number in range(256)]),
    ]
    for client in (Client(doors.datagrams), Client(None, stream=doors.stream)):
        with client:
            for one in sent:
                client.send(*one[:2], key=one.key, headers=one.headers)
    found = records(doors, "trade", 1, 2 * len(sent))
    for start in (0, len(sent)):
        for one, record in zip(sent, found[start:], strict=False):
            assert [record.value(), record.key()] == [as_bytes(data) for data in one[1:3]]
            assert own_headers(record) == list(one.headers)


def test_a_message_goes_to_the_partition_that_it_names(doors: Doors) -> None:
    """Its key does not matter. For one that its topic does not have it is discarded, as `partition`."""
    with Client(doors.datagrams) as client:
        for number in range(30):
            client.send("orders", f"{number}", key="same", partition=number % PARTITIONS)
        client.send("orders", "nowhere", partition=PARTITIONS)
        client.send("orders", "nowhere", partition=-1)
    found = records(doors, "orders", PARTITIONS, 30)
    assert {int(record.value() or b"") % PARTITIONS == record.partition() for record in found} == {True}
    doors.bruce.await_status(lambda status: status.discarded == {"partition": 2})


def test_a_batch_is_taken_as_a_whole(doors: Doors) -> None:
    """Of three batches one has a wrong message: it is refused with all that is in it, the others are not."""
    good = [encode(b"trade", b"%d" % number) for number in range(256)]
    wrong = [*good[:10], good[0][:8] + b"\0\1" + good[0][10:], *good[10:20]]
    sent = doors.bruce.send([encode_batch(good), encode_batch(wrong), encode_batch(good[:1])])
    assert sent == 3
    found = records(doors, "trade", 1, 257)
    assert [record.value() for record in found] == [*(b"%d" % number for number in range(256)), b"0"]
    doors.bruce.await_status(lambda status: status.discarded == {"flags": 21})


def test_a_client_sends_many_at_once(doors: Doors) -> None:
    """send_many: more than a batch holds, of several sizes, in order; one is larger than a datagram."""
    sizes = [1, 100, 1000, 5]
    values = [b"%06d" % number + b"x" * sizes[number % len(sizes)] for number in range(1200)]
    values[700] += bytes(70_000)
    with Client(doors.datagrams, stream=doors.stream) as client:
        client.send_many(Message("orders", value, partition=0, headers=[("n", b"1")]) for value in values)
    found = records(doors, "orders", PARTITIONS, len(values))
    datagrams = [record.value() for record in found if len(record.value() or b"") < 65_000]
    assert datagrams == [value for value in values if len(value) < 65_000]
    assert values[700] in [record.value() for record in found]


def test_headers_of_a_message_with_a_partition_key(doors: Doors) -> None:
    """A partition key chooses as that of a PartitionKey message does."""
    doors.bruce.send(
        [
            encode_message(b"orders", b"long", partition_key=7, headers=[("a", b"1")]),
            encode(b"orders", b"short", partition_key=7),
        ]
    )
    one, other = records(doors, "orders", PARTITIONS, 2)
    assert one.partition() == other.partition() == 7 % PARTITIONS
