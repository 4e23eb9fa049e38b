"""The room that many messages leave for others: a flood of one topic, and the backlog of an outage.

The order that counts is Kafka's: the topics stamp each record with the time at which it was appended.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.cimpl import NewTopic

from router.timing import OUTAGE_S
from tests.daemon import RunningBruce, consume, halt
from tests.real_kafka.test_bruce import check_all_there, check_totals
from tests.real_kafka.test_network import pids
from tests.router.outlet import anywhere, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

PARTITIONS = 2
PATIENCE_S = 120.0
WINDOW = 64 << 10
VALUE_BYTES = 1000
"""The bytes of a message's value, at least."""
FLOOD, OTHERS, KNOWN = 15_000, 60, 12
FLOOD_BYTES = 4000
"""The bytes of a flood value: 60 MB in all. A turn of a pass takes 8 MiB, and others may wait for some."""
CAP = 16 << 10
BACKLOG, LIVE = 4000, 1000
"""Messages: four minutes of the backlog's pace, and one."""


@pytest.fixture
def topics(kafka1: KafkaCluster) -> list[bytes]:
    """Two new topics, whose records bear the time of the append."""
    names = [f"{name}-{uuid.uuid4().hex}" for name in ("many", "few")]
    config = {"message.timestamp.type": "LogAppendTime"}
    make_topics(kafka1.bootstrap, [NewTopic(name, PARTITIONS, config=config) for name in names])
    return [name.encode() for name in names]


def records(cluster: KafkaCluster, topic: bytes, count: int) -> list[Message]:
    """All of a topic, at least `count`."""
    return consume(cluster.bootstrap, topic.decode(), PARTITIONS, count, PATIENCE_S)


@pytest.mark.parametrize("messages", [keyed, anywhere])
def test_a_flood_does_not_hold_up_others(
    kafka1: KafkaCluster, tmp_path: Path, topics: list[bytes], messages: Callable[..., list[bytes]]
) -> None:
    """Behind 60 MB of one topic in the log, all of another are in Kafka before half of those are."""
    many, few = topics
    with RunningBruce(
        tmp_path, kafka1.bootstrap, segment_bytes=4 << 20, settings={"dispatch": {"window_bytes": 1 << 20}}
    ) as bruce:
        # Topics that are known, and brokers that take what they get: this is no outage.
        bruce.send([*messages(KNOWN, topic=many), *messages(KNOWN, topic=few)])
        bruce.await_status(lambda s: s.delivered == 2 * KNOWN, PATIENCE_S)
        deliverer = pids(bruce)["delivery"]
        halt(deliverer)
        bruce.send(messages(FLOOD - KNOWN, topic=many, first=KNOWN, bytes_each=FLOOD_BYTES))
        bruce.send(messages(OTHERS - KNOWN, topic=few, first=KNOWN))
        bruce.await_status(lambda s: s.received == FLOOD + OTHERS, PATIENCE_S)
        os.kill(deliverer, signal.SIGCONT)
        seen = bruce.await_status(lambda s: s.delivered == FLOOD + OTHERS, PATIENCE_S)
        check_totals(seen)
    flood, others = records(kafka1, many, FLOOD), records(kafka1, few, OTHERS)
    last = max(record.timestamp()[1] for record in others)
    before = sum(record.timestamp()[1] <= last for record in flood)
    assert before < FLOOD // 2
    check_all_there(flood, FLOOD)
    check_all_there(others, OTHERS)


class Meter:
    """How many records of a topic Kafka has, and how many it may have by now."""

    def __init__(self, cluster: KafkaCluster, topic: bytes) -> None:
        self._consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "meter"})
        self._partitions = [TopicPartition(topic.decode(), number) for number in range(PARTITIONS)]
        self._at, self._before = 0.0, 0

    def count(self) -> int:
        """Records by now."""
        return sum(self._consumer.get_watermark_offsets(p, timeout=60)[1] for p in self._partitions)

    def begin(self, before: int) -> None:
        """From here on the pace counts; Kafka has `before` records at most that it does not count for."""
        self._at, self._before = time.monotonic(), before

    def most(self) -> float:
        """The bucket's content and its refill since, and the message that emptied it."""
        return self._before + CAP * (1 + time.monotonic() - self._at) / VALUE_BYTES + 1

    def watch(self, until: int) -> int:
        """Hold Kafka's count to the pace until it has this many records; their number."""
        end = time.monotonic() + PATIENCE_S
        while (found := self.count()) < until:
            assert found <= self.most()
            assert time.monotonic() < end, f"{found} of {until} records"
            time.sleep(0.05)
        assert found <= self.most()
        return found

    def close(self) -> None:
        """Ask no more."""
        self._consumer.close()


@pytest.fixture
def meter(kafka1: KafkaCluster, topics: list[bytes]) -> Iterator[Meter]:
    """The meter of the first topic."""
    made = Meter(kafka1, topics[0])
    yield made
    made.close()


def test_a_backlog_keeps_its_pace(
    kafka1: KafkaCluster, tmp_path: Path, topics: list[bytes], meter: Meter
) -> None:
    """After an outage, and after a SIGKILL: at no time has Kafka more of it than the pace allows.

    Live messages go meanwhile, more bytes than the pace has room for; without a pace all the rest goes.
    """
    backlog, live = topics
    paced = {"dispatch": {"window_bytes": WINDOW, "catch_up_bytes_per_second": CAP}}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=paced) as bruce:
        sent = bruce.send(keyed(12, topic=backlog, bytes_each=VALUE_BYTES))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        kafka1.freeze(1)
        sent += bruce.send(keyed(BACKLOG, topic=backlog, first=sent, bytes_each=VALUE_BYTES))
        seen = bruce.await_status(
            lambda s: s.received == sent and s.brokers[0].state == "stalled", PATIENCE_S
        )
        stalled_at = time.monotonic()
        bruce.await_true(lambda: time.monotonic() > stalled_at + OUTAGE_S)
        assert seen.brokers[0].in_flight <= WINDOW / VALUE_BYTES
        meter.begin(before=12 + WINDOW // VALUE_BYTES)
        kafka1.thaw(1)
        found = meter.watch(12 + 2 * WINDOW // VALUE_BYTES)
        # New messages are no backlog.
        bruce.send(keyed(LIVE, topic=live, bytes_each=VALUE_BYTES))
        records(kafka1, live, LIVE)
        meter.watch(found)

        bruce.kill9()
        # The broker may still take what was on its way.
        meter.begin(before=meter.count() + WINDOW // VALUE_BYTES)
        bruce.start()
        found = meter.watch(meter.count() + 2 * CAP // VALUE_BYTES)
        assert found < BACKLOG
        check_totals(bruce.status())
        bruce.configure({"dispatch": {"catch_up_bytes_per_second": 0}})
        bruce.tell(signal.SIGHUP)
        bruce.await_status(lambda s: s.delivered == sent + LIVE, PATIENCE_S)
    check_all_there(records(kafka1, backlog, sent), sent)
    check_all_there(records(kafka1, live, LIVE), LIVE)
    assert len(set(numbers(records(kafka1, live, LIVE)))) == LIVE
