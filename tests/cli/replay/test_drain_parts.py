"""`brucectl drain` of some topics, killed on the way, and beside other processes that want the spool."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.conftest import PARTITIONS
from tests.cli.program import run
from tests.cli.replay.test_drain import drained, values
from tests.daemon import ROOT, RunningBruce, consume

MESSAGES = 400


def send_both(bruce: RunningBruce) -> None:
    """400 messages, to `t` and `u` in turn."""
    bruce.send(encode(b"tu"[n % 2 :][:1], b"%d" % n, partition_key=n % 7) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.watermarks.synced == MESSAGES)


@pytest.mark.crash
def test_one_topic_in_the_place_of_a_daemon(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Only the messages of that topic are delivered; the others stay for the next deliverer."""
    kafka.down()
    send_both(bruce)
    bruce.kill9()
    kafka.up()
    report = drained(bruce, "--topic", "u")
    assert (report["version"], report["drained"], report["delivered"]) == (1, True, 200)
    assert (report["left"], report["backlog"]) == (0, 200)
    assert drained(bruce, "--topic", "u")["delivered"] == 0
    assert values(kafka, 200, "u") == list(range(1, MESSAGES, 2))
    bruce.start()
    bruce.await_status(lambda s: s.backlog == 0)
    assert values(kafka, 200) == list(range(0, MESSAGES, 2))
    assert values(kafka, 200, "u") == list(range(1, MESSAGES, 2))


@pytest.mark.long
def test_one_topic_beside_a_daemon(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Drain waits for this topic alone; if it is not done in time, the output says how much is left."""
    for partition in range(PARTITIONS):
        kafka.leader("t", partition, 1)
        kafka.leader("u", partition, 2)
    kafka.down(1)
    send_both(bruce)
    report = drained(bruce, "--topic", "u")
    assert (report["drained"], report["left"]) == (True, 0)
    assert values(kafka, 200, "u") == list(range(1, MESSAGES, 2))
    assert bruce.status().backlog == 200
    done = run("drain", "--topic", "t", "--topic", "u", "--timeout", 1, environ=bruce.environ)
    assert done.returncode == 1
    assert done.stdout.startswith("not drained, ")
    assert done.stdout.endswith(" 200 left\n")


@pytest.mark.crash
def test_killed_on_the_way(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """After SIGKILL a drain of a copy goes on with the unmarked messages; no other process may deliver."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n, partition_key=n % 7) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.watermarks.synced == MESSAGES)
    bruce.kill9()
    kafka.up()
    original, bruce.spool = bruce.spool, tmp_path / "copy"
    shutil.copytree(original, bruce.spool)
    bruce.configure({"topics.t": {"rate": 2}, "spool": {"directory": str(bruce.spool)}})
    process = subprocess.Popen(
        [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "drain"],
        cwd=ROOT,
        env=bruce.environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        bruce.await_status(lambda s: 0 < s.delivered < MESSAGES)
        done = run("drain", environ=bruce.environ)
        assert done.returncode == 1
        assert done.stderr.startswith(f"process {process.pid} (brucectl drain) drains {bruce.spool} already")
        bruce.start(wait=False)
        assert bruce.await_end() == 1
        assert bruce.logged(f"is held by process {process.pid} (brucectl drain): it is already in use") == 1
    finally:
        process.kill()
        process.wait()
    before = bruce.status().delivered
    arrived = len(consume(kafka.bootstrap_servers, "t", PARTITIONS, before))
    bruce.configure({"topics.t": {"rate": 100_000}})
    report = drained(bruce)
    assert (report["drained"], report["delivered"]) == (True, MESSAGES - before)
    found = values(kafka, MESSAGES)
    assert set(found) == set(range(MESSAGES))
    assert len(found) <= arrived + MESSAGES - before


def test_a_copy_beside_its_original(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The daemon's shared state belongs to the spool's identity, and the copy may not take it: code 1."""
    kafka.down()
    send_both(bruce)
    copy = tmp_path / "copy"
    shutil.copytree(bruce.spool, copy)
    done = run("drain", "--spool", copy, environ=bruce.environ)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{copy} is a copy of a spool whose daemon lives on this host (process ")
    kafka.up()
    bruce.await_status(lambda s: s.delivered == MESSAGES)
    assert values(kafka, 200) == list(range(0, MESSAGES, 2))


@pytest.mark.crash
def test_to_another_cluster(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """`--kafka FILE` names the other cluster."""
    kafka.down()
    send_both(bruce)
    bruce.kill9()
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS), ("u", PARTITIONS)]) as other:
        file = tmp_path / "other.toml"
        file.write_text(f'[kafka]\n"bootstrap.servers" = "{other.bootstrap_servers}"\n')
        assert drained(bruce, "--kafka", file)["delivered"] == MESSAGES
        assert values(other, 200) == list(range(0, MESSAGES, 2))
