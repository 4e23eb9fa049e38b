"""A thousand programs at once, none of which waits: by datagrams, by UNIX streams and by TCP."""

from __future__ import annotations

import resource
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce, consume, free_port
from tests.router.outlet import keyed, numbers

SENDERS, EACH, PARTITIONS = 1000, 5, 2

pytestmark = pytest.mark.final


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def port() -> int:
    """Of the TCP input."""
    return free_port()


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path, port: int) -> Iterator[RunningBruce]:
    """A daemon with one input of each kind."""
    running = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=1 << 20)
    ingest = {"stream_socket": str(running.runtime / "stream"), "tcp_port": port}
    running.configure({"ingest": {**ingest, "max_stream_message_bytes": 500_000}})
    with running:
        running.await_status(lambda s: any(worker.role == "stream" for worker in s.workers))
        yield running


def connect(bruce: RunningBruce, port: int, kind: str) -> socket.socket:
    """A connection that never waits."""
    if kind == "tcp":
        made = socket.create_connection(("127.0.0.1", port))
    else:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
        made.connect(str(bruce.socket if kind == "datagram" else bruce.runtime / "stream"))
    made.setblocking(False)
    return made


@pytest.mark.parametrize("kind", ["datagram", "stream", "tcp"])
def test_a_thousand_senders(kafka: EmbeddedKafka, bruce: RunningBruce, port: int, kind: str) -> None:
    """All are connected before the first sends, and write when they can: each message is in Kafka once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    messages = keyed(SENDERS * EACH)
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for first in range(0, len(messages), EACH):
            sender = stack.enter_context(connect(bruce, port, kind))
            own = messages[first : first + EACH]
            ready.register(
                sender, selectors.EVENT_WRITE, own[::-1] if kind == "datagram" else [b"".join(own)]
            )
        while ready.get_map():
            for key, _ in ready.select(60):
                sender, left = key.fileobj, key.data
                assert isinstance(sender, socket.socket)
                try:
                    rest = left[-1][sender.send(left[-1]) :]
                except BlockingIOError:
                    continue
                left[-1:] = [rest] if rest else []
                if not left:
                    ready.unregister(sender)
    seen = bruce.await_status(lambda s: s.delivered == len(messages))
    assert (seen.received, seen.discarded, seen.backlog) == (len(messages), {}, 0)
    records = consume(kafka.bootstrap_servers, "t", PARTITIONS, len(messages))
    assert sorted(numbers(records)) == list(range(len(messages)))
