"""Statistics: what is measured is what was stored, on either engine."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipeline.engine import Engine
from pipeline.stats import run_stats
from spool.format.wire import encode, encode_message
from tests.spool.fixture import SpoolFixture

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 10**9


def store(spool: SpoolFixture, second: int, count: int, **message: object) -> None:
    """So many messages of a second, counted from noon."""
    datagrams = [encode(b"orders", b"v" * 10, **message) for _ in range(count)]  # type: ignore[arg-type]
    spool.append(datagrams, received_ns=NOON + second * 10**9)


def test_the_end_of_an_hour(engine: Engine, spool: SpoolFixture) -> None:
    """A message of its last tenth of a second belongs to that hour, and to that second."""
    for received_ns in (NOON - 1, NOON - 300_000_000, NOON - 500_000_000, NOON - 999_000_000, NOON):
        spool.append([encode(b"orders", b"v")], received_ns=received_ns)
    spool.step()
    (orders,) = run_stats(engine, [str(spool.options.directory)])["topics"]
    hours = [(hour["hour"], hour["messages"], hour["peak"]) for hour in orders["hours"]]
    assert hours == [("2026-03-01T11:00:00Z", 4, 4), ("2026-03-01T12:00:00Z", 1, 1)]


@pytest.mark.oldest_spark
def test_hours_peaks_sizes_and_keys(engine: Engine, spool: SpoolFixture) -> None:
    """By hour and topic: counts, bytes of keys and values, the busiest second, and the most frequent key."""
    store(spool, 0, 5, key=b"even")
    store(spool, 1, 9, key=b"hot")
    store(spool, 3599, 2, partition_key=7)
    store(spool, 3600, 4, key=b"\xff")
    spool.append([encode(b"views", b"")], received_ns=NOON)
    spool.step()
    found = run_stats(engine, [str(spool.options.directory)])
    orders, views = found["topics"]
    hours = [(hour["hour"], hour["messages"], hour["peak"]) for hour in orders["hours"]]
    assert hours == [("2026-03-01T12:00:00Z", 16, 9), ("2026-03-01T13:00:00Z", 4, 4)]
    assert (orders["messages"], orders["peak"], orders["keys"]) == (20, 9, 4)
    assert orders["bytes"] == 20 * 10 + 5 * 4 + 9 * 3 + 4 * 1
    assert (orders["median_bytes"], orders["most_bytes"]) == (13, 14)
    assert orders["top_keys"][:2] == [{"key": "hot", "messages": 9}, {"key": "even", "messages": 5}]
    assert (views["messages"], views["bytes"], views["keys"], views["top_keys"]) == (1, 0, 0, [])
    assert found["total"]["messages"] == 21


def test_tombstones_have_the_bytes_of_their_keys(engine: Engine, spool: SpoolFixture) -> None:
    """A null value has none, alone in its topic or beside others."""
    spool.append([encode_message(b"orders", None, key=b"abc"), encode_message(b"gone", None, key=b"abcd")])
    spool.append([encode(b"orders", b"v" * 10)])
    spool.step()
    found = run_stats(engine, [str(spool.options.directory)])
    gone, orders = found["topics"]
    assert (gone["bytes"], gone["median_bytes"], gone["most_bytes"]) == (4, 4, 4)
    assert (orders["bytes"], orders["most_bytes"]) == (13, 10)


def test_hours_at_the_epoch(engine: Engine, spool: SpoolFixture) -> None:
    """As of a host whose clock was not set."""
    for second in (30, 3601):
        spool.append([encode(b"orders", b"v")], received_ns=second * 10**9)
    spool.step()
    (orders,) = run_stats(engine, [str(spool.options.directory)])["topics"]
    assert [(hour["hour"], hour["messages"]) for hour in orders["hours"]] == [
        ("1970-01-01T00:00:00Z", 1),
        ("1970-01-01T01:00:00Z", 1),
    ]


def test_one_topic(engine: Engine, spool: SpoolFixture) -> None:
    """Others do not count."""
    store(spool, 0, 3)
    spool.append([encode(b"views", b"")])
    spool.step()
    found = run_stats(engine, [str(spool.options.directory)], ["views"])
    assert [topic["topic"] for topic in found["topics"]] == ["views"]
    assert found["total"]["messages"] == 1
