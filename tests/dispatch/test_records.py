"""Records with headers of their own."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.records import LETTER_HEADERS, Letters, store_decimal
from spool.format.batch import Topics
from spool.format.wire import Reason, reason_name
from spool.native.memory import address_of
from tests.dispatch.batches import Message, build_datagrams
from tests.dispatch.fixture import connected

KEYS = (b"", b"key", b"k" * 300)
VALUES = (b"", b"v", b"\0" * 5000, b"w" * 70_000)
NAMES = (b"t", b"no / name", b"n" * 5000)
REASONS = (Reason.TOO_LARGE, Reason.UNKNOWN_TOPIC, Reason.PARTITIONER)


def letters(first: int, count: int) -> Letters:
    """Every size of key, value and name of a topic, and some reasons; every second message of a batch."""
    numbers = range(first, first + 2 * count)
    messages = [Message(n, -1, VALUES[n % 4], KEYS[n % 3]) for n in numbers]
    batch = build_datagrams(Topics(), [NAMES[n // 3 % 3] for n in numbers], messages)
    rows = np.arange(0, 2 * count, 2)
    reasons = np.array([REASONS[n % 3] for n in rows.tolist()], np.int32)
    return Letters(batch, rows, reasons, 10 ** (rows % 13), 1_700_000_000_000 + rows)


def test_letters_arrive_as_they_were(kafka: EmbeddedKafka) -> None:
    """The datagram, its key or none, headers, partition; each has an outcome under its message's sequence."""
    with connected(kafka) as producer:
        sent, before = letters(7, 60), time.time_ns() // 1_000_000
        flats = producer.pool.partitions.flats[0, np.arange(60) % 3]
        assert producer.pool.post(sent, flats).tolist() == [0] * 60
        sequences = sent.batch.sequence[sent.rows].tolist()
        assert sorted(producer.collect(60)) == sequences
        assert producer.pool.in_flight() == 0
        found = {}
        for record in producer.consume(3, 60):
            headers = dict(record.headers() or ())
            found[int.from_bytes(headers.pop("bruce-id")[16:], "big")] = record, headers
        for at, (sequence, row) in enumerate(zip(sequences, sent.rows.tolist(), strict=True)):
            record, headers = found[sequence]
            assert (record.key(), record.value()) == (sent.batch.key(row), sent.batch.datagram(row))
            why = sent.reasons[at], sent.first_ms[at], sent.last_ms[at]
            texts = (
                reason_name(why[0]).encode(),
                NAMES[sequence // 3 % 3],
                *(b"%d" % time for time in why[1:]),
            )
            assert headers == dict(zip((name.decode() for name in LETTER_HEADERS), texts, strict=True))
            assert record.partition() == at % 3
            assert before <= record.timestamp()[1] <= time.time_ns() // 1_000_000


def test_without_a_stamp(kafka: EmbeddedKafka) -> None:
    """A dead letter has its four headers, and no id."""
    with connected(kafka, stamp=False) as producer:
        assert producer.pool.post(letters(0, 1), producer.pool.partitions.flats[0, :1]).tolist() == [0]
        producer.collect(1)
        (record,) = producer.consume(3, 1)
        assert [name.encode() for name, _ in record.headers() or ()] == list(LETTER_HEADERS)


def test_a_window_has_room_for_some(kafka: EmbeddedKafka) -> None:
    """A message beyond the window of its broker is not taken, and takes no row in flight."""
    with connected(kafka, window_messages=5) as producer:
        flat = producer.pool.partitions.flats[0, :1]
        codes = producer.pool.post(letters(0, 8), np.repeat(flat, 8)).tolist()
        assert codes == [0] * 5 + [Code.QUEUE_FULL] * 3
        assert producer.pool.in_flight() == 5
        producer.collect(5)
        assert producer.pool.in_flight() == 0


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_digits(number: int) -> None:
    """Those of any number, and nothing behind them; 0 for one below."""
    text = np.full(24, 0xEE, np.uint8)
    length = store_decimal(address_of(text), number)
    assert text.tobytes() == (b"%d" % max(number, 0)).ljust(24, b"\xee")
    assert length == len(b"%d" % max(number, 0))
