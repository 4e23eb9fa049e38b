"""Messages handed over arrive as they were sent, in order, and come back as outcomes."""

from __future__ import annotations

import os
import select
import time
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Message as Record

from dispatch.client import Cluster
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.tables import NO_SEQUENCE, State
from tests.dispatch.batches import Message, build_batch
from tests.dispatch.fixture import PATIENCE_S, await_true, connected, in_flight, pairs, take

PRODUCE = 0


def number(record: Record) -> int:
    """The sequence in a record's header."""
    headers: Any = record.headers()
    return int.from_bytes(headers[0][1][16:], "big")


def test_a_broker_that_is_down_holds_back_only_its_own(kafka: EmbeddedKafka) -> None:
    """The others' messages arrive; its own fill its window, wait, and go in order after it is up again."""
    with connected(kafka, window_messages=20) as producer:
        down = int(producer.client.fetch_cluster([b"t"], 5).topics[b"t"][0])
        kafka.down(down)
        first = producer.send([Message(i, 0, b"v") for i in range(50)], partition=0)
        assert (first.sent, first.held) == (20, 30)
        assert producer.send([Message(100 + i, 0, b"v") for i in range(20)], partition=1).sent == 20
        assert set(producer.collect(20)) == set(range(100, 120))
        row = producer.pool.brokers.rows[producer.pool.brokers.indexes[down]]
        assert (row.messages, row.bytes) == (20, 20)
        await_true(lambda: producer.state(down) == State.STALLED)
        # The live path leaves a held partition alone, whatever its window says.
        assert producer.send([Message(200, 0, b"late")], partition=0).held == 1
        assert producer.held_from(0) == 20
        assert producer.pool.lowest_in_flight()[producer.flat(0)] == 0
        assert producer.pool.lowest_in_flight()[producer.flat(1)] == NO_SEQUENCE
        kafka.up(down)
        rest = [*(Message(i, 0, b"v") for i in range(50)), Message(200, 0, b"late")]
        assert producer.deliver({0: rest}) == dict.fromkeys([*range(50), 200], 0)
        assert [number(record) for record in producer.consume(1, 51)] == [*range(50), 200]


def test_a_partition_without_a_leader_is_held(kafka: EmbeddedKafka) -> None:
    """Its messages wait from the first on, the others of the same batch go."""
    with connected(kafka) as producer:
        cluster = producer.client.fetch_cluster([b"t"], 5)
        leaders = cluster.topics[b"t"].copy()
        leaders[2] = -1
        producer.pool.set_cluster(Cluster(cluster.brokers, {b"t": leaders}))
        batch = build_batch(producer.topics, [Message(i, 0, b"v") for i in range(4)])
        flats = producer.pool.partitions.flats[0][[2, 1, 2, 1]]
        assert producer.pool.send(batch, flats)[:2] == (2, 2)
        assert set(producer.collect(2)) == {1, 3}
        assert producer.pool.partitions.held().tolist() == [producer.flat(2)]
        assert producer.held_from(2) == 0


def test_a_broker_that_backs_off_is_given_nothing(kafka: EmbeddedKafka) -> None:
    """Its partitions are held, and go on when it is healthy again."""
    with connected(kafka) as producer:
        broker = int(producer.client.fetch_cluster([b"t"], 5).topics[b"t"][0])
        until = time.monotonic_ns() + 10**12
        producer.pool.brokers.back_off(broker, until)
        assert producer.send([Message(0, 0, b"v")], partition=0)[:2] == (0, 1)
        producer.pool.brokers.observe(until, set())
        assert producer.send([Message(0, 0, b"v")], partition=0, catching_up=True).sent == 1
        assert producer.collect(1) == {0: 0}


def test_a_too_large_message_is_refused_alone(kafka: EmbeddedKafka) -> None:
    """Its outcome is MSG_SIZE_TOO_LARGE; those before and after it in the partition are delivered."""
    with connected(kafka, kafka={"message.max.bytes": "2000"}) as producer:
        handed = producer.send(
            [Message(0, 0, b"a"), Message(1, 0, bytes(3000)), Message(2, 0, b"b")], partition=0
        )
        assert handed[:3] == (2, 0, 1)
        assert producer.pool.unsettled().sum() == 3
        assert producer.collect(3) == {0: 0, 1: Code.MSG_SIZE_TOO_LARGE, 2: 0}
        assert producer.pool.unsettled().sum() == 0
        assert not producer.pool.partitions.held().size


@pytest.mark.parametrize("code", [Code.MSG_SIZE_TOO_LARGE, Code.INVALID_RECORD, Code.INVALID_TIMESTAMP])
def test_errors_from_the_broker_come_back_with_their_code(kafka: EmbeddedKafka, code: Code) -> None:
    """Each message of a refused request has its own outcome, and the next one is sent."""
    kafka.errors(PRODUCE, [code])
    with connected(kafka) as producer:
        producer.send([Message(i, 0, b"v") for i in range(5)], partition=0)
        assert producer.collect(5) == dict.fromkeys(range(5), code)
        assert producer.pool.brokers.rows["failed"].sum() == 5
        producer.send([Message(5, 0, b"v")], partition=0)
        assert producer.collect(1) == {5: 0}


def test_a_forbidden_topic_is_held_until_metadata_says_otherwise(kafka: EmbeddedKafka) -> None:
    """librdkafka itself refuses what follows the first report, and takes it after a refresh."""
    kafka.errors(PRODUCE, [Code.TOPIC_AUTHORIZATION_FAILED])
    with connected(kafka) as producer:
        producer.send([Message(0, 0, b"v")], partition=0)
        assert producer.collect(1) == {0: Code.TOPIC_AUTHORIZATION_FAILED}
        messages = [Message(1, 0, b"v")]
        assert producer.send(messages, partition=0).error == Code.TOPIC_AUTHORIZATION_FAILED
        producer.refresh()
        assert producer.deliver({0: messages}) == {1: 0}


def test_a_transient_error_never_reaches_us(kafka: EmbeddedKafka) -> None:
    """librdkafka retries NotEnoughReplicas by itself."""
    kafka.errors(PRODUCE, [19, 19])
    with connected(kafka, kafka={"retry.backoff.ms": "10"}) as producer:
        producer.send([Message(0, 0, b"v")], partition=0)
        assert producer.collect(1) == {0: 0}


def test_no_report_is_lost_with_little_room(kafka: EmbeddedKafka) -> None:
    """With room for three at a time, 1,000 reports come in portions of at most three, each once."""
    with connected(kafka, reports_at_once=3) as producer:
        producer.send([Message(i, 0, b"v") for i in range(1000)], partition=0)
        done: dict[int, int] = {}
        portions = []

        def all_told() -> bool:
            before = len(done)
            take(producer.pool, done)
            portions.append(len(done) - before)
            return len(done) == 1000

        await_true(all_told)
        assert max(portions) == 3
        assert done == dict.fromkeys(range(1000), 0)


def test_more_says_that_the_queue_was_not_read_to_its_end(kafka: EmbeddedKafka) -> None:
    """No wake-up comes for what stays in a queue; collecting while there is more, then waiting, gets all."""
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    with connected(kafka, reports_at_once=5, kafka={"linger.ms": "100"}) as producer:
        producer.client.library.queue_io_event_enable(
            producer.client.queue, wake, (1).to_bytes(8, "little"), 8
        )
        producer.send([Message(i, 0, b"v") for i in range(1002)], partition=0)
        done: dict[int, int] = {}
        while len(done) < 1002:
            assert select.select([wake], [], [], PATIENCE_S)[0], "waited in vain"
            os.eventfd_read(wake)
            more = True
            while more:
                outcomes = producer.pool.collect()
                done.update(pairs(outcomes))
                more = outcomes.more
                assert more == (len(outcomes.sequence) == 5)
        assert done == dict.fromkeys(range(1002), 0)
    os.close(wake)


def test_leadership_moves_take_what_is_in_flight_along(kafka: EmbeddedKafka) -> None:
    """The new leader's window carries it, the reports arrive, and the sums end at zero."""
    with connected(kafka, kafka={"topic.metadata.refresh.interval.ms": "100"}) as producer:
        old = int(producer.client.fetch_cluster([b"t"], 5).topics[b"t"][0])
        new = 1 + old % 3
        kafka.rtt(old, 300)
        producer.send([Message(i, 0, b"v") for i in range(10)], partition=0)
        kafka.leader("t", 0, new)
        producer.refresh()
        indexes = producer.pool.brokers.indexes
        assert in_flight(producer)[indexes[old]] == 0
        assert in_flight(producer)[indexes[new]] == 10
        assert producer.collect(10) == dict.fromkeys(range(10), 0)
        assert in_flight(producer).sum() == 0
        assert producer.pool.brokers.rows["bytes"].sum() == 0


def test_topics_and_partitions_may_grow_while_messages_are_out(kafka: EmbeddedKafka) -> None:
    """Flat numbers stay, new ones follow; a message in flight is reported under its own."""
    kafka.topic("u", 2)
    with connected(kafka, [b"t", b"u"]) as producer:
        before = producer.pool.partitions.flats[:2].copy()
        producer.send([Message(0, 1, b"v")], partition=1)
        cluster = producer.client.fetch_cluster([], 5)
        grown = np.concatenate([cluster.topics[b"u"], np.array([1, 2, 3], np.int32)])
        producer.pool.set_cluster(Cluster(cluster.brokers, {**cluster.topics, b"u": grown, b"new": grown}))
        after = producer.pool.partitions.flats
        assert (after[0, :6] == before[0, :6]).all()
        assert (after[1, :2] == before[1, :2]).all()
        assert sorted(after[after >= 0].tolist()) == list(range(producer.pool.partitions.count))
        assert producer.pool.partitions.partitions_of[:3].tolist() == [6, 5, 5]
        outcome = producer.pool.collect()
        while not len(outcome.sequence):
            outcome = producer.pool.collect()
        assert outcome.flat.tolist() == [before[1, 1]]


def test_a_new_producer_takes_over(kafka: EmbeddedKafka) -> None:
    """Messages in flight come back as PURGE_INFLIGHT, in log order; then the pool sends again."""
    with connected(kafka) as producer:
        kafka.down()
        producer.send([Message(i, 0, b"v") for i in range(9)], partition=0)
        lost = producer.pool.rebuild()
        assert lost.sequence.tolist() == list(range(9))
        assert set(lost.code.tolist()) == {Code.PURGE_INFLIGHT}
        assert in_flight(producer).sum() == 0
        kafka.up()
        producer.refresh()
        assert producer.send([Message(i, 0, b"v") for i in range(9)], partition=0).sent == 9
        assert producer.collect(9) == dict.fromkeys(range(9), 0)


def test_the_flight_table_grows_with_what_is_out(kafka: EmbeddedKafka) -> None:
    """More messages than the first table holds are out at once, and each has its outcome."""
    count = 40_000
    with connected(kafka, window_messages=count, kafka={"linger.ms": "500"}) as producer:
        messages = [Message(i, 0, b"v") for i in range(count)]
        for first in range(0, count, 10_000):
            assert producer.send(messages[first : first + 10_000], partition=0).sent == 10_000
        assert producer.pool.flight.count + len(producer.pool.collect().sequence) >= count - 10_000
        await_true(lambda: producer.pool.collect().more or producer.pool.flight.count == 0)
