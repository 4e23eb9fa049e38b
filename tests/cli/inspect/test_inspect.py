"""`brucectl inspect`: on a spool, beside a daemon, on separate files; nothing is ever written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.inspecting import PROGRAM, inspect, state_of
from tests.cli.program import run
from tests.daemon import ROOT, RunningBruce


def test_nothing_is_written(layout: Layout) -> None:
    """Every file stays unchanged, also if it could not be written."""
    before = state_of(layout.directory)
    inspect("records", "--spool", layout.directory)
    inspect("verify", "--spool", layout.directory)
    assert state_of(layout.directory) == before


def test_a_closed_pipe_is_no_error(layout: Layout) -> None:
    """`records | head` ends quietly when head closes the pipe: by SIGPIPE, like cat."""
    shell = f"{' '.join(map(repr, PROGRAM))} inspect records --spool {layout.directory} | head -1"
    many = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert many.stdout.startswith(b"0\t")
    assert many.stderr == b""
    # With buffers, the error comes at the end; otherwise at the first line.
    for environ in (os.environ, {**os.environ, "PYTHONUNBUFFERED": "1"}):
        reader, closed = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*PROGRAM, "inspect", "records", "--spool", layout.directory],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environ,
            check=False,
            timeout=60,
        )
        os.close(closed)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_beside_a_daemon_at_work(bruce: RunningBruce) -> None:
    """While messages come in and go out, inspect finds exactly those there are, and no damage."""
    stop = threading.Event()
    sent: list[int] = []

    def numbered() -> Iterator[bytes]:
        while not stop.is_set():
            sent.append(1)
            # Slow enough that nothing is removed while it is read, on a fast machine too.
            time.sleep(0.001)
            yield encode(b"t", b"%d" % len(sent) + b" " * 300)

    thread = threading.Thread(target=lambda: bruce.send(numbered()))
    thread.start()
    try:
        bruce.await_status(lambda s: s.spool.segments >= 2)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            done = run("inspect", "verify", "--json", environ=bruce.environ)
            assert done.returncode == 0, done.stdout
            assert run("inspect", "records", "--limit", 100, environ=bruce.environ).stdout.count("\n") == 100
    finally:
        stop.set()
        thread.join(60)
    bruce.await_status(lambda s: s.backlog == 0 and s.received == len(sent))
    assert bruce.stop() == 0
    report = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert report["findings"] == []
    # Delivered segments go at max_bytes: a fast machine sends more than is kept.
    assert 0 < report["messages"] <= len(sent)


def test_after_a_kill(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """After a kill of everything at work, a spool is sound, and so is a read-only copy."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n + b" " * 300) for n in range(3000))
    bruce.kill9()
    before = state_of(bruce.spool)
    report = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert not report["damaged"]
    # A SIGKILL may leave a frame that was never finished.
    assert {finding["kind"] for finding in report["findings"]} <= {"torn"}
    assert len(run("inspect", "records", environ=bruce.environ).stdout.splitlines()) == report["messages"]
    assert state_of(bruce.spool) == before
    for path in [bruce.spool, *bruce.spool.rglob("*")]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    again = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert {**again, "made": report["made"]} == report
    assert state_of(bruce.spool) == before
