"""`brucectl drain`: in one sentence, why it cannot go on, and its exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.storage.lock import Lock
from tests.cli.program import run
from tests.cli.replay.test_drain import datagrams, drained
from tests.daemon import RunningBruce

pytestmark = pytest.mark.crash


@pytest.mark.long
def test_no_kafka(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """No broker within the time: exit code 3, in the daemon or without it, and everything stays in place."""
    kafka.down()
    bruce.send(datagrams(50))
    bruce.await_status(
        lambda s: s.watermarks.synced == 50 and not any(broker.state == "healthy" for broker in s.brokers)
    )
    report = drained(bruce, "--timeout", 3, code=3)
    # All of them, including those in which the drain looked for the deliverer.
    assert report["seconds"] >= 3
    assert (report["drained"], report["reachable"], report["backlog"]) == (False, False, 50)
    bruce.kill9()
    done = run("drain", "--timeout", 2, environ=bruce.environ)
    assert done.returncode == 3
    assert done.stdout.startswith("not drained, no broker can be reached (127.0.0.1:")
    assert ": 0 messages delivered" in done.stdout
    assert bruce.status().backlog == 50
    kafka.up()
    assert drained(bruce)["delivered"] == 50


def test_no_time_at_all(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """`--timeout 0` asks no broker, and names none: exit code 1, and everything is left."""
    kafka.down()
    bruce.send(datagrams(20))
    bruce.await_status(lambda s: s.watermarks.synced == 20)
    bruce.kill9()
    kafka.up()
    done = run("drain", "--timeout", 0, environ=bruce.environ)
    assert done.returncode == 1
    assert done.stdout.startswith("not drained, the time is over: 0 messages delivered in")
    assert drained(bruce)["delivered"] == 20


def test_an_embedded_kafka_needs_its_daemon(tmp_path: Path) -> None:
    """Without a daemon an embedded Kafka has no one to read it: one sentence, exit code 2."""
    bruce = RunningBruce(tmp_path, "embedded")
    with bruce:
        bruce.send(datagrams(20))
        bruce.await_status(lambda s: s.delivered == 20)
        assert drained(bruce)["by_daemon"] is True
        bruce.kill9()
        done = run("drain", environ=bruce.environ)
    assert done.returncode == 2
    assert done.stderr.startswith("the embedded Kafka lives and dies with `bruce run`")
    assert done.stderr.count("\n") == 1


def test_somebody_else_delivers(bruce: RunningBruce) -> None:
    """There is one deliverer at a time: the holder of `delivery/owner` is named, exit code 1."""
    bruce.stop()
    owner = Lock(bruce.spool / "delivery/owner", "delivering")
    done = run("drain", environ=bruce.environ)
    owner.release()
    assert done.returncode == 1
    assert f"delivery/owner is held by process {os.getpid()}" in done.stderr


def test_no_spool(tmp_path: Path) -> None:
    """A directory without a spool is named, exit code 3; nothing is made there."""
    done = run("drain", "--spool", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{tmp_path}/nowhere holds no spool; see [spool] directory\n"
    assert not (tmp_path / "nowhere").exists()
