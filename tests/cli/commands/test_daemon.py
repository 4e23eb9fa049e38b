"""`bruce run` and its signals: drain, stop at once, reload; on the embedded Kafka."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import psutil
import pytest

from cli.status.snapshot import take_snapshot
from cli.terminal.errors import DEFECT
from dispatch.embedded import EmbeddedKafka
from ingest.buffers.staging import SUFFIX
from spool.format.wire import encode
from spool.layout import Layout
from status.report import Snapshot
from tests.daemon import ROOT, RunningBruce, alive, consume, halt
from tests.e2e.test_embedded import PARTITIONS, Traffic, check_complete, check_totals, worker
from tests.ingest.intake import connect
from tests.router.outlet import keyed, numbers
from tools.benches.machine import compile_c
from tools.bruce_process import Bruce
from tools.waiting import wait_until

NOT_WAITED_FOR = 1000
"""Seconds that no test waits."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers and a topic of six partitions."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running


def drain_for(seconds: int) -> dict[str, dict[str, object]]:
    """Settings."""
    return {"dispatch": {"drain_seconds": seconds}}


# -- stop ---------------------------------------------------------------------------------------------------


def test_a_stop_drains(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Stopped with a backlog, it delivers all of it and ends with 0, long before its time is over."""
    settings = drain_for(NOT_WAITED_FOR)
    # More than is in flight, and so would be waited for anyway.
    settings["dispatch"]["window_messages"] = 100
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        kafka.down()
        bruce.send(keyed(5000))
        bruce.await_status(lambda s: s.received == 5000)
        bruce.tell(signal.SIGTERM)
        bruce.await_true(lambda: refuses(bruce))
        assert bruce.status().delivered == 0
        kafka.up()
        assert bruce.await_end() == 0
        seen = bruce.status()
        check_totals(seen)
        assert (seen.delivered, seen.backlog) == (5000, 0)
        assert bruce.logged("0 messages are left in the spool") == 1
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 5000), 5000)


def refuses(bruce: RunningBruce) -> bool:
    """Whether the socket takes no message any more."""
    try:
        bruce.send([])
        bruce.send([b""], timeout_s=0.1)
    except (ConnectionError, FileNotFoundError, BrokenPipeError):
        return True
    except TimeoutError:
        return False
    return False


@pytest.mark.long
def test_a_stop_without_kafka(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """It ends with 0 when its time is over, says what is left, and loses none of it."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=drain_for(1)) as bruce:
        bruce.send(keyed(1000))
        bruce.await_status(lambda s: s.delivered == 1000)
        kafka.down()
        bruce.send(keyed(2000, first=1000))
        assert bruce.stop() == 0
        seen = bruce.status()
        check_totals(seen)
        assert (seen.received, seen.backlog) == (3000, 2000)
        assert bruce.logged("2,000 messages are left in the spool") == 1
        kafka.up()
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 3000)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 3000), 3000)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal(kafka: EmbeddedKafka, tmp_path: Path, second: signal.Signals) -> None:
    """It ends at once, with 0, though there is work and time left; the next start goes on."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=drain_for(NOT_WAITED_FOR)) as bruce:
        kafka.down()
        bruce.send(keyed(2000))
        bruce.tell(signal.SIGINT)
        bruce.await_true(lambda: bruce.status().watermarks.synced == 2000 and refuses(bruce))
        bruce.tell(second)
        assert bruce.await_end() == 0
        assert bruce.logged("2,000 messages are left in the spool") == 1
        kafka.up()
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 2000)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 2000), 2000)


def test_two_signals_at_once(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Each message whose sender was told that it was taken is stored, however hasty the stop."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        kafka.down()
        ingest = worker(bruce, "ingest")
        halt(ingest)
        bruce.send(keyed(8))
        bruce.tell(signal.SIGTERM)
        bruce.tell(signal.SIGINT)
        os.kill(ingest, signal.SIGCONT)
        assert bruce.await_end() == 0
        assert bruce.status().received == 8


def look(bruce: Bruce) -> Snapshot:
    """The status, without a process of its own for each."""
    with mock.patch.dict(os.environ, {"BRUCE_RUNTIME_DIRECTORY": str(bruce.runtime)}):
        return take_snapshot(bruce.spool)


@pytest.mark.long
def test_a_restart_of_the_service(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With the socket of the service manager, stopped slowly or at once and started: no sender is refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(str(tmp_path / "s"))
        with Bruce(tmp_path / "bruce", kafka.bootstrap_servers, listener=listener) as bruce:
            bruce.start()
            enough, sent, refused = threading.Event(), [0], list[OSError]()

            def send() -> None:
                try:
                    with connect(tmp_path / "s") as sender:
                        while not enough.wait(0.02):
                            for message in keyed(50, first=sent[0]):
                                sender.send(message)
                            sent[0] += 50
                except OSError as error:
                    refused.append(error)

            traffic = threading.Thread(target=send)
            traffic.start()
            try:
                for hastily in (False, True):
                    seen = look(bruce).received
                    wait_until(lambda least=seen: look(bruce).received > least, 60, "messages")  # type: ignore[misc]
                    if hastily:
                        os.kill(bruce.pid, signal.SIGINT)
                    bruce.stop()
                    bruce.start()
            finally:
                enough.set()
                traffic.join(60)
            assert not refused
            wait_until(lambda: look(bruce).delivered >= sent[0], 60, "the rest")
            assert look(bruce).received == sent[0] > 0
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, sent[0])
        check_complete(records, sent[0])


# -- start --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_during_recovery(kafka: EmbeddedKafka, tmp_path: Path, number: signal.Signals) -> None:
    """A start that waits for the disk is ended by a signal, with 0 and no traceback; the next one goes on."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        kafka.down()
        bruce.send(keyed(1000))
        bruce.await_status(lambda s: s.watermarks.synced == 1000)
        bruce.kill9()
        identity, flag = Layout(bruce.spool).identity, tmp_path / "flag"
        identity.unlink()
        flag.touch()
        preload = {
            "LD_PRELOAD": str(compile_c("slow_sync", tmp_path, shared=True)),
            "SLOW_SYNC_FLAG": str(flag),
        }
        bruce.environ |= preload
        bruce.start(wait=False)
        # A signal that came just before the disk hangs would not interrupt it.
        bruce.await_true(identity.with_suffix(".tmp").exists)
        bruce.await_true(lambda: "poll" in Path(f"/proc/{bruce.pid}/wchan").read_text())
        bruce.tell(number)
        assert bruce.await_end() == 0
        assert bruce.logged("stopped before it had started") == 1
        assert bruce.logged("Traceback") == 0
        flag.unlink()
        kafka.up()
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 1000)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 1000), 1000)


def test_a_stop_while_the_workers_start(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """As soon as there is a socket: what it took is stored and delivered, and bruce ends with 0."""
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=drain_for(NOT_WAITED_FOR))
    try:
        sent = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            bruce.start(wait=False)
            bruce.await_true(bruce.socket.exists, 60)
            sent += bruce.send(keyed(5, first=sent))
            bruce.tell(number)
            # Until senders are refused, which may be at once.
            with suppress(ConnectionError, FileNotFoundError):
                for message in keyed(5, first=sent):
                    sent += bruce.send([message])
            assert bruce.await_end() == 0
            assert bruce.status().delivered == sent
    finally:
        bruce.close()


# -- reload -------------------------------------------------------------------------------------------------


def test_a_reload_under_load(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Five times in the middle of traffic: nothing lost, doubled, reordered or refused; intake goes on."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=drain_for(60)) as bruce:
        ingest, sent = worker(bruce, "ingest"), 12_000
        traffic = Traffic(bruce, sent, 0.02)
        for turn in range(5):
            bruce.configure(
                {
                    "kafka": {"linger.ms": str(5 + turn)},
                    "spool": {"sync_interval_ms": 10 + turn},
                    'topics."t"': {
                        "partitioner": "partition_key",
                        "compression.type": ("lz4", "none")[turn % 2],
                    },
                }
            )
            deliverer, keeper = worker(bruce, "delivery"), worker(bruce, "keeper")
            bruce.tell(signal.SIGHUP)
            bruce.await_true(lambda old=deliverer: worker(bruce, "delivery") not in (0, old))  # type: ignore[misc]
            bruce.await_true(lambda old=keeper: worker(bruce, "keeper") not in (0, old))  # type: ignore[misc]
        assert traffic.join() == sent
        seen = bruce.await_status(lambda s: s.delivered == sent)
        check_totals(seen)
        assert (seen.received, seen.discarded) == (sent, {})
        assert worker(bruce, "ingest") == ingest
        assert {w.restarts for w in seen.workers} == {0}
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, sent)
        assert sorted(numbers(records)) == list(range(sent))
        check_complete(records, sent)


def test_a_reload_waits_for_what_is_in_flight(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """While each answer of Kafka takes a second, the old worker has them all first: nothing comes twice."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send(keyed(PARTITIONS))
        bruce.await_status(lambda s: s.delivered == PARTITIONS)
        for broker in (1, 2, 3):
            kafka.rtt(broker, 1000)
        bruce.send([encode(b"t", b"%d" % i, partition_key=i) for i in range(600)])
        bruce.await_status(lambda s: any(broker.in_flight for broker in s.brokers))
        bruce.configure({"kafka": {"linger.ms": "1"}})
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("gave way") >= 1)
        for broker in (1, 2, 3):
            kafka.rtt(broker, 0)
        bruce.await_status(lambda s: s.delivered == PARTITIONS + 600)
        assert len(consume(kafka.bootstrap_servers, "t", PARTITIONS, PARTITIONS + 600)) == PARTITIONS + 600


def test_a_reloaded_partitioner(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Messages after the reload go by the new one."""
    messages = [encode(b"t", b"%d" % i, key=b"same", partition_key=3, timestamp=1) for i in range(20)]
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send(messages)
        bruce.await_status(lambda s: s.delivered == 20)
        bruce.configure({'topics."t"': {"partitioner": "crc32"}})
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("gave way") == 1)
        bruce.send(messages)
        bruce.await_status(lambda s: s.delivered == 40)
        found = consume(kafka.bootstrap_servers, "t", PARTITIONS, 40)
        # crc32(b"same") modulo 6 is 2
        assert {record.partition() for record in found} == {3, 2}


def test_what_cannot_be_reloaded(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A file with an error changes nothing, and the log says where; what needs a restart is named."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        before = {w.role: w.pid for w in bruce.status().workers}
        good = bruce.config.read_text()
        for bad, words in (
            ("[spool", "bruce.toml: is not TOML"),
            ("[spool]\nmax_byte = 5\n", "did you mean 'max_bytes'?"),
            (good.replace("[kafka]", '[kafka]\n"linger.ms" = "soon"'), "linger.ms"),
            (good + '[topics."t"]\npartitioner = "no_such_module:f"\n', "no_such_module"),
            (good.replace(kafka.bootstrap_servers, "embedded"), "restart bruce"),
        ):
            bruce.config.write_text(bad)
            refused = bruce.logged("not reloaded: ")
            bruce.tell(signal.SIGHUP)
            bruce.await_true(lambda refused=refused: bruce.logged("not reloaded: ") == refused + 1)  # type: ignore[misc]
            assert bruce.logged(words) == 1, words
        bruce.config.write_text(good)
        bruce.configure({"spool": {"directory": "/elsewhere", "segment_bytes": 1 << 20}})
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("nothing has changed") == 1)
        for words in ("[spool] directory is not reloaded", "[spool] segment_bytes is not reloaded"):
            assert bruce.logged(words) == 1
        assert {w.role: w.pid for w in bruce.status().workers} == before
        bruce.send(keyed(100))
        bruce.await_status(lambda s: s.delivered == 100)


def test_a_reload_with_kafka_away(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The worker gives way although nothing is acknowledged; its successor delivers everything, in order."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send(keyed(100))
        bruce.await_status(lambda s: s.delivered == 100)
        kafka.down()
        bruce.send(keyed(2000, first=100))
        bruce.await_status(lambda s: s.received == 2100 and any(b.in_flight for b in s.brokers))
        bruce.configure({"dispatch": {"window_messages": 100}})
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("gave way") == 1)
        kafka.up()
        seen = bruce.await_status(lambda s: s.delivered == 2100)
        check_totals(seen)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 2100), 2100)


# -- failure ------------------------------------------------------------------------------------------------

_FAILING = """
import sys
from pathlib import Path
from cli.daemon import daemon
from cli.app import bruce
class Failing(daemon.Supervisor):
    def _reap(self):
        if Path({told!r}).exists():
            raise RuntimeError("failing")
        super()._reap()
daemon.Supervisor = Failing
sys.argv = ["bruce", "run"]
bruce()
"""


@pytest.mark.crash
def test_a_supervisor_that_fails(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Its workers die at any moment: what one had received and not yet written stays for the next start."""
    bruce, told = RunningBruce(tmp_path, kafka.bootstrap_servers), tmp_path / "told"
    with closing(bruce):
        with bruce.log.open("ab") as log:
            bruce._process = subprocess.Popen(
                [sys.executable, "-c", _FAILING.format(told=str(told))],
                cwd=ROOT,
                env=bruce.environ,
                stdout=log,
                stderr=log,
            )
        bruce.await_true(bruce._runs, 120)
        bruce.send(keyed(50))
        bruce.await_status(lambda s: s.received == 50)
        workers = psutil.Process(bruce.pid).children(recursive=True)
        told.touch()
        bruce.tell(signal.SIGCHLD)
        assert bruce.await_end() == DEFECT
        assert list(bruce.runtime.glob(f"*{SUFFIX}"))
        bruce.await_true(lambda: not any(map(alive, workers)))
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 50)
        bruce.stop()
        assert not list(bruce.runtime.glob(f"*{SUFFIX}"))
