"""`brucectl drain --stop-intake`: senders wait while it lives, and not longer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.program import run
from tests.daemon import PATIENCE_S, ROOT, RunningBruce

PROGRAM = "from cli.app import brucectl; brucectl()"


@contextmanager
def draining(bruce: RunningBruce) -> Iterator[subprocess.Popen[bytes]]:
    """`brucectl drain --stop-intake`, once the daemon has stopped its intake."""
    before = bruce.logged("has stopped the intake")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "drain", "--stop-intake", "--json"],
        cwd=ROOT,
        env=bruce.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        bruce.await_true(lambda: bruce.logged("has stopped the intake") > before)
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def sending(bruce: RunningBruce, count: int) -> Iterator[None]:
    """Send this many messages meanwhile; at the end all of them were taken."""
    thread = threading.Thread(target=bruce.send, args=([encode(b"t", b"%d" % n) for n in range(count)],))
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def fill_socket(bruce: RunningBruce) -> int:
    """Send until the socket takes no more; returns the number."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(str(bruce.socket))
        for number in range(100_000):
            try:
                sender.send(encode(b"t", b"%d" % number))
            except BlockingIOError:
                return number
    raise AssertionError("the socket takes everything")


@pytest.mark.crash
def test_nothing_is_received_meanwhile(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Senders wait in the socket, even if the worker is replaced; at the end the spool is empty."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n) for n in range(100))
    with draining(bruce) as process:
        done = run("drain", "--stop-intake", environ=bruce.environ)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"hold is held by process {process.pid}: it is already stopping the intake" in done.stderr
        os.kill(next(w.pid for w in bruce.status().workers if w.role == "ingest"), signal.SIGKILL)
        bruce.await_true(lambda: bruce.logged("has stopped the intake") == 2)
        waiting = fill_socket(bruce)
        assert bruce.status().received == 100
        shown = run("status", environ=bruce.environ).stdout
        assert "note\t`brucectl drain --stop-intake` has stopped the intake: senders wait" in shown
        kafka.up()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    report = json.loads(out)
    assert (report["drained"], report["left"], report["backlog"], report["by_daemon"]) == (True, 0, 0, True)
    assert report["delivered"] == 100
    bruce.await_status(lambda s: s.delivered == 100 + waiting)
    bruce.await_true(lambda: bruce.logged("the intake goes on") == 1)
    assert not bruce.status().held


@pytest.mark.long
@pytest.mark.crash
def test_the_intake_goes_on_by_itself(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A drain that was killed, or one that is stopped, does not stop the intake for long."""
    kafka.down()
    bruce.send([encode(b"t", b"first")])
    for round_, number in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        with draining(bruce) as process, sending(bruce, 1000):
            process.send_signal(number)
            bruce.await_status(lambda s, sent=1 + 1000 * round_: s.received == sent)


@pytest.mark.long
def test_ctrl_c_and_time_over(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """The drain ends, the intake goes on at once, and the remaining messages are reported."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n) for n in range(50))
    with draining(bruce) as process, sending(bruce, 2000):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
    bruce.await_status(lambda s: s.received == 2050)
    done = run("drain", "--stop-intake", "--timeout", 3, "--json", environ=bruce.environ)
    assert done.returncode == 3
    assert json.loads(done.stdout)["left"] == 2050


@pytest.mark.long
def test_a_stop_of_the_daemon_meanwhile(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """SIGTERM still empties the socket: messages that a sender knows to be taken are in the spool."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n) for n in range(50))
    with draining(bruce):
        waiting = fill_socket(bruce)
        assert bruce.stop() == 0
    assert bruce.status().received == 50 + waiting
