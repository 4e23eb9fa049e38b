"""Memory that cannot be had while the kernel copies a datagram: the datagram is gone, and counted."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.bank import OVERFLOW_BYTES, overflow_at
from ingest.guard import Guard
from ingest.staging import Staging
from ingest.turn import FAULTS, GUARDED, STATE, STORING
from spool.ledger import read_ledger
from spool.wire import Reason, encode
from tests.ingest.intake import Intake
from tests.ingest.processes import PATIENCE_S, await_end, fork

SPOOL = bytes(16)
LARGE = [encode(b"large", bytes([65 + number]) * 30_000) for number in range(4)]
SMALL = [encode(b"small", b"%d" % number) for number in range(4)]
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def missing(intake: Intake, bank: int = 0, slot: int = 0) -> Iterator[None]:
    """The pages of a slot's overflow cannot be had."""
    staging = intake.worker.staging
    at = staging.bank(bank) + overflow_at(staging.slots) + slot * OVERFLOW_BYTES
    assert not _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(OVERFLOW_BYTES), 0)
    try:
        yield
    finally:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert not _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(OVERFLOW_BYTES), both)


def lost(intake: Intake) -> int:
    """Datagrams counted as lost for want of memory."""
    rows = read_ledger(intake.rig.layout.ledger)
    return sum(row.count for row in rows if row.reason == Reason.TRUNCATED)


@pytest.mark.parametrize("slot", [0, 2])
def test_a_datagram_that_is_lost_is_counted(
    intake: Intake, slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken from the socket, and not to be copied: it is counted and logged, and all others are stored."""
    with missing(intake, slot=slot):
        intake.take([*SMALL[:slot], LARGE[0], *SMALL[slot:]])
    assert (intake.stored(), lost(intake)) == (SMALL, 1)
    assert "no memory for 1 datagrams" in caplog.text
    intake.take(LARGE)
    assert (intake.stored(), lost(intake)) == ([*SMALL, *LARGE], 1)
    # A successor counts on behind it, and nothing comes twice.
    assert intake.restart() == 0
    intake.take(SMALL[:1])
    assert (intake.stored(), lost(intake)) == ([*SMALL, *LARGE, SMALL[0]], 1)


def test_what_the_guard_loses_is_counted(intake: Intake) -> None:
    """The worker counts it when it has caught up."""
    worker = intake.worker
    guard = Guard([intake.receiver.fileno()], worker.staging, worker.turn)
    worker.turn.begin_storing()
    assert worker.turn.load(STATE) == STORING
    with missing(intake, bank=1):
        intake.queue([LARGE[0]])
        guard.start()
        deadline = time.monotonic() + PATIENCE_S
        while not worker.turn.load(FAULTS):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    intake.queue(SMALL)
    assert worker.turn.load(STATE) == GUARDED
    worker._catch_up()
    guard.leave()
    intake.take([])
    assert (intake.stored(), lost(intake)) == (SMALL, 1)


def locked_bytes() -> int:
    """What this process has locked in memory."""
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
