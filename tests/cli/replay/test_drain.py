"""`brucectl drain`, beside a daemon and in its place, after every way in which a daemon can end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from status.report import Snapshot
from tests.cli.conftest import PARTITIONS
from tests.cli.program import run
from tests.daemon import ROOT, RunningBruce, consume, halt

pytestmark = pytest.mark.crash


def datagrams(count: int, topic: bytes = b"t", start: int = 0) -> Iterator[bytes]:
    """Numbered messages."""
    return (encode(topic, b"%d" % number, partition_key=number % 7) for number in range(start, start + count))


def drained(bruce: RunningBruce, *arguments: object, code: int = 0) -> dict[str, Any]:
    """The output of `brucectl drain --json`."""
    done = run("drain", "--json", *arguments, environ=bruce.environ)
    assert done.returncode == code, done.stderr
    return dict(json.loads(done.stdout))


DRAIN = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "drain"]
ELSEWHERE = "where its own configuration says: stop it first, or leave --kafka out"


def values(kafka: EmbeddedKafka, count: int, topic: str = "t") -> list[int]:
    """The numbers that arrived, sorted."""
    return sorted(
        int(record.value()) for record in consume(kafka.bootstrap_servers, topic, PARTITIONS, count)
    )


def test_beside_a_daemon(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With a live daemon, drain waits for the daemon's work; nothing is delivered twice, or elsewhere."""
    kafka.down()
    bruce.send(datagrams(500))
    bruce.await_status(lambda s: s.watermarks.synced == 500)
    waiting = subprocess.Popen(
        [*DRAIN, "--json"], cwd=ROOT, env=bruce.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith(b"0 of 500 messages, 0/s")
        # The reason, as soon as the daemon knows it.
        lines = iter(waiting.stderr.readline, b"")
        assert any(b"/s; no broker can be reached" in line for line in lines)
        other = tmp_path / "other.toml"
        other.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:9"\n', encoding="utf-8")
        done = subprocess.run(
            [*DRAIN, "--kafka", str(other)], cwd=ROOT, env=bruce.environ, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr.decode()) == (2, f"a daemon delivers this spool, {ELSEWHERE}\n")
        kafka.up()
        out, err = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
    assert waiting.returncode == 0, err.decode()
    report = json.loads(out)
    assert (report["drained"], report["by_daemon"], report["backlog"]) == (True, True, 0)
    assert report["delivered"] == 500
    assert values(kafka, 500) == list(range(500))


def test_in_the_place_of_a_dead_daemon(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """After SIGKILL of everything the backlog is delivered, over many segments, each message once."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n + b" " * 400, partition_key=n) for n in range(3000))
    before = bruce.await_status(lambda s: s.watermarks.synced == 3000)
    assert before.spool.segments > 3
    bruce.kill9()
    kafka.up()
    report = drained(bruce)
    assert report["drained"] is True
    assert (report["delivered"], report["backlog"], report["by_daemon"]) == (3000, 0, False)
    assert values(kafka, 3000) == list(range(3000))
    assert bruce.status().delivered == 3000
    assert drained(bruce)["delivered"] == 0
    bruce.start()
    bruce.send(datagrams(10, start=3000))
    bruce.await_status(lambda s: s.delivered == 3010)
    assert values(kafka, 3010) == list(range(3010))


def stage(bruce: RunningBruce, messages: int) -> int:
    """Kill everything while a burst is in staging; returns the number of its messages.

    The keeper is stopped, so that no new segment comes; the burst that finds no room waits in staging.
    """
    keeper = next(w.pid for w in bruce.status().workers if w.role == "keeper")
    halt(keeper)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(bruce.socket))
        sender.settimeout(0.5)
        number = 0
        while number < messages:
            try:
                sender.send(encode(b"t", b"%d" % number + b" " * 20_000))
                number += 1
            except TimeoutError:
                if is_staged(bruce.status()):
                    break
    bruce.await_status(is_staged)
    # The guard may still receive, until it is dead.
    bruce.kill9()
    staged = bruce.status()
    return staged.watermarks.accepted - staged.watermarks.written


def is_staged(seen: Snapshot) -> bool:
    """Whether a burst was received and is not yet written."""
    return seen.watermarks.accepted > seen.watermarks.written


def test_what_waits_in_staging(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A burst that was received and not yet written is delivered too, in a segment made for it."""
    assert stage(bruce, 200) > 0
    accepted = bruce.status().received
    report = drained(bruce)
    assert report["drained"] is True
    after = bruce.status()
    assert (after.received, after.delivered, after.backlog) == (accepted, accepted, 0)
    assert after.watermarks.accepted == after.watermarks.written == after.watermarks.synced == accepted
    assert values(kafka, accepted) == list(range(accepted))


def test_a_copy_takes_nothing_of_its_original(
    bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """On the host of its dead original, a copy is drained of its messages; staging stays for the original."""
    assert stage(bruce, 200) > 0
    before, memory = bruce.status(), sorted(os.listdir(bruce.runtime))
    written, open_before = before.watermarks.written, before.watermarks.written - before.delivered
    copy = tmp_path / "copy"
    shutil.copytree(bruce.spool, copy)
    seen = json.loads(run("status", "--json", "--spool", copy, environ=bruce.environ).stdout)
    assert (seen["received"], seen["watermarks"]["accepted"], seen["workers"]) == (written, written, [])
    report = drained(bruce, "--spool", copy)
    assert (report["drained"], report["delivered"], report["backlog"]) == (True, open_before, 0)
    assert sorted(os.listdir(bruce.runtime)) == memory
    assert bruce.status() == before
    # A spool that was moved is the same spool, at any path.
    moved = bruce.spool.rename(bruce.spool.with_name("moved"))
    assert drained(bruce, "--spool", moved)["left"] == 0
    after = json.loads(run("status", "--json", "--spool", moved, environ=bruce.environ).stdout)
    assert (after["received"], after["backlog"]) == (before.received, 0)
    assert set(values(kafka, before.received + open_before)) == set(range(before.received))


@pytest.mark.long
def test_after_a_clean_stop(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Sealed segments are delivered as well as open ones."""
    kafka.down()
    bruce.send(datagrams(100))
    bruce.await_status(lambda s: s.watermarks.synced == 100)
    bruce.stop()
    kafka.up()
    assert drained(bruce)["delivered"] == 100
    assert values(kafka, 100) == list(range(100))


def test_a_copy_of_a_dead_host(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """`--spool` names the copy; the original stays unchanged."""
    kafka.down()
    bruce.send(datagrams(100))
    bruce.await_status(lambda s: s.watermarks.synced == 100)
    bruce.kill9()
    copy = tmp_path / "copy"
    shutil.copytree(bruce.spool, copy)
    kafka.up()
    assert drained(bruce, "--spool", copy)["delivered"] == 100
    assert bruce.status().backlog == 100
    assert values(kafka, 100) == list(range(100))


@pytest.mark.long
def test_time_is_over(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Kafka is reachable, but a leader is down, and its messages are left: exit code 1."""
    for partition in range(PARTITIONS):
        kafka.leader("t", partition, 1 if partition == 0 else 2)
    kafka.down()
    bruce.send(datagrams(70))
    bruce.await_status(lambda s: s.watermarks.synced == 70)
    bruce.kill9()
    kafka.up(2)
    # Of the partition keys 0 to 6, 0 and 4 go to partition 0.
    bruce.await_true(lambda: left(bruce, 4) == 20)


def left(bruce: RunningBruce, timeout_s: int) -> int:
    """How many messages a drain leaves that is not done in time; more, on a slow machine."""
    done = run("drain", "--json", "--timeout", timeout_s, environ=bruce.environ)
    report = json.loads(done.stdout)
    assert not report["drained"]
    assert done.returncode == (1 if report["reachable"] else 3), done.stderr
    return int(report["backlog"]) if report["reachable"] else -1


def test_the_daemon_ends_meanwhile(bruce: RunningBruce, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that watches a daemon ends with an error when the daemon ends for good."""
    from cli.replay.drain import Watch
    from cli.terminal.errors import NobodyListens
    from spool.layout import Layout

    for name, value in bruce.environ.items():
        monkeypatch.setenv(name, value)
    watch = Watch(Layout(bruce.spool), lambda _done, _total, _trouble="": None, float("inf"), absence_s=0.5)
    bruce.kill9()
    time.sleep(0.6)
    with pytest.raises(NobodyListens, match="the daemon ended while 7 messages were waiting"):
        watch._notice(7, alive=False)
