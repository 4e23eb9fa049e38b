"""`bruce hold-socket` beside a daemon: what waits in the sockets outlives every process of bruce."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from ingest.reply import WHEN_SYNCED
from spool.format.wire import encode
from tests.ack_client import Client
from tests.daemon import PATIENCE_S, ROOT, RunningBruce, consume, halt
from tests.holder import HELD, Holder

PARTITIONS = 2
WAITING = 5
"""Fewer than the kernel's own limit of a socket's queue."""
KILLS = 5
PACE_S = 0.0005


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A Kafka that outlives the daemon."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def bruce(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[RunningBruce]:
    """A daemon with a socket of every kind, not started."""
    made = RunningBruce(tmp_path, kafka.bootstrap_servers)
    made.configure(
        {
            "ingest": {
                "stream_socket": str(made.runtime / "stream.sock"),
                "ack_socket": str(made.runtime / "ack.sock"),
                "max_stream_message_bytes": 100_000,
            }
        }
    )
    yield made
    made.close()


def holder_of(bruce: RunningBruce) -> Holder:
    """Its holder, not started."""
    return Holder(bruce.config, bruce.socket, bruce.config.with_name("holder.log"), bruce.environ)


def leave_waiting(bruce: RunningBruce) -> None:
    """Put WAITING datagrams in the queue of a stopped daemon, and then kill all of it."""
    for worker in bruce.status().workers:
        if worker.role in ("supervisor", "ingest"):
            halt(worker.pid)
    bruce.send(encode(b"t", b"waiting %d" % number) for number in range(WAITING))
    bruce.kill9()


@pytest.mark.crash
def test_what_waits_in_the_queue_outlives_bruce(bruce: RunningBruce) -> None:
    """Messages in the socket when every process was killed are received; without a holder they are gone."""
    with bruce:
        leave_waiting(bruce)
        bruce.start()
        assert bruce.status().received == 0, "the control: nothing held the socket"
        assert bruce.stop() == 0
        with holder_of(bruce):
            bruce.start()
            leave_waiting(bruce)
            bruce.start()
            bruce.await_status(lambda seen: seen.received == seen.delivered == WAITING)


@pytest.mark.crash
def test_senders_notice_no_kill(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """While all of bruce is killed again and again, each send succeeds, and each message is in Kafka."""
    sent, over = [0, 0], threading.Event()

    def send(mine: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE_S)
            sender.connect(str(bruce.socket))
            while not over.wait(PACE_S):
                sender.send(encode(b"t", b"%d of %d" % (sent[mine], mine)))
                sent[mine] += 1

    senders = [threading.Thread(target=send, args=(mine,)) for mine in range(len(sent))]
    with holder_of(bruce), bruce:
        for thread in senders:
            thread.start()
        for _ in range(KILLS):
            before = bruce.status().received
            bruce.await_status(lambda seen, before=before: seen.received > before + 200)
            bruce.kill9()
            bruce.start()
        # An end in order refuses no sender, too.
        assert bruce.stop() == 0
        bruce.start()
        over.set()
        for thread in senders:
            thread.join()
        bruce.await_status(lambda seen: seen.received == sum(sent) and not seen.backlog)
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, sum(sent))
        expected = {b"%d of %d" % (number, mine) for mine in (0, 1) for number in range(sent[mine])}
        assert {record.value() for record in records} == expected


@pytest.mark.crash
def test_connections_and_requests_that_wait(bruce: RunningBruce) -> None:
    """A connection that was not accepted, and a message to ack_socket, outlive a kill and a stop, too."""
    with holder_of(bruce), bruce, Client(bruce.runtime / "ack.sock") as client:
        for round_, end in enumerate((bruce.kill9, bruce.stop), 1):
            bruce.await_true(lambda: {"stream", "ack"} <= {w.role for w in bruce.status().workers if w.pid})
            if end == bruce.kill9:
                for worker in bruce.status().workers:
                    if worker.role in ("supervisor", "ack", "stream"):
                        halt(worker.pid)
                sender = waiting_stream(bruce)
                client.send(b"v", WHEN_SYNCED, timestamp=round_)
                end()
            else:
                end()
                sender = waiting_stream(bruce)
                client.send(b"v", WHEN_SYNCED, timestamp=round_)
            bruce.start()
            bruce.await_status(lambda seen, most=2 * round_: seen.received == most)
            client.collect(lambda told, most=round_: sum(told.values()) == most)
            sender.close()


def waiting_stream(bruce: RunningBruce) -> socket.socket:
    """A connection with a message."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(bruce.runtime / "stream.sock"))
    made.sendall(encode(b"t", b"streamed"))
    return made


def test_a_reload_adds_inputs(bruce: RunningBruce) -> None:
    """bruce makes the sockets that the holder lacks, and takes them along at its end; the others stay."""
    added = bruce.runtime / "added.sock"
    with holder_of(bruce), bruce:
        with bruce.config.open("a") as file:
            file.write(f'[[input]]\ndatagram = "{added}"\n')
        bruce.tell(signal.SIGHUP)
        bruce.await_true(added.exists)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for path in (added, bruce.socket):
                sender.sendto(encode(b"t", b"v"), str(path))
        bruce.await_status(lambda seen: seen.received == 2)
        assert bruce.stop() == 0
        assert not added.exists()
        assert bruce.socket.exists()


@pytest.mark.long
def test_a_second_bruce_is_refused(bruce: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With the same sockets and another spool it names the first, and ends with 2; it gets no message.

    It may start once the first has ended.
    """
    (tmp_path / "other").mkdir()
    other = RunningBruce(tmp_path / "other", kafka.bootstrap_servers)
    other.socket = bruce.socket
    other.configure({"ingest": {"datagram_socket": str(other.socket)}})
    with holder_of(bruce), bruce, closing(other):
        other.start(wait=False)
        assert other.await_end() == 2
        assert (
            other.logged(f"process {bruce.pid} reads the sockets of bruce hold-socket, in {bruce.socket}")
            == 1
        )
        bruce.send(encode(b"t", b"v") for _ in range(WAITING))
        bruce.await_status(lambda seen: seen.received == WAITING)
        assert bruce.stop() == 0
        other.start()
        bruce.send([encode(b"t", b"v")])
        other.await_status(lambda seen: seen.received == 1)
        assert other.stop() == 0


@pytest.mark.crash
def test_the_holder_dies_first(bruce: RunningBruce) -> None:
    """bruce goes on with the sockets; the next holder waits for its end, and then has those of the next."""
    holder = holder_of(bruce)
    with holder, bruce:
        holder.end(signal.SIGKILL)
        bruce.send([encode(b"t", b"v")])
        bruce.await_status(lambda seen: seen.received == 1)
        holder.start()
        holder.await_said("/bruce.sock is in use")
        bruce.send([encode(b"t", b"v")])
        bruce.await_status(lambda seen: seen.received == 2)
        bruce.kill9()
        holder.await_said(HELD)
        bruce.start()
        leave_waiting(bruce)
        bruce.start()
        bruce.await_status(lambda seen: seen.received == 2 + WAITING)


@pytest.mark.long
def test_bruce_waits_for_its_holder(bruce: RunningBruce) -> None:
    """With --held it makes no socket of its own: it waits, can be ended, and begins with the holder."""
    command = [sys.executable, "-c", "from cli.app import bruce; bruce()", "run", "--held"]

    def start() -> subprocess.Popen[bytes]:
        with bruce.log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=bruce.environ, stderr=log)

    process = start()
    bruce.await_true(lambda: bruce.logged("waiting for bruce hold-socket") == 1)
    assert not bruce.socket.exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    process = start()
    bruce.await_true(lambda: bruce.logged("waiting for bruce hold-socket") == 2)
    with holder_of(bruce):
        bruce.send([encode(b"t", b"v")])
        bruce.await_status(lambda seen: seen.received == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
