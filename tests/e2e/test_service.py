"""bruce as a service: ready, watched, reloaded, and restarted under load by the holder of its socket."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import PATIENCE_S, consume, halt
from tests.service import Service

WATCHDOG_S = 6.0
PARTITIONS = 2
PACE_S = 0.001
"""Between two messages: a slow start must not become a large backlog."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A Kafka that outlives the daemon."""
    with EmbeddedKafka(brokers=1, topics=[("orders", PARTITIONS)]) as running:
        yield running


@pytest.mark.long
@pytest.mark.crash
def test_the_watchdog_starves_when_a_worker_hangs(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Whichever it is: it is named, and no ping comes until it works again. Then nothing was lost."""
    with Service(tmp_path, kafka.bootstrap_servers, watchdog_s=WATCHDOG_S) as service:
        service.await_told("READY=1")
        service.await_told("WATCHDOG=1", times=2)
        workers = {worker.role: worker.pid for worker in service.status().workers}
        for role in ("ingest", "keeper", "delivery"):
            halt(workers[role])
            service.forget()
            service.await_told(f"STATUS=the {role} worker ({workers[role]}) has done nothing")
            service.forget()
            time.sleep(WATCHDOG_S / 2)
            assert "WATCHDOG=1" not in service.listen()
            os.kill(workers[role], signal.SIGCONT)
            service.await_told("WATCHDOG=1", times=2)
        service.send(encode(b"orders", b"x") for _ in range(100))
        service.await_status(lambda status: status.delivered == 100)
        service.forget()
        halt(service.pid)
        time.sleep(WATCHDOG_S / 2)
        service.forget()
        time.sleep(WATCHDOG_S / 2)
        assert not service.listen(), "a supervisor that does not run says something"
        os.kill(service.pid, signal.SIGCONT)
        service.await_told("WATCHDOG=1")


def test_ready_reloading_and_stopping(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Ready when messages are taken in; a reload, good or bad, is said to begin and end; so is the stop."""
    with Service(tmp_path, kafka.bootstrap_servers) as service:
        service.await_told("READY=1")
        service.await_told("STATUS=messages are taken in")
        assert "WATCHDOG=1" not in service.told, "systemd did not ask for it"
        delivery = next(w.pid for w in service.status().workers if w.role == "delivery")
        service.forget()
        service.configure({"dispatch": {"window_messages": 1000}})
        service.tell(signal.SIGHUP)
        service.await_told("READY=1")
        assert service.told[0] == "RELOADING=1"
        assert service.told[1].startswith("MONOTONIC_USEC=")
        assert next(w.pid for w in service.status().workers if w.role == "delivery") != delivery
        service.forget()
        service.config.write_text("[nonsense]\n")
        service.tell(signal.SIGHUP)
        service.await_told("READY=1")
        service.forget()
        assert service.stop() == 0
        assert service.listen()[:2] == ["STOPPING=1", "STATUS=stopping"]
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in service.told)
        assert service.socket.exists(), "it is not the daemon's to remove"


@pytest.mark.long
@pytest.mark.crash
def test_the_service_is_restarted_under_load(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Stopped, killed by a watchdog, and started again, while senders send: each message is in Kafka."""
    service = Service(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"drain_seconds": 0}})
    ending, sent, refused = threading.Event(), [0], list[OSError]()

    def send() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(service.socket))
            sender.settimeout(PATIENCE_S)
            try:
                while not ending.is_set():
                    sender.send(encode(b"orders", b"%d" % sent[0]))
                    sent[0] += 1
                    time.sleep(PACE_S)
            except OSError as error:
                refused.append(error)

    def await_more() -> None:
        """While the service is up, a few hundred more come; while it is down, the queue is all there is."""
        aim = sent[0] + 500
        service.await_true(lambda: sent[0] >= aim or bool(refused))

    sender = threading.Thread(target=send)
    try:
        sender.start()
        # Before there is any daemon: what is sent waits in the socket.
        service.await_true(lambda: sent[0] > 5 or bool(refused))
        for end in (service.stop, service.kill9, service.stop):
            service.start()
            await_more()
            end()
        service.start()
        await_more()
        ending.set()
        sender.join(PATIENCE_S)
        assert not refused, refused
        service.await_status(lambda status: status.received == sent[0] and status.backlog == 0)
        records = consume(kafka.bootstrap_servers, "orders", PARTITIONS, sent[0])
        assert {int(record.value()) for record in records} == set(range(sent[0]))
    finally:
        ending.set()
        service.close()
        sender.join(PATIENCE_S)
