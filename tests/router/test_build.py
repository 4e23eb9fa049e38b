"""Delivery that `router.build` puts together, and takes apart in time."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty
from dispatch.options import DispatchOptions
from router.build import Replay, rejection_of
from router.outcomes.rejects import Rejection
from tests.router.outlet import check_order, keyed, numbers, outlet


def test_what_is_in_flight_is_settled() -> None:
    """All that Kafka acknowledges in time is written down at the end, in order, once."""
    with EmbeddedKafka(topics=[("t", 3)]) as kafka, outlet(kafka) as running:
        running.send(keyed(500))
        running.run(lambda: running.router.handed_over == 500)
        assert running.graph.settle(time.monotonic() + 30) == 0
        assert running.acks.marked_watermark == 500
        records = running.consume("t", 3, 500)
        check_order(records)
        assert sorted(numbers(records)) == list(range(500))


def test_what_kafka_does_not_acknowledge_stays() -> None:
    """Settling ends at its deadline, and says how much is left; a restart delivers it."""
    with EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka, outlet(kafka) as running:
        running.send(keyed(50))
        running.finish()
        kafka.down()
        running.send(keyed(50, first=50))
        running.run(lambda: running.router.in_flight() > 0)
        assert running.graph.settle(time.monotonic()) > 0
        assert running.acks.marked_watermark == 50
        kafka.up()
        running.restart()
        running.finish()
        assert set(numbers(running.consume("t", 3, 100))) == set(range(100))


def test_rejection_follows_the_options() -> None:
    """The target of messages that Kafka will never take is configured."""
    options = DispatchOptions(dead_letter_topic="dead", unknown_topic_seconds=7)
    assert rejection_of(options, bytes(16)) == Rejection(b"dead", None, bytes(16), 7)


def count_wakeups() -> int:
    """The eventfds of this process."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        # One of them was that of the listing.
        with suppress(FileNotFoundError):
            count += "eventfd" in os.readlink(f"/proc/self/fd/{fd}")
    return count


def test_nothing_is_left_open() -> None:
    """Neither when it is taken apart, nor when librdkafka refuses the configuration."""
    with EmbeddedKafka(topics=[("t", 1)]) as kafka, outlet(kafka) as running:
        during = count_wakeups()
        running.kill()
        assert count_wakeups() == during - 1
        running.options = DispatchOptions(kafka={"no.such.property": "1"})
        with pytest.raises(BadProperty):
            running.start()
        assert count_wakeups() == during - 1
        running.acks.close()
        running.marks.close()


def test_a_replay_has_a_name_of_its_own() -> None:
    """And each of its records says when it was asked for."""
    replay = Replay("r", 1_700_000_000_000)
    with EmbeddedKafka(topics=[("t", 1)]) as kafka, outlet(kafka, replay=replay) as running:
        running.send(keyed(3))
        running.finish()
        for record in running.consume("t", 1, 3):
            assert dict(record.headers() or [])["bruce-replay"] == b"1700000000000"
