"""Records with headers of their own."""

from __future__ import annotations

import numpy as np

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.records import DeadLetter
from spool.format.wire import Reason
from tests.dispatch.fixture import connected

KEYS = (None, b"key", b"k" * 300)
VALUES = (b"", b"v", b"\0" * 5000, b"w" * 70_000)


def letter(number: int) -> DeadLetter:
    """Every size of key, value and header."""
    headers = [(b"bruce-reason", b"too_large"), (b"e", b""), (b"long", b"h" * number)]
    value = VALUES[number % len(VALUES)]
    return DeadLetter(number, 1000 + number, KEYS[number % 3], value, headers, Reason.TOO_LARGE, b"t")


def test_letters_arrive_as_they_were(kafka: EmbeddedKafka) -> None:
    """Value, key or none, timestamp, headers, partition; each has an outcome under its sequence."""
    with connected(kafka) as producer:
        letters = [letter(n) for n in range(1, 61)]
        flats = producer.pool.partitions.flats[0, np.arange(60) % 3]
        assert producer.pool.post(letters, flats).tolist() == [0] * 60
        outcomes = producer.collect(60)
        assert sorted(outcomes) == [n.sequence for n in letters]
        assert producer.pool.in_flight() == 0
        found = {record.timestamp()[1]: record for record in producer.consume(3, 60)}
        for at, one in enumerate(letters):
            record = found[one.timestamp]
            assert (record.key(), record.value() or b"") == (one.key, one.value)
            headers = [(name.encode(), value or b"") for name, value in record.headers() or ()]
            assert [header for header in headers if header[0] != b"bruce-id"] == one.headers
            assert record.partition() == at % 3


def test_a_window_has_room_for_some(kafka: EmbeddedKafka) -> None:
    """A message beyond the window of its broker is not taken, and takes no row in flight."""
    with connected(kafka, window_messages=5) as producer:
        flat = producer.pool.partitions.flats[0, :1]
        codes = producer.pool.post([letter(n) for n in range(8)], np.repeat(flat, 8)).tolist()
        assert codes == [0] * 5 + [Code.QUEUE_FULL] * 3
        assert producer.pool.in_flight() == 5
        producer.collect(5)
        assert producer.pool.in_flight() == 0
