"""A thousand programs at once, none of which waits, and one that dies: by datagrams, UNIX streams and TCP."""

from __future__ import annotations

import resource
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import PATIENCE_S, ROOT, RunningBruce, consume, free_port
from tests.router.outlet import keyed, numbers

SENDERS, EACH, PARTITIONS = 1000, 5, 2


ENDLESS = """
import itertools, socket, sys
from tests.router.outlet import keyed
sender = socket.socket(fileno=int(sys.argv[1]))
sender.setblocking(True)
for number in itertools.count(1):
    (message,) = keyed(1, first=number - 1)
    sender.sendall(message)
    print(number, flush=True)
"""
"""A program that sends on the socket that it is handed, and says how many messages have left it."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def port() -> int:
    """The port of the TCP input."""
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


@pytest.mark.sample("datagram", "stream")
@pytest.mark.parametrize("kind", ["datagram", "stream", "tcp"])
def test_a_sender_that_dies(kafka: EmbeddedKafka, bruce: RunningBruce, port: int, kind: str) -> None:
    """SIGKILL in the midst of sending: what had left it is in Kafka once; what had begun is unclean."""
    with connect(bruce, port, kind) as given:
        command = [sys.executable, "-c", ENDLESS, str(given.fileno())]
        sender = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, pass_fds=[given.fileno()]
        )
    with sender:
        assert sender.stdout
        told = [int(next(sender.stdout)) for _ in range(500)]
        sender.kill()
        told += map(int, sender.stdout)
    left = told[-1]
    with connect(bruce, port, "datagram") as other:
        # The queue of the socket may still be full of the dead sender's messages.
        other.settimeout(PATIENCE_S)
        other.send(*keyed(1, first=left + 1))

    def found() -> list[int]:
        return numbers(consume(kafka.bootstrap_servers, "t", PARTITIONS, bruce.status().delivered))

    bruce.await_true(lambda: left + 1 in found())
    bruce.await_true(lambda: {*range(left)} <= {*found()})
    # The last one may have left, or not, without a word of it.
    assert sorted(found()) in ([*range(left), left + 1], [*range(left + 2)])
    assert bruce.status().discarded in ({}, {"unclean": 1})
