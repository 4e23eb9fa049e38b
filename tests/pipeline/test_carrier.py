"""What one task carries arrives once, in order, over brokers that refuse for a while; without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from pipeline.batches import to_batch
from pipeline.carrier import Carrier, Settled
from pipeline.errors import JobFailed
from tests.daemon import consume

SPOOL = bytes(range(16))
PATIENCE_S = 60.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers, and a topic of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("t", 3)]) as running:
        yield running


def load(carrier: Carrier, first: int, end: int) -> None:
    """Have messages of these numbers carried, each to the partition that its number gives."""
    numbers = np.arange(first, end)
    columns = {
        "sequence": pa.array(numbers),
        "topic": pa.array(["t"] * len(numbers)),
        "value": pa.array([b"%d" % n for n in numbers.tolist()]),
    }
    carrier.load(to_batch(columns, carrier.topics), (numbers % 3).astype(np.int32))


def test_order_is_kept_through_refusals_and_small_windows(kafka: EmbeddedKafka) -> None:
    """Some batches come back, others wait for room: each partition has its messages once, in their order."""
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, window_messages=15)
    end = time.monotonic() + PATIENCE_S
    carrier = Carrier(options, SPOOL, over=lambda: time.monotonic() > end)
    # NOT_ENOUGH_REPLICAS, INVALID_RECORD of a whole batch: none is believed before it was alone.
    kafka.errors(0, [19, 19, 87, 19])
    try:
        for first in range(0, 600, 100):
            load(carrier, first, first + 100)
        carrier.finish()
        settled = carrier.settled()
    finally:
        carrier.close()
    assert sorted(settled.sequences.tolist()) == list(range(600))
    assert not settled.reasons.any()
    records = consume(kafka.bootstrap_servers, "t", 3, 600)
    assert len(records) == 600
    for partition in range(3):
        sent = [int(record.value() or b"") for record in records if record.partition() == partition]
        assert sent == list(range(partition, 600, 3))


def test_what_does_not_come_in_order_is_refused(kafka: EmbeddedKafka) -> None:
    """Once in a number of the past, once twice the same."""
    carrier = Carrier(DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}), SPOOL)
    kafka.down(-1)
    try:
        columns = {"sequence": pa.array([5, 4]), "topic": pa.array(["t", "t"])}
        with pytest.raises(JobFailed, match="must be sorted by spool and sequence"):
            carrier.load(to_batch(columns, carrier.topics), np.zeros(2, np.int32))
    finally:
        carrier.close()


def test_what_another_attempt_wrote_down_is_told_and_not_sent(kafka: EmbeddedKafka) -> None:
    """Delivered or refused; of each spool it is asked once, when its first messages come."""
    asked = []

    def earlier(spool: bytes) -> Settled:
        asked.append(spool)
        return Settled(np.array([1, 2, 4, 99]), np.array([0, 15, 0, 0], np.int32))

    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    carrier = Carrier(options, SPOOL, earlier=earlier)
    try:
        load(carrier, 0, 3)
        load(carrier, 3, 6)
        carrier.turn_to(SPOOL[::-1])
        load(carrier, 4, 8)
        carrier.finish()
        settled = carrier.settled()
    finally:
        carrier.close()
    assert asked == [SPOOL, SPOOL[::-1]]
    told = sorted(zip(settled.sequences.tolist(), settled.reasons.tolist(), strict=True))
    assert told == [(0, 0), (1, 0), (2, 15), (3, 0), (4, 0), (4, 0), (5, 0), (5, 0), (6, 0), (7, 0)]
    sent = sorted(int(record.value() or b"") for record in consume(kafka.bootstrap_servers, "t", 3, 6))
    assert sent == [0, 3, 5, 5, 6, 7]
