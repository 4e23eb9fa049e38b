"""`bruce run` and the embedded Kafka: killed in the middle of traffic, and what its configuration does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from status.report import Snapshot
from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

PARTITIONS = 6


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers and a topic of six partitions."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running


def check_totals(seen: Snapshot) -> None:
    """Check the sums that hold in every status."""
    assert seen.received == seen.delivered + sum(seen.discarded.values()) + seen.backlog
    marks = seen.watermarks
    assert marks.accepted >= marks.written >= marks.synced >= marks.delivered
    assert min(seen.delivered, seen.backlog) >= 0


class Traffic:
    """A thread that sends keyed messages, one by one, and counts those that were taken."""

    def __init__(self, bruce: RunningBruce, count: int, pause_s: float) -> None:
        self.sent = 0
        self._thread = threading.Thread(target=self._run, args=(bruce, count, pause_s))
        self._thread.start()

    def _run(self, bruce: RunningBruce, count: int, pause_s: float) -> None:
        for first in range(0, count, 200):
            self.sent += bruce.send(keyed(200, first=first), timeout_s=60)
            time.sleep(pause_s)

    def join(self) -> int:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.sent


def worker(bruce: RunningBruce, role: str) -> int:
    """The pid of a worker."""
    return next(w.pid for w in bruce.status().workers if w.role == role)


@pytest.mark.sample("ingest", "delivery")
@pytest.mark.crash
@pytest.mark.parametrize("role", ["ingest", "keeper", "delivery"])
def test_a_worker_is_killed(kafka: EmbeddedKafka, tmp_path: Path, role: str) -> None:
    """Five times in the middle of traffic: nothing is lost, received is exact, the totals always balance."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        traffic = Traffic(bruce, 10_000, 0.05)
        last = 0
        for _ in range(5):
            before = worker(bruce, role)
            os.kill(before, signal.SIGKILL)
            bruce.await_true(lambda before=before: worker(bruce, role) not in (0, before))  # type: ignore[misc]
            for _ in range(3):
                seen = bruce.status()
                check_totals(seen)
                assert seen.received >= last
                last = seen.received
                time.sleep(0.05)
        sent = traffic.join()
        seen = bruce.await_status(lambda s: s.delivered == sent)
        check_totals(seen)
        assert (seen.received, seen.backlog, seen.discarded) == (sent, 0, {})
        assert next(w.restarts for w in seen.workers if w.role == role) >= 5
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, sent), sent)


@pytest.mark.crash
def test_all_are_killed(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """All processes at once, several times, Kafka being away meanwhile or not."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        sent = 0
        for away in (False, True):
            if away:
                kafka.down()
            sent += bruce.send(keyed(3000, first=sent))
            seen = bruce.await_status(lambda s, sent=sent: s.received == sent)  # type: ignore[misc]
            check_totals(seen)
            bruce.kill9()
            dead = bruce.status()
            check_totals(dead)
            assert dead.received == sent
            bruce.start()
            kafka.up()
        bruce.await_status(lambda s: s.delivered == sent)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, sent), sent)


def check_complete(records: Sequence[Message], sent: int) -> None:
    """Every message is there, first appearances in order."""
    assert set(numbers(records)) == set(range(sent))
    check_order(records)


def test_a_clean_stop_leaves_nothing_in_flight(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Stopped and started again in traffic: no message comes twice."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        for part in range(3):
            bruce.send(keyed(3000, first=3000 * part))
            assert bruce.stop() == 0
            check_totals(bruce.status())
            bruce.start()
        bruce.await_status(lambda s: s.delivered == 9000)
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, 9000)
        assert sorted(numbers(records)) == list(range(9000))
        check_order(records)


# -- keys of bruce.toml
# ---------------------------------------------------------------------------------------
