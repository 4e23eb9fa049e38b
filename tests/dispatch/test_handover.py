"""Messages are handed over as they are stored, as many as fit into their brokers' windows."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.handover import HEADER_MEMORY
from spool.format.wire import encode_message
from tests.dispatch.batches import Message, build_batch, decoded
from tests.dispatch.conftest import PARTITIONS
from tests.dispatch.fixture import UUID, await_true, connected, in_flight, take
from tests.dispatch.test_pool import number

ROOT = Path(__file__).parents[2]


def test_fifty_thousand_messages_arrive_as_sent(kafka: EmbeddedKafka) -> None:
    """Value, key, timestamp, header and partition of each; null for an empty key, an empty value kept."""
    count = 50_000
    messages = [
        Message(
            sequence=(1 << 40) + i,
            topic=0,
            value=b"" if i % 10 == 3 else b"value %d" % i,
            key=b"" if i % 4 == 1 else b"key %d" % (i % 97),
            timestamp=1_700_000_000_000 + i,
        )
        for i in range(count)
    ]
    flat_of = np.arange(count, dtype=np.int32) * 7 % PARTITIONS
    with connected(kafka) as producer:
        found: dict[int, int] = {}
        for first in range(0, count, 6000):
            part = messages[first : first + 6000]
            flats = producer.pool.partitions.flats[0][flat_of[first : first + 6000]]
            assert producer.pool.send(build_batch(producer.topics, part), flats).sent == len(part)
            take(producer.pool, found)
        await_true(lambda: len(take(producer.pool, found)) == count)
        assert found == {message.sequence: 0 for message in messages}
        assert producer.pool.flight.count == 0
        assert producer.pool.brokers.rows["acked"].sum() == count
        records = producer.consume(PARTITIONS, count)
    expected = [messages[i] for partition in range(PARTITIONS) for i in np.flatnonzero(flat_of == partition)]
    assert len(records) == count
    for record, message in zip(records, expected, strict=True):
        assert record.value() == message.value
        assert record.key() == (message.key or None)
        assert record.timestamp() == (1, message.timestamp)
        assert record.headers() == [("bruce-id", UUID + message.sequence.to_bytes(8, "big"))]


def test_headers_and_nulls_go_out_as_sent(kafka: EmbeddedKafka) -> None:
    """Each header of each message behind bruce's own, whatever the one before it had; null is not empty."""
    headers = [
        [(f"n{i}", None if i % 3 == 2 else b"v" * i) for i in range(count)] for count in (0, 3, 256, 1)
    ]
    given = [
        encode_message(b"t", value, key=key, timestamp=1, headers=headers[number % 4])
        for number, (value, key) in enumerate(itertools.product((None, b"", b"v"), (None, b"", b"k")))
    ]
    with connected(kafka) as producer:
        batch = decoded(producer.topics, given)
        flats = np.full(len(given), producer.pool.partitions.flats[0, 0], np.int32)
        assert producer.pool.send(batch, flats).sent == len(given)
        producer.collect(len(given))
        records = producer.consume(1, len(given))
        assert producer.pool.brokers.rows["bytes"].sum() == 0
    found = [(record.value(), record.key()) for record in records]
    assert found == list(itertools.product((None, b"", b"v"), (None, b"", b"k")))
    for row, record in enumerate(records):
        assert (record.headers() or [])[0][0] == "bruce-id"
        assert (record.headers() or [])[1:] == headers[row % 4]


def test_a_window_counts_the_memory_of_headers(kafka: EmbeddedKafka) -> None:
    """Small messages with 256 headers each: librdkafka has fifteen times their bytes, so fewer may be out."""
    bare = encode_message(b"t", b"v", headers=[("", None)])
    full = encode_message(b"t", b"v", headers=[("", None)] * 256)
    with connected(kafka, window_bytes=1 << 20) as producer:
        batch = decoded(producer.topics, [bare] * 50 + [full] * 200)
        flats = np.full(len(batch), producer.pool.partitions.flats[0, 0], np.int32)
        handed = producer.pool.send(batch, flats)
        each = 256 * (HEADER_MEMORY + 6) + 1
        assert handed.sent - 50 == ((1 << 20) - 50 * (HEADER_MEMORY + 7)) // each
        assert handed.held == 250 - handed.sent
        producer.collect(handed.sent)
        assert producer.pool.brokers.rows["bytes"].sum() == 0


def test_timestamps_go_out_as_sent(kafka: EmbeddedKafka) -> None:
    """Negative and extreme ones too; only 0, which librdkafka reads as "now", becomes 1."""
    given = [1, -1, -5, -(2**63), 2**63 - 1, 1_700_000_000_123, 0]
    with connected(kafka) as producer:
        producer.send([Message(i, 0, b"v", timestamp=at) for i, at in enumerate(given)], partition=0)
        producer.collect(len(given))
        records = producer.consume(1, len(given))
    assert [record.timestamp()[1] for record in records] == [*given[:-1], 1]


def test_records_are_not_stamped_unless_asked(kafka: EmbeddedKafka) -> None:
    """With stamp=False a record has no header."""
    with connected(kafka, stamp=False) as producer:
        producer.send([Message(1, 0, b"v", b"k")], partition=0)
        producer.collect(1)
        assert producer.consume(1, 1)[0].headers() is None


def test_windows_are_never_exceeded(kafka: EmbeddedKafka) -> None:
    """Sampled after every hand-over: no broker has more messages or bytes in flight than it may."""
    sizes = [10] * 2000 + [500] * 1000
    plan: dict[int, list[Message]] = {partition: [] for partition in range(PARTITIONS)}
    for sequence, size in enumerate(sizes):
        plan[sequence // 50 % PARTITIONS].append(Message(sequence, 0, bytes(size)))
    peaks: list[tuple[int, int]] = []
    with connected(kafka, window_messages=100, window_bytes=5000, kafka={"linger.ms": "1"}) as producer:
        brokers = producer.pool.brokers.rows
        done = producer.deliver(
            plan, lambda: peaks.append((brokers["messages"].max(), brokers["bytes"].max()))
        )
        assert done == dict.fromkeys(range(3000), 0)
        assert max(messages for messages, _ in peaks) == 100
        assert 4500 <= max(size for _, size in peaks) <= 5000
        assert in_flight(producer).sum() == 0
        records = producer.consume(PARTITIONS, 3000)
    for partition, messages in plan.items():
        arrived = [number(record) for record in records if record.partition() == partition]
        assert arrived == [message.sequence for message in messages]


def test_a_message_larger_than_the_window_goes_alone(kafka: EmbeddedKafka) -> None:
    """It is sent when its broker has nothing in flight, and not before."""
    with connected(kafka, window_bytes=1000) as producer:
        assert producer.send([Message(0, 0, b"small"), Message(1, 0, bytes(5000))], partition=0).sent == 1
        assert producer.held_from(0) == 1
        producer.collect(1)
        assert producer.send([Message(1, 0, bytes(5000))], partition=0, catching_up=True).sent == 1
        assert producer.collect(1) == {1: 0}


def test_rows_without_a_partition_are_left_out(kafka: EmbeddedKafka) -> None:
    """A negative flat number is neither sent nor held."""
    with connected(kafka) as producer:
        batch = build_batch(producer.topics, [Message(0, 0, b"v"), Message(1, 0, b"v")])
        assert producer.pool.send(batch, np.array([-1, producer.flat(0)], np.int32))[:3] == (1, 0, 0)
        assert producer.collect(1) == {1: 0}


def test_a_full_queue_holds_the_partition(kafka: EmbeddedKafka) -> None:
    """When librdkafka's own queue is smaller than the window nothing is lost or reordered."""
    with connected(kafka, kafka={"queue.buffering.max.messages": "10"}) as producer:
        kafka.down()
        handed = producer.send([Message(i, 0, b"v") for i in range(30)], partition=0)
        assert (handed.sent, handed.held, handed.error) == (10, 20, Code.QUEUE_FULL)
        assert producer.held_from(0) == 10
        kafka.up()
        messages = [Message(i, 0, b"v") for i in range(30)]
        assert producer.deliver({0: messages}) == dict.fromkeys(range(30), 0)
        assert [number(record) for record in producer.consume(1, 30)] == list(range(30))


def test_kernels_run_as_plain_python() -> None:
    """With NUMBA_DISABLE_JIT=1 the same code sends and collects, so that it can be stepped through."""
    code = """
from dispatch.embedded import EmbeddedKafka
from dispatch.handover import HEADER_MEMORY
from tests.dispatch.batches import Message
from tests.dispatch.fixture import connected
with EmbeddedKafka(brokers=1, topics=[("t", 2)]) as kafka, connected(kafka, window_messages=7) as producer:
    handed = producer.send([Message(i, 0, b"", b"k" * i) for i in range(10)], partition=1)
    assert handed[:2] == (7, 3), handed
    assert producer.collect(7) == dict.fromkeys(range(7), 0)
    assert producer.pool.lowest_in_flight().min() == producer.pool.lowest_in_flight().max()
    records = producer.consume(2, 7)
    assert [record.key() for record in records] == [b"k" * i or None for i in range(7)]
    assert records[3].headers()[0][1][16:] == (3).to_bytes(8, "big")
    print("fine")
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert run.stdout == "fine\n", run.stderr
