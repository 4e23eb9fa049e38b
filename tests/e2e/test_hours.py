"""Kafka is away for hours: clocks that run ahead, from one moment to the next, while bruce runs."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers
from tools.benches.machine import Skipped, compile_c

PARTITIONS = 4
HOURS = 8
STEP_S = 300
"""The clock jumps by librdkafka's default time for a message at a time."""


class Clock:
    """How far CLOCK_MONOTONIC, and the time of day, are ahead in the processes that have `environ`."""

    def __init__(self, directory: Path) -> None:
        try:
            library = compile_c("clock_ahead", directory, shared=True)
        except Skipped as reason:
            pytest.skip(str(reason))
        self._file = directory / "ahead"
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_AHEAD_FILE": str(self._file)}
        self.set(0)

    def set(self, seconds: int, wall: int = 0) -> None:
        """In one store: whoever reads the clock meanwhile reads one or the other."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, struct.pack("<qq", seconds, wall), 0)
        os.close(fd)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """A clock of their own for programs that are started with its environment."""
    return Clock(tmp_path)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


def test_the_clock_of_the_proof_is_ahead_and_waits_are_as_long_as_before(clock: Clock) -> None:
    """Programs see the jump; a wait of a tenth of a second is one, by sleep, lock and condition."""
    clock.set(HOURS * 3600, -HOURS * 3600)
    code = """if True:
        import threading, time
        begun = time.monotonic()
        time.sleep(0.1)
        threading.Lock().acquire() and threading.Event().wait(0.1)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=0.1)
        with (condition := threading.Condition()):
            condition.wait(0.1)
        print(begun, time.monotonic() - begun, time.time(), time.time_ns() // 10**9)
    """
    environ = {**os.environ, **clock.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, timeout=60, check=True
    )
    begun, lasted, *wall = map(float, done.stdout.split())
    assert begun > time.monotonic() + (HOURS - 1) * 3600
    assert 0.4 <= lasted < 30
    assert max(wall) < time.time() - (HOURS - 1) * 3600


@pytest.mark.long
def test_hours_without_kafka(kafka: EmbeddedKafka, clock: Clock, tmp_path: Path) -> None:
    """With messages on their way to a broker that went: none comes back, none is given up, no worker ends."""
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers)
    bruce.environ |= clock.environ
    with bruce:
        sent = bruce.send(keyed(500))
        seen = bruce.await_status(lambda s: s.delivered == sent)
        workers = seen.workers
        kafka.rtt(1, 600_000)
        sent += bruce.send(keyed(3000, first=sent))
        bruce.await_status(lambda s: s.received == sent and any(b.in_flight for b in s.brokers))
        kafka.down()
        for ahead in range(STEP_S, HOURS * 3600 + 1, STEP_S):
            clock.set(ahead)
            time.sleep(0.05)
        seen = bruce.await_status(lambda s: s.trouble is not None, 60)
        assert (seen.received, seen.discarded, seen.backlog) == (sent, {}, sent - seen.delivered)
        assert seen.backlog > 0
        assert seen.workers == workers
        assert "came back with" not in bruce.log.read_text()
        kafka.rtt(1, 0)
        kafka.up()
        bruce.await_status(lambda s: s.delivered == sent, 90)
        assert bruce.status().workers == workers
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, sent)
    assert set(numbers(records)) == set(range(sent))
    check_order(records)
