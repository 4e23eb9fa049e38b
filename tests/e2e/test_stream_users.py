"""One user takes all connections of a running daemon: others are heard, and operators see its uid."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from ingest.buffers.connection_buffers import MOST_BUFFERS
from ingest.sockets.holding import DESCRIPTORS, allow_descriptors
from ingest.streams.stream_worker import SPARE_BUFFERS
from spool.format.wire import encode
from tests.daemon import RunningBruce, free_port
from tests.e2e.test_access import being

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")]

ATTACKER, HONEST = 12_001, 12_002
OVER = 200
"""More connections than there can be."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as running:
        yield running


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with a stream socket that others than root reach."""
    running = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=8 << 20)
    running.runtime.chmod(0o755)
    ingest = {"stream_socket": str(running.runtime / "stream")}
    running.configure({"ingest": ingest, "status": {"port": free_port()}})
    with running:
        running.await_status(lambda s: any(worker.role == "stream" for worker in s.workers))
        yield running


def connect(bruce: RunningBruce, uid: int) -> socket.socket:
    """A connection of another user's."""
    stream = socket.socket(socket.AF_UNIX)
    with being(uid):
        stream.connect(str(bruce.runtime / "stream"))
    return stream


def test_one_user_takes_all_connections(bruce: RunningBruce) -> None:
    """Connections closed for other users' sake are in status, discards, metrics and log, by uid and cause."""
    allow_descriptors()
    most = MOST_BUFFERS - SPARE_BUFFERS
    with ExitStack() as stack:
        old = stack.enter_context(connect(bruce, HONEST))
        for _ in range(most + OVER):
            stack.enter_context(connect(bruce, ATTACKER))
        for number in range(20):
            with connect(bruce, HONEST) as stream:
                stream.sendall(encode(b"t", b"%d" % number))
        old.sendall(encode(b"t", b"old"))
        seen = bruce.await_status(
            lambda seen: seen.delivered == 21 and seen.discarded.get("user_limit", 0) > OVER
        )
        assert set(seen.discarded) == {"user_limit"}
        refused = seen.discarded["user_limit"]
        by_uid = {one.sender: (one.received, one.discarded) for one in seen.senders}
        assert by_uid == {str(HONEST): (21, {}), str(ATTACKER): (refused, {"user_limit": refused})}
        shown = bruce.brucectl("discards", "--json", "--spool", bruce.spool).stdout
        assert "user_limit" in json.dumps(json.loads(shown))
        metrics = bruce.metrics()
        assert any("user_limit" in one and f'uid="{ATTACKER}"' in one for one in metrics.splitlines())
        (closed,) = [one for one in metrics.splitlines() if 'how="user_limit"' in one and "stream" in one]
        assert closed.startswith("bruce_connections_closed_total{")
        assert float(closed.split()[-1]) == refused
        # It has too many, or opens them too fast: the log says which came first.
        assert bruce.logged(f"uid {ATTACKER} has") + bruce.logged(f"uid {ATTACKER} opens") >= 1
        for process in [psutil.Process(bruce.pid), *psutil.Process(bruce.pid).children()]:
            assert process.num_fds() <= MOST_BUFFERS + DESCRIPTORS
    # The descriptors go with their connections.
    for process in [psutil.Process(bruce.pid), *psutil.Process(bruce.pid).children()]:
        bruce.await_true(lambda process=process: process.num_fds() < DESCRIPTORS)  # type: ignore[misc]
