"""A pool, its client and its topics, against the embedded Kafka."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, Message, TopicPartition

from dispatch.client import NO_LEADER, KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.handover import Headers
from dispatch.librdkafka import COPY_MESSAGE, PRODUCER, Vtype, load, set_properties
from dispatch.options import DispatchOptions
from dispatch.pool import Outcomes, Pool
from dispatch.tables import State
from spool.native.memory import address_of
from tests.dispatch import batches

UUID = bytes(range(16))
PATIENCE_S = 60.0
"""For what takes moments, on a machine that has other work."""


class ProducerFixture:
    """Everything that a message passes through."""

    def __init__(
        self, servers: str, topics: Sequence[bytes], options: DispatchOptions, reports_at_once: int = 1 << 16
    ) -> None:
        self.options = options
        self.topics = batches.name_topics(*topics)
        self.servers = servers
        self.client = KafkaClient(options)
        self.pool = Pool(self.client, self.topics, options, spool_uuid=UUID, reports_at_once=reports_at_once)
        self.refresh()

    def refresh(self) -> None:
        """Fetch the metadata until each partition has a leader."""
        await_true(self._fetch)

    def _fetch(self) -> bool:
        cluster = self.client.fetch_cluster(self.topics.names, 5)
        self.pool.set_cluster(cluster)
        return all(name in cluster.topics for name in self.topics.names) and not any(
            (leaders == NO_LEADER).any() for leaders in cluster.topics.values()
        )

    def flat(self, partition: int, topic: int = 0) -> int:
        """The flat number of a partition."""
        return int(self.pool.partitions.flats[topic, partition])

    def send(self, messages: Sequence[batches.Message], partition: int, *, catching_up: bool = False) -> Any:
        """Send to one partition of each message's topic."""
        batch = batches.build_batch(self.topics, messages)
        flat = np.array([self.flat(partition, message.topic) for message in messages], np.int32)
        return self.pool.send(batch, flat, catching_up=catching_up)

    def held_from(self, partition: int) -> int:
        """The sequence from which a partition is held back."""
        return int(self.pool.partitions.rows["held_from"][self.flat(partition)])

    def state(self, broker: int) -> State:
        """How a broker (by id) is, by the newest statistics."""
        assert not len(self.pool.collect().sequence)
        self.pool.observe()
        return State(int(self.pool.brokers.rows["state"][self.pool.brokers.indexes[broker]]))

    def deliver(
        self, plan: Mapping[int, Sequence[batches.Message]], sample: Callable[[], None] = lambda: None
    ) -> dict[int, int]:
        """Send each partition its planned messages, catching up until each has an outcome; codes by sequence.

        `sample` runs after every hand-over.
        """
        for partition, messages in plan.items():
            self.send(messages, partition)
            sample()
        found: dict[int, int] = {}
        count = sum(map(len, plan.values()))

        def all_told() -> bool:
            self._catch_up(plan, sample)
            return len(take(self.pool, found)) == count

        await_true(all_told)
        return found

    def _catch_up(self, plan: Mapping[int, Sequence[batches.Message]], sample: Callable[[], None]) -> None:
        for flat in self.pool.partitions.held().tolist():
            partition = int(self.pool.partitions.rows["partition"][flat])
            if not self.send(plan[partition], partition, catching_up=True).held:
                self.pool.partitions.release(flat)
            sample()

    def collect(self, count: int, timeout_s: float = PATIENCE_S) -> dict[int, int]:
        """Error codes by sequence, of the next `count` outcomes."""
        found: dict[int, int] = {}
        await_true(lambda: len(take(self.pool, found)) >= count, timeout_s)
        assert len(found) == count
        return found

    def consume(self, partitions: int, count: int, topic: str = "t") -> list[Message]:
        """The first `count` records of a topic, by partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "test", "log_level": 0})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        records: list[Message] = []
        try:
            await_true(lambda: len(fetch(consumer, records)) >= count)
        finally:
            consumer.close()
        return sorted(records, key=lambda record: (record.partition(), record.offset()))


def take(pool: Pool, found: dict[int, int]) -> dict[int, int]:
    """Add the pool's new outcomes; no message may have two."""
    outcomes = pool.collect()
    for sequence, code in pairs(outcomes):
        assert sequence not in found
        found[sequence] = code
    return found


def pairs(outcomes: Outcomes) -> Iterator[tuple[int, int]]:
    """(sequence, code)."""
    return zip(outcomes.sequence.tolist(), outcomes.code.tolist(), strict=True)


def fetch(consumer: Consumer, records: list[Message]) -> list[Message]:
    """Add the records that are there."""
    for record in consumer.consume(10_000, 0.1):
        assert record.error() is None
        records.append(record)
    return records


def await_true(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Ask until it is so; fail when it takes too long."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@contextmanager
def connected(
    embedded: EmbeddedKafka,
    topics: Sequence[bytes] = (b"t",),
    /,
    *,
    reports_at_once: int = 1 << 16,
    **settings: Any,
) -> Iterator[ProducerFixture]:
    """A producer with these fields of DispatchOptions; `kafka` adds librdkafka properties."""
    properties = {"bootstrap.servers": embedded.bootstrap_servers, **settings.pop("kafka", {})}
    options = DispatchOptions(kafka=properties, **settings)
    producer = ProducerFixture(embedded.bootstrap_servers, topics, options, reports_at_once)
    try:
        yield producer
    finally:
        producer.client.close()


def in_flight(producer: ProducerFixture) -> npt.NDArray[np.int64]:
    """Messages in flight by broker index."""
    return producer.pool.brokers.rows["messages"].copy()


def produce_bytes(servers: str, topic: str, headers: Headers) -> None:
    """One record, to partition 0, whose headers have names of any bytes: confluent_kafka takes text only."""
    library, conf = load(), load().conf_new()
    set_properties(library.conf_set, conf, {"bootstrap.servers": servers})
    client = library.new(PRODUCER, conf, ctypes.create_string_buffer(512), 512)
    number = library.topic_new(client, topic.encode(), None)
    texts = [tuple(map(ctypes.create_string_buffer, header)) for header in headers]
    arguments = [(Vtype.RKT, number), (Vtype.PARTITION, 0), (Vtype.MSGFLAGS, COPY_MESSAGE)]
    arguments += [
        (Vtype.HEADER, ctypes.addressof(name), ctypes.addressof(value), len(value) - 1)
        for name, value in texts
    ]
    table = np.zeros((len(arguments), 9), np.int64)
    for row, words in enumerate(arguments):
        table[row, : len(words)] = words
    assert library.produceva(client, address_of(table), len(table)) is None
    assert library.flush(client, int(PATIENCE_S * 1000)) == 0
    library.topic_destroy(number)
    library.destroy_flags(client, 0)
