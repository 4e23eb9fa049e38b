"""A store that waits delays no sender: datagrams are received, kept over SIGKILL, stored, or counted."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.buffers.staging import OVERFLOW_BYTES, RESERVE, Staging, overflow_at, read_staging
from ingest.worker.guard import FAULTS, GUARDED, KEPT, STATE, STORING, Guard
from spool.format.wire import Reason, encode
from spool.shared.ledger import read_ledger
from spool.shared.state import Field
from tests.daemon import halt
from tests.ingest.intake import Intake, connect
from tests.ingest.processes import PATIENCE_S, Processes, await_end, fork, message, send
from tests.ingest.worker.test_storm import by_sender
from tests.spool.small_disk import fill_up, mounted
from tools.waiting import wait_until

OPTIONS = {"slots": 12, "segment_bytes": 1 << 20, "max_bytes": 64 << 20}


@pytest.fixture
def processes(memory: Path) -> Iterator[Processes]:
    """A running intake, all of it on tmpfs."""
    made = Processes(memory, **OPTIONS)
    yield made
    made.close()


@contextlib.contextmanager
def standing(processes: Processes) -> Iterator[None]:
    """The keeper does not run: the worker finds no segment, and its store waits."""
    halt(processes.pids["keeper"])
    try:
        yield
    finally:
        os.kill(processes.pids["keeper"], signal.SIGCONT)


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Every store into a clean page of this filesystem waits."""
    subprocess.run(["fsfreeze", "--freeze", place], check=True, timeout=PATIENCE_S)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", place], check=True, timeout=PATIENCE_S)


def staged(processes: Processes) -> list[tuple[int, int]]:
    """(burst, datagrams) of the bursts in the staging file."""
    return read_staging(processes.directory / "staging")


def test_who_sends_does_not_wait(processes: Processes) -> None:
    """More than fits the segments there are: all is taken, kept in order, and stored when there is room.

    The reserve then is empty, and has given its memory back.
    """
    with standing(processes), connect(processes.path) as sender:
        for number in range(400):
            sender.send(message(0, number, 20_000))
        deadline = time.monotonic() + PATIENCE_S
        while len(staged(processes)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        bursts = [number for number, _ in staged(processes)]
        assert len(bursts) >= 3
        assert bursts == list(range(bursts[0], bursts[0] + len(bursts)))
    assert processes.stop() == [0, 0]
    assert by_sender(processes)[0] == list(range(400))
    staging = Staging(processes.directory / "staging", processes.spool.identity.spool, 12)
    assert not staging.reserve_in_use
    assert staging.path.stat().st_blocks * 512 < 2 * staging.buffer_bytes


@pytest.mark.crash
def test_killed_again_and_again_while_a_store_waits(processes: Processes) -> None:
    """The reserve's datagrams survive each SIGKILL, and are stored once, with every discard counted."""
    out = processes.directory / "sent"
    with standing(processes):
        pid = fork(lambda: send(processes.path, 0, out, lambda count: count == 3000))
        for _ in range(12):
            time.sleep(0.04)
            assert processes.kill("ingest") == -9
    assert await_end(pid) == 0
    assert processes.stop() == [0, 0]
    sent = ast.literal_eval(out.read_text())
    assert by_sender(processes)[0] == list(range(sent.pop("right")))
    assert processes.discarded() == sent


@pytest.mark.crash
def test_a_filesystem_that_stands_still(memory: Path, tmp_path: Path) -> None:
    """Frozen under load: senders finish before it thaws, and SIGKILL of the stuck worker loses nothing."""
    with mounted("ext4", tmp_path, 64 << 20) as place:
        (memory / "spool").symlink_to(place)
        processes = Processes(memory, 12, segment_bytes=1 << 20, max_bytes=16 << 20)
        try:
            out = memory / "sent"
            with frozen(place):
                pid = fork(lambda: send(processes.path, 0, out, lambda count: count == 1200))
                assert await_end(pid) == 0
                wait_until(
                    lambda: sum(count for _, count in staged(processes)) > 500,
                    PATIENCE_S,
                    "messages in staging",
                )
                # It ends when the kernel lets it, which is after the thaw.
                os.kill(processes.pids["ingest"], signal.SIGKILL)
            assert await_end(processes.pids["ingest"]) == -9
            processes.start("ingest")
            assert processes.stop() == [0, 0]
            sent = ast.literal_eval(out.read_text())
            assert by_sender(processes)[0] == list(range(sent.pop("right")))
            assert processes.discarded() == sent
        finally:
            processes.close()


def wait_at_the_socket(processes: Processes, least: int) -> None:
    """Send until a sender has to wait; `least` were taken by then, and all of them are stored in the end."""
    with connect(processes.path) as sender:
        sender.settimeout(1)
        number, deadline = 0, time.monotonic() + PATIENCE_S
        with standing(processes):
            # A worker may not have begun yet.
            while (sent := has_room(sender, number)) or (number < least and time.monotonic() < deadline):
                number += sent
        assert number >= least
        sender.settimeout(PATIENCE_S)
        for later in range(number, number + 100):
            sender.send(message(0, later, 1500))
    assert processes.stop() == [0, 0]
    assert by_sender(processes)[0] == list(range(number + 100))


def has_room(sender: socket.socket, number: int) -> bool:
    """Send a message; False when it would have to wait for a second."""
    try:
        sender.send(message(0, number, 1500))
    except TimeoutError:
        return False
    return True


def fill_up_behind(processes: Processes, place: Path) -> None:
    """Take all memory that is left in `place`, once staging has its own, with the overflow of buffer 0."""
    staging = processes.directory / "staging"

    def is_reserved() -> bool:
        return staging.exists() and staging.stat().st_blocks * 512 > processes.slots * OVERFLOW_BYTES

    wait_until(is_reserved, PATIENCE_S, "staging")
    fill_up(place / "more")


def test_a_full_reserve_lets_senders_wait(memory: Path) -> None:
    """Nothing is dropped: the socket's queue is the end of the line, as before."""
    processes = Processes(memory, 4, segment_bytes=1 << 20, max_bytes=64 << 20)
    try:
        wait_at_the_socket(processes, 4 * (RESERVE - KEPT))
    finally:
        processes.close()


def test_a_full_tmpfs_lets_senders_wait(memory: Path, tmp_path: Path) -> None:
    """Without memory for the reserve there is no SIGBUS, and intake goes on when the log does."""
    with mounted("tmpfs", tmp_path, 8 << 20) as place:
        (memory / "spool").mkdir()
        (place / "spool").symlink_to(memory / "spool")
        processes = Processes(place, 12, segment_bytes=1 << 20, max_bytes=64 << 20)
        try:
            fill_up_behind(processes, place)
            wait_until(lambda: processes.shared.words[Field.SPARE] > 0, PATIENCE_S, "a spare")
            wait_at_the_socket(processes, 500)
            assert [number for number, _ in staged(processes)] == []
        finally:
            processes.close()


@pytest.mark.parametrize("size", [2049, 65_300])
def test_large_datagrams_need_no_memory_that_is_not_there(memory: Path, tmp_path: Path, size: int) -> None:
    """With the tmpfs of staging full to the last block, those over a slot are stored as the others are.

    While a store waits as well: what the guard has no memory for waits in the socket.
    """
    with mounted("tmpfs", tmp_path, 8 << 20) as place:
        (memory / "spool").mkdir()
        (place / "spool").symlink_to(memory / "spool")
        processes = Processes(place, 12, segment_bytes=1 << 20, max_bytes=64 << 20)
        try:
            with connect(processes.path) as sender:
                sender.settimeout(PATIENCE_S)
                fill_up_behind(processes, place)
                for number in range(40):
                    sender.send(message(0, number, size))
                with standing(processes):
                    sent = 40
                    sender.settimeout(1)
                    with contextlib.suppress(TimeoutError):
                        while sent < 200:
                            sender.send(message(0, sent, size))
                            sent += 1
            pid = processes.pids["ingest"]
            assert processes.stop() == [0, 0]
            assert by_sender(processes)[0] == list(range(sent))
            assert pid
        finally:
            processes.close()


SPOOL = bytes(16)
LARGE = [encode(b"large", bytes([65 + number]) * 30_000) for number in range(4)]
SMALL = [encode(b"small", b"%d" % number) for number in range(4)]
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def missing(intake: Intake, buffer: int = 0, slot: int = 0) -> Iterator[None]:
    """The pages of a slot's overflow cannot be had."""
    staging = intake.worker.staging
    at = staging.buffer(buffer) + overflow_at(staging.slots) + slot * OVERFLOW_BYTES
    assert not _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(OVERFLOW_BYTES), 0)
    try:
        yield
    finally:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert not _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(OVERFLOW_BYTES), both)


def lost(intake: Intake) -> int:
    """Datagrams counted as lost for want of memory."""
    rows = read_ledger(intake.spool.layout.ledger)
    return sum(row.count for row in rows if row.reason == Reason.TRUNCATED)


@pytest.mark.parametrize("slot", [0, 2])
def test_a_datagram_that_is_lost_is_counted(
    intake: Intake, slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken from the socket, and not to be copied: it is counted and logged, and all others are stored."""
    with missing(intake, slot=slot):
        intake.take([*SMALL[:slot], LARGE[0], *SMALL[slot:]])
    assert (intake.stored(), lost(intake)) == (SMALL, 1)
    assert "no memory for 1 datagram that" in caplog.text
    intake.take(LARGE)
    assert (intake.stored(), lost(intake)) == ([*SMALL, *LARGE], 1)
    # A successor counts on behind it, and nothing comes twice.
    assert intake.restart() == 0
    intake.take(SMALL[:1])
    assert (intake.stored(), lost(intake)) == ([*SMALL, *LARGE, SMALL[0]], 1)


def test_what_the_guard_loses_is_counted(intake: Intake) -> None:
    """The worker counts it when it has caught up."""
    worker = intake.worker
    guard = Guard([intake.receiver.fileno()], worker.staging, worker.handoff)
    worker.handoff.begin_storing()
    assert worker.handoff.load(STATE) == STORING
    with missing(intake, buffer=1):
        intake.queue([LARGE[0]])
        guard.start()
        deadline = time.monotonic() + PATIENCE_S
        while not worker.handoff.load(FAULTS):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    intake.queue(SMALL)
    assert worker.handoff.load(STATE) == GUARDED
    worker._catch_up()
    guard.leave()
    intake.take([])
    assert (intake.stored(), lost(intake)) == (SMALL, 1)


def locked_bytes() -> int:
    """The memory that this process has locked, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmLck"))
    return int(line.split()[1]) << 10


def lock(path: Path, limit: int | None) -> None:
    """In a child: lock what the limit allows, and be sure that as much is locked."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        os.chown(path.parent, 1234, 1234)
        os.setgid(1234)
        os.setuid(1234)
    staging = Staging(path, SPOOL, 16)
    before = locked_bytes()
    found = staging.lock_overflow()
    assert locked_bytes() - before == found
    expected = 16 * OVERFLOW_BYTES
    assert found == expected if limit is None else 0 < found <= min(limit, expected // 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("limit", [None, 600 << 10])
def test_the_overflow_is_locked(memory: Path, limit: int | None) -> None:
    """All of the first buffer's, or as much as RLIMIT_MEMLOCK allows."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert await_end(fork(lambda: lock(memory / "staging", limit))) == 0
