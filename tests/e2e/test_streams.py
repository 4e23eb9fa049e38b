"""Streams into a running daemon: from many at once, through SIGKILL of a worker and of all, into Kafka."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from ingest.buffers.connection_buffer import CLOSINGS
from spool.format.wire import encode
from status.report import ConnectionsView, Snapshot
from tests.daemon import RunningBruce, consume

SENDERS = 1000
PARTITIONS = 2
NOBODY = dict.fromkeys(CLOSINGS, 0)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with a stream socket."""
    running = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=1 << 20)
    running.configure(limit(running, 500_000))
    with running:
        running.await_true(lambda: worker_of(running, "stream") > 0)
        yield running


def limit(bruce: RunningBruce, size: int) -> dict[str, dict[str, object]]:
    """The configuration with this size limit of messages."""
    ingest = {"stream_socket": str(bruce.runtime / "stream"), "max_stream_message_bytes": size}
    return {"ingest": ingest, "dispatch": {"drain_seconds": 60}}


def worker_of(bruce: RunningBruce, role: str) -> int:
    """The pid of a worker."""
    return next((w.pid for w in bruce.status().workers if w.role == role), 0)


def counted(seen: Snapshot) -> ConnectionsView:
    """The daemon's counts of its UNIX stream connections."""
    (found,) = (one.connections for one in seen.inputs if one.input == "stream")
    assert found
    return found


def connect(bruce: RunningBruce) -> socket.socket:
    """A connection."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(bruce.runtime / "stream"))
    return stream


def kill_stream_worker(bruce: RunningBruce) -> None:
    """SIGKILL, and wait for the successor."""
    pid = worker_of(bruce, "stream")
    os.kill(pid, signal.SIGKILL)
    bruce.await_true(lambda: worker_of(bruce, "stream") not in (0, pid))


def test_a_thousand_senders_at_once(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Each of 1,000 connections sends a message in two parts, the worker killed between: all are in Kafka."""
    sent = [encode(b"t", b"%d" % who, timestamp=1) for who in range(SENDERS)]
    senders = [connect(bruce) for _ in sent]
    # Each has had a message stored, and so is accepted and held.
    for sender, data in zip(senders, sent, strict=True):
        sender.sendall(data + data[:20])
    bruce.await_status(lambda seen: seen.received == SENDERS)
    kill_stream_worker(bruce)
    for sender, data in zip(senders, sent, strict=True):
        sender.sendall(data[20:])
        sender.close()
    seen = bruce.await_status(lambda seen: seen.delivered == 2 * SENDERS and not counted(seen).open)
    assert not seen.discarded
    # The worker that was killed had accepted them, its successor has seen them end.
    assert counted(seen) == ConnectionsView(SENDERS, 0, {**NOBODY, "clean": SENDERS}, 0)
    assert [(one.input, one.stored) for one in seen.inputs] == [
        *(("datagram", 0), ("stream", 2 * SENDERS), ("tcp", 0))
    ]
    found = [record.value() for record in consume(kafka.bootstrap_servers, "t", PARTITIONS, 2 * SENDERS)]
    assert sorted(found) == sorted([b"%d" % who for who in range(SENDERS)] * 2)


def test_a_large_message_and_its_sender(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A message that no datagram could carry is delivered; the log has the uid and pid of the client."""
    value = struct.pack(">I", 7) * 100_000
    with connect(bruce) as sender:
        sender.sendall(encode(b"t", value))
    bruce.await_status(lambda seen: seen.delivered == 1)
    (record,) = consume(kafka.bootstrap_servers, "t", PARTITIONS, 1)
    assert record.value() == value
    shown = bruce.brucectl("inspect", "records", "--json", "--spool", bruce.spool)
    assert f'"pid":{os.getpid()},'.encode() in shown.stdout.replace(b" ", b"")
    assert f'"uid":{os.getuid()},'.encode() in shown.stdout.replace(b" ", b"")


def test_killed_as_a_whole(bruce: RunningBruce) -> None:
    """Messages received whole survive SIGKILL of all processes; one that had only begun counts as unclean."""
    data = encode(b"t", b"x")
    with connect(bruce) as sender:
        sender.sendall(2 * data + data[:9])
        bruce.await_status(lambda seen: seen.received == 2)
        bruce.kill9()
        assert sender.recv(1) == b""
    bruce.start()
    seen = bruce.await_status(
        lambda seen: seen.delivered == 2 and bool(seen.discarded) and not counted(seen).open
    )
    assert (seen.received, seen.discarded) == (3, {"unclean": 1})
    assert counted(seen) == ConnectionsView(1, 0, {**NOBODY, "unclean": 1}, 0)
    assert bruce.stop() == 0
    assert not list(bruce.runtime.glob("*.lines"))


def test_another_limit(bruce: RunningBruce) -> None:
    """Lines that hold something keep their limit while the daemon lives: all workers have the same."""
    data = encode(b"t", b"x")
    with connect(bruce) as sender:
        sender.sendall(data + data[:9])
        bruce.await_status(lambda seen: seen.received == 1)
        bruce.kill9()
    bruce.configure(limit(bruce, 600_000))
    bruce.start()
    # From here on they hold nothing.
    bruce.await_status(lambda seen: seen.received == 2 and bool(seen.discarded))
    pid = worker_of(bruce, "ingest")
    os.kill(pid, signal.SIGKILL)
    bruce.await_true(lambda: worker_of(bruce, "ingest") not in (0, pid))
    with connect(bruce) as sender:
        sender.sendall(data)
    bruce.await_status(lambda seen: seen.received == 3 and seen.delivered == 2)


def test_stopped_in_order(bruce: RunningBruce) -> None:
    """At the end what was written is received, senders are refused, and what has only begun is unclean."""
    data = encode(b"t", b"x")
    with connect(bruce) as first, connect(bruce) as second:
        first.sendall(data)
        second.sendall(data + data[:5])
        assert bruce.stop() == 0
        with pytest.raises(BrokenPipeError):
            first.sendall(data)
    seen = bruce.status()
    assert (seen.received, seen.backlog, seen.discarded) == (3, 0, {"unclean": 1})
