"""The daemon as a whole: what a start takes from another one, or finds of one that was killed, and says."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.status.snapshot import ROLES
from dispatch.embedded import EmbeddedKafka
from ingest.role import PATIENCE
from spool.format.wire import encode
from spool.layout import Layout
from spool.shared.state import BEAT, WORKER_WORDS, Field
from spool.storage.lock import Lock
from status.report import Snapshot, WorkerView
from tests.daemon import RunningBruce, consume, free_port, halt
from tests.status.conftest import Served

MESSAGES = 100


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as running:
        yield running


def test_a_second_daemon_takes_no_socket(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """With the same socket and another spool it ends with 2 and one sentence; the first notices nothing."""
    (tmp_path / "second").mkdir()
    first = RunningBruce(tmp_path, kafka.bootstrap_servers)
    second = RunningBruce(tmp_path / "second", kafka.bootstrap_servers)
    second.configure({"ingest": {"datagram_socket": str(first.socket)}})
    with first:
        before = first.socket.stat().st_ino
        second.start(wait=False)
        assert second.await_end() == 2
        assert second.logged(f"another process receives at {first.socket}") == 1
        assert first.socket.stat().st_ino == before
        first.send([encode(b"t", b"v")])
        seen = first.await_status(lambda s: s.delivered == 1)
        assert seen.lost_inputs is None
    second.close()


def test_a_copy_beside_its_original_is_refused(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Both would have one shared state and one staging: it ends with a sentence, and the original goes on."""
    (tmp_path / "second").mkdir()
    first = RunningBruce(tmp_path, kafka.bootstrap_servers)
    second = RunningBruce(tmp_path / "second", kafka.bootstrap_servers)
    runtime = "BRUCE_RUNTIME_DIRECTORY"
    second.environ[runtime] = first.environ[runtime]
    with first:
        first.send([encode(b"t", b"v")])
        first.await_status(lambda s: s.delivered == 1)
        shutil.copytree(first.spool, second.spool)
        second.start(wait=False)
        assert second.await_end() != 0
        assert second.logged("is a copy of a spool whose daemon lives on this host") == 1
        first.send([encode(b"t", b"v")])
        first.await_status(lambda s: s.delivered == 2)
    second.close()


@pytest.mark.crash
def test_a_backup_that_is_put_back_is_delivered(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """In the boot in which a later life delivered the same: what that life knew is not true of it."""
    settings = {"spool": {"segment_bytes": 1 << 20, "max_bytes": 64 << 20}}
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
    backup, count = tmp_path / "backup", 300
    with bruce:
        kafka.down()
        bruce.send([encode(b"t", b"v" * 15_000) for _ in range(count)])
        # Until then some may wait in staging, which no backup of the spool has.
        bruce.await_status(lambda s: s.watermarks.synced == count)
        bruce.kill9()
        shutil.copytree(bruce.spool, backup)
        kafka.up()
        bruce.start()
        bruce.await_status(lambda s: s.backlog == 0)
        bruce.kill9()
        shutil.rmtree(bruce.spool)
        shutil.copytree(backup, bruce.spool)
        # The keeper comes first, when the words are still those of the later life.
        deliverer = Lock(Layout(bruce.spool).owner, "delivering")
        bruce.start()
        bruce.await_status(lambda s: s.watermarks.synced == count)
        deliverer.release()
        assert len(consume(kafka.bootstrap_servers, "t", 1, 2 * count)) == 2 * count


def test_the_status_worker_is_watched(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """It says every few seconds that its loop turns: waiting for a first client, and serving."""
    port, row = free_port(), Field.WORKERS + WORKER_WORDS * ROLES.index("status")
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"status": {"port": port}}) as bruce:

        def beat() -> int:
            words = bruce.words()
            assert words is not None
            return int(words[row + BEAT])

        def await_beats(count: int) -> None:
            for _ in range(count):
                before = beat()
                bruce.await_true(lambda before=before: beat() > before)

        await_beats(1)
        bruce.await_page()
        # The first may be one from before there was a server.
        await_beats(2)


def test_delivery_stays_behind_the_intake(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """The intake and its sync come first where all want the processors; all threads of delivery wait."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send([encode(b"t", b"v")])
        bruce.await_status(lambda s: s.delivered == 1)
        pids = {one.role: one.pid for one in bruce.status().workers}

        def niceness(role: str) -> set[int]:
            found = set()
            for thread in os.listdir(f"/proc/{pids[role]}/task"):
                # It may have ended.
                with suppress(ProcessLookupError):
                    found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
            return found

        assert niceness("ingest") == niceness("keeper") == niceness("supervisor")
        assert min(niceness("delivery")) > max(niceness("ingest"))


@pytest.mark.long
@pytest.mark.crash
def test_a_status_worker_that_hangs(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """`brucectl status` names it; after a minute the supervisor replaces it, and the page answers."""

    def status_worker(seen: Snapshot) -> WorkerView:
        return next(one for one in seen.workers if one.role == "status")

    settings = {"status": {"port": free_port()}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.await_page()
        pid = status_worker(bruce.status()).pid
        halt(pid)
        seen = bruce.await_status(lambda s: status_worker(s).hangs)
        assert status_worker(seen).sentence.startswith(f"the status worker ({pid}) has done nothing for 1")
        bruce.await_status(lambda s: status_worker(s).pid not in (0, pid), 2 * PATIENCE.hung)
        bruce.await_page()


@pytest.mark.long
@pytest.mark.crash
def test_a_delivery_worker_that_hangs(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Without systemd: `brucectl status`, /healthz, the metrics and the log name it; then it works again."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"status": {"port": free_port()}}) as bruce:
        served = Served(bruce, int(bruce.await_page().rpartition(":")[2]))
        assert served.get("/healthz").status == 200
        pid = next(one.pid for one in bruce.status().workers if one.role == "delivery")
        sentence = f"the delivery worker ({pid}) has done nothing for "
        halt(pid)
        try:
            bruce.await_true(lambda: served.get("/healthz").status == 503)
            assert sentence in served.get("/healthz").body.decode()
            assert sentence in bruce.brucectl("status", "--config", bruce.config).stdout.decode()
            silent = re.search(r'\nbruce_worker_silent_seconds{role="delivery"} (\S+)\n', bruce.metrics())
            assert silent is not None
            assert PATIENCE.silent < float(silent[1]) < PATIENCE.hung
            bruce.await_true(lambda: bruce.logged(f"delivery ({pid}) has done nothing for ") == 1)
            assert bruce.logged("it was stopped by a signal; it is replaced after 60 s") == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        bruce.await_true(lambda: served.get("/healthz").status == 200)
        bruce.await_true(lambda: bruce.logged(f"delivery ({pid}) works again, after ") == 1)


def test_a_start_after_a_kill_says_what_it_found(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """One line counts what waits; after an end in order, and in a new spool, there is none."""
    line = "the daemon before was killed, or its host went down: "
    bruce = RunningBruce(tmp_path, "127.0.0.1:1", settings={"dispatch": {"drain_seconds": 0}})
    bruce.start()
    bruce.send(encode(b"t", b"%d" % n) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.watermarks.synced == MESSAGES)
    assert bruce.logged(line) == 0
    bruce.kill9()
    bruce.start()
    assert bruce.logged(f"{line}{MESSAGES} messages wait for delivery, 0 of them still in staging") == 1
    assert bruce.logged("the last segment (256 KiB) was searched; it goes on at message 100") == 1
    assert bruce.stop() == 0
    bruce.start()
    assert bruce.logged(line) == 1
    bruce.close()
