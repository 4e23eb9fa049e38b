"""A daemon among other users' files: files that they plant are neither believed nor waited for."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.status.snapshot import take_snapshot
from dispatch.embedded import EmbeddedKafka
from ingest.buffers.staging import staging_path
from spool.format.frame import SEQUENCE
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.index.log_end import committed_end
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.shared.runtime import shared_state_path
from spool.shared.state import Field, SharedState
from spool.storage.lock import LOCK_FILES, is_held
from tests.cli.replay.test_drain import stage
from tests.daemon import RunningBruce, consume
from tests.users import NOBODY, as_user

MESSAGES = 200


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2)]) as running:
        yield running


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in memory that every user may write to, like /dev/shm."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        place = Path(name) / "shm"
        place.mkdir()
        Path(name).chmod(0o755)
        place.chmod(0o1777)
        yield place


def daemon(directory: Path, kafka: EmbeddedKafka, shared: Path, umask: int = 0o022) -> RunningBruce:
    """A daemon whose runtime files go to `shared`, in a directory of its own."""
    start = ["sh", "-c", f'umask {umask:o}; exec "$@"', "sh"] if umask != 0o022 else []
    bruce = RunningBruce(directory, kafka.bootstrap_servers, segment_bytes=256 << 10, prefix=start)
    bruce.runtime.rmdir()
    bruce.runtime, bruce.socket = shared, shared.parent / "sockets/bruce.sock"
    bruce.environ["BRUCE_RUNTIME_DIRECTORY"] = str(shared)
    stream = str(bruce.socket.with_name("stream"))
    bruce.configure(
        {
            "ingest": {
                "datagram_socket": str(bruce.socket),
                "stream_socket": stream,
                "max_stream_message_bytes": 100_000,
            }
        }
    )
    return bruce


def forged_page(shared: Path) -> bytes:
    """A page that gives everything up, and says that a great number was delivered."""
    shared = SharedState(shared.parent / "forged")
    for field in (
        Field.EVICT,
        Field.LOW_WATERMARK,
        Field.SYNCED_SEQUENCE,
        Field.READ_POSITION,
        Field.DELIVERED,
    ):
        shared.words[field] = 1 << 40
    return shared.words.tobytes()


def test_a_planted_page_is_not_believed(tmp_path: Path, kafka: EmbeddedKafka, shared: Path) -> None:
    """Another user plants page, staging and our directory's name, forged: nothing is lost, nothing is stuck.

    Everybody who reads Kafka knows the spool's uuid. While the daemon runs, he cuts what he has planted.
    """
    bruce = daemon(tmp_path, kafka, shared)
    try:
        bruce.start()
        bruce.stop()
        spool, boot = read_identity(Layout(bruce.spool)), boot_id()
        own = shared / f"bruce-{os.geteuid()}"
        shutil.rmtree(own)
        forged = forged_page(shared)
        planted = [shared_state_path(place, spool, boot) for place in (shared, own)]

        def plant() -> None:
            own.mkdir(mode=0o777)
            for path in planted:
                path.write_bytes(forged)
                path.chmod(0o666)
                os.mkfifo(path.with_suffix(".staging"))

        assert as_user(NOBODY, plant) == 0
        kafka.down()
        bruce.start()
        bruce.send(encode(b"t", b"%d" % n) for n in range(MESSAGES))
        bruce.await_status(lambda s: s.watermarks.synced == MESSAGES)
        assert as_user(NOBODY, lambda: [os.truncate(path, 0) for path in planted]) == 0
        status = bruce.status()
        assert (status.received, status.delivered, status.backlog) == (MESSAGES, 0, MESSAGES)
        found = next(place for place in shared.glob(f"bruce-{os.geteuid()}-*") if place.is_dir())
        assert stat.S_IMODE(found.stat().st_mode) == 0o710
        for path in found.iterdir():
            for try_it in (path.read_bytes, path.unlink, lambda path=path: os.truncate(path, 0)):
                assert as_user(NOBODY, try_it) == 1
        kafka.up()
        bruce.await_status(lambda s: s.delivered == MESSAGES)
        bruce.kill9()
        bruce.start()
        assert bruce.status().delivered == MESSAGES
    finally:
        bruce.close()
    assert len(consume(kafka.bootstrap_servers, "t", 2, MESSAGES)) == MESSAGES


def test_what_an_earlier_release_had_accepted_is_delivered(
    tmp_path: Path, kafka: EmbeddedKafka, shared: Path
) -> None:
    """Killed with messages in staging in the directory open to all users; the next start has them."""
    bruce = daemon(tmp_path, kafka, shared)
    try:
        bruce.start()
        staged = stage(bruce, MESSAGES)
        spool, boot = read_identity(Layout(bruce.spool)), boot_id()
        own = shared / f"bruce-{os.geteuid()}"
        assert staging_path(own, spool, boot).exists()
        # As that release had them.
        for path in list(own.iterdir()):
            path.rename(shared / path.name)
        own.rmdir()
        bruce.start()
        done = bruce.await_status(lambda s: s.received >= staged and s.backlog == 0)
        assert done.delivered == done.received >= staged
        assert not list(shared.glob("*.staging"))
    finally:
        bruce.close()
    assert len(consume(kafka.bootstrap_servers, "t", 2, done.delivered)) == done.delivered


@pytest.mark.parametrize("umask", [0, 0o077])
def test_modes_under_any_umask(tmp_path: Path, kafka: EmbeddedKafka, shared: Path, umask: int) -> None:
    """Files are 0640, locks 0600, folders 0750, the spool 0700, that of sockets 0755; in memory also 0600."""
    bruce = daemon(tmp_path, kafka, shared, umask)
    try:
        bruce.start()
        bruce.send(encode(b"t", b"%d" % n) for n in range(MESSAGES))
        bruce.await_status(lambda s: s.delivered == MESSAGES)
        assert mode_of(bruce.spool) == 0o700
        assert mode_of(bruce.socket.parent) == 0o755
        own = shared / f"bruce-{os.geteuid()}"
        assert mode_of(own) == 0o710
        found = {path: mode_of(path) for place in (bruce.spool, own) for path in place.rglob("*")}
        assert {path.name: oct(mode) for path, mode in found.items() if path.is_dir() and mode != 0o750} == {}
        secret = [path for path, mode in found.items() if path.parent == own and mode == 0o600]
        locks = [path for path in found if path.name in LOCK_FILES and path.is_relative_to(bruce.spool)]
        assert {path.name for path in locks} == {"lock", "owner", "lock.mdb"}
        assert {found[path] for path in locks} == {0o600}
        wrong = {path.name: oct(mode) for path, mode in found.items() if path.is_file() and mode != 0o640}
        assert set(wrong) == {path.name for path in (*secret, *locks)}
        # A group that is let in by one chmod reads, and cannot write. The keeper has files after a second.
        bruce.await_true(Layout(bruce.spool).senders.exists)
        os.chown(bruce.spool, -1, 4321)
        for path in bruce.spool.rglob("*"):
            os.chown(path, -1, 4321)
        os.chown(own, -1, 4321)
        os.chown(shared := next(own.glob("*.page")), -1, 4321)
        bruce.spool.chmod(0o750)
        for folder in (tmp_path, *tmp_path.parents):
            if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
                folder.chmod(0o755)
        identity = Layout(bruce.spool).identity
        assert as_user(NOBODY, identity.read_bytes, groups=[4321]) == 0
        assert as_user(NOBODY, shared.read_bytes, groups=[4321]) == 0
        for path in (identity, shared, Layout(bruce.spool).lock):
            assert as_user(NOBODY, lambda path=path: path.open("r+b"), groups=[4321]) == 1
        # It takes no lock, and still sees what the daemon does.
        for path in locks:
            assert as_user(NOBODY, path.read_bytes, groups=[4321]) == 1
        assert as_user(NOBODY, lambda: look(bruce.spool), groups=[4321]) == 0
    finally:
        bruce.close()


def test_pipes_in_the_spool_stop_no_daemon(tmp_path: Path, kafka: EmbeddedKafka, shared: Path) -> None:
    """Spares, tables, answers to jobs and outcome files that are pipes: it starts, and delivers."""
    bruce = daemon(tmp_path, kafka, shared)
    try:
        bruce.start()
        bruce.stop()
        layout = Layout(bruce.spool)
        layout.outcomes.mkdir(exist_ok=True)
        outcomes = layout.outcomes / "job-1.out"
        for path in (
            layout.segment(7, ".spare"),
            layout.segment(1 << 50),
            layout.ledger,
            layout.refused,
            layout.senders,
            layout.ages,
            layout.grant,
            layout.lease,
            outcomes,
        ):
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        bruce.start(wait=False)
        # Until then a look at the spool names the pipe.
        bruce.await_true(layout.ledger.is_file)
        bruce.await_true(bruce._runs)
        bruce.send(encode(b"t", b"%d" % n) for n in range(MESSAGES))
        bruce.await_status(lambda s: s.delivered == MESSAGES)
        assert bruce.brucectl("inspect", "verify").returncode in (0, 1)
        assert bruce.stop() == 0
    finally:
        bruce.close()


def look(spool: Path) -> None:
    """At a running daemon that has delivered MESSAGES, by a user who may read its spool."""
    layout = Layout(spool)
    assert (is_held(layout.lock), is_held(layout.owner)) == (True, True)
    committed = committed_end(layout)
    assert committed is not None
    assert committed[1][SEQUENCE] == MESSAGES
    found = take_snapshot(spool)
    assert (found.received, found.delivered, found.backlog) == (MESSAGES, MESSAGES, 0)
    assert all(worker.alive for worker in found.workers)


def mode_of(path: Path) -> int:
    """As chmod takes it."""
    return stat.S_IMODE(path.stat().st_mode)
