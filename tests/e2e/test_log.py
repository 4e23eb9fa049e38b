"""A daemon whose log cannot be written: it takes in and delivers as usual, and ends with 0."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import RunningBruce, consume
from tests.full_pipe import full_pipe

ONTO = "import os, sys; os.dup2(int(sys.argv[1]), 2); os.execv(sys.argv[2], sys.argv[2:])"
"""Starts a program with another standard error; shells have no word for a descriptor of two digits."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster for all tests of this file."""
    with EmbeddedKafka(topics=[("full", 1), ("closed", 1), ("gone", 1), ("still", 1)]) as running:
        yield running


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A full pipe that no process reads."""
    ends = full_pipe()
    yield ends
    for fd in ends:
        with suppress(OSError):
            os.close(fd)


@pytest.mark.sample("still")
@pytest.mark.parametrize("stderr", ["full", "closed", "gone", "still"])
def test_nobody_takes_the_log(
    kafka: EmbeddedKafka, tmp_path: Path, pipe: tuple[int, int], stderr: str
) -> None:
    """A full disk, no standard error at all, a pipe whose reader has gone, one whose reader does not read."""
    reader, writer = pipe
    redirect = {"full": "2>/dev/full", "closed": "0<&- 1>&- 2>&-"}.get(stderr)
    prefix = (
        ["sh", "-c", f'exec "$0" "$@" {redirect}'] if redirect else [sys.executable, "-c", ONTO, str(writer)]
    )
    if stderr == "gone":
        os.close(reader)
    topic = stderr.encode()
    settings = {"dispatch": {"unknown_topic_seconds": 0}}
    with RunningBruce(
        tmp_path, kafka.bootstrap_servers, prefix=prefix, passed=[writer], settings=settings
    ) as bruce:
        bruce.send([*(encode(topic, b"%d" % n) for n in range(100)), b"short", encode(b"no topic", b"v")])
        bruce.await_status(lambda s: s.delivered == 100 and sum(s.discarded.values()) == 2)
        # The workers' and the supervisor's messages about each of these are lost as well.
        for worker in bruce.status().workers:
            if worker.role != "supervisor" and worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
        bruce.tell(signal.SIGHUP)
        bruce.send(encode(topic, b"%d" % n) for n in range(100, 200))
        seen = bruce.await_status(lambda s: s.delivered == 200)
        assert all(worker.restarts == 1 for worker in seen.workers if worker.role in ("ingest", "keeper"))
        assert bruce.stop() == 0
    values = {record.value() for record in consume(kafka.bootstrap_servers, stderr, 1, 200)}
    assert values == {b"%d" % n for n in range(200)}
    assert b"Traceback" not in bruce.log.read_bytes()
