"""A trace asks the daemon by a file: no other user can plant one, and its next delivery worker reads it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from router.outcomes.trace_request import TraceRequest, events_path, request_path
from tests.cli.tracing import bruce_page, message, trace
from tests.daemon import RunningBruce


def test_it_outlives_the_delivery_worker(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """SIGKILL: the successor goes on with the same trace, and says so."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        with trace(bruce, tmp_path / "out", "--topic", "t") as found:
            bruce.send([message(b"t", 1)])
            bruce.await_true(lambda: found.has("acknowledged"))
            delivery = next(w.pid for w in bruce.status().workers if w.role == "delivery")
            os.kill(delivery, signal.SIGKILL)
            bruce.await_true(lambda: found.has("resumed"))
            bruce.send([message(b"t", 2)])
            bruce.await_true(lambda: found.has("acknowledged", 2))
        assert found.process.returncode == 0
        assert "began" not in found.names()[1:]


def test_a_file_of_somebody_else_is_not_believed(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """In a directory for everyone: a request file of another user starts nothing, root's does."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of somebody else")
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        shared = bruce_page(bruce)
        until = time.monotonic_ns() + 60 * 10**9
        for token, owner in (("theirs", 65534), ("ours", 0)):
            made = shared.with_suffix(".made")
            made.write_bytes(TraceRequest((b"t",), None, until, 1000, payload=False, token=token).encode())
            os.chown(made, owner, owner)
            made.rename(request_path(shared))
            bruce.send([message(b"t", 1)])
            delivered = 1 if token == "theirs" else 2
            bruce.await_status(lambda s, n=delivered: s.delivered == n)
            if token == "ours":
                bruce.await_true(
                    lambda: events_path(shared).exists() and b"ours" in events_path(shared).read_bytes()
                )
        assert b"theirs" not in events_path(shared).read_bytes()
