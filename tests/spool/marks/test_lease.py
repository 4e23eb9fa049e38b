"""The lease of delivery: a job that asks and lives has it, a dead or frozen job has lost it, for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import SpoolBusy
from spool.layout import Layout
from spool.marks import lease
from spool.marks.lease import LEASE_S, Claim, Claims, LeaseGrant, lent_to, read_ask, read_grant, write_grant
from spool.storage.lock import HOLDER_BYTES, is_held
from tests.daemon import ROOT

BOOT, ANOTHER_BOOT = bytes(range(16)), bytes(16)
HERE, ELSEWHERE = bytes(range(16, 32)), bytes(range(32, 48))
"""Machine ids."""
JOB = """
import os
import sys
import time
from pathlib import Path
from spool.marks import lease
from spool.layout import Layout
lease.machine_id = lambda: bytes.fromhex(sys.argv[3])
if len(sys.argv) > 4:
    lease._host_name = lambda: sys.argv[4]
claim = lease.Claim(Layout(Path(sys.argv[1])), bytes.fromhex(sys.argv[2]), renew_s=0.01)
print(claim.token, flush=True)
for line in sys.stdin:
    if line == "fork\\n":
        child = os.fork()
        if not child:
            time.sleep(3600)
        print(child, flush=True)
        continue
    print("held" if claim.grant() else "lost", flush=True)
"""


class Clock:
    """Time that passes when a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A process that asks for the lease."""

    def __init__(self, layout: Layout, boot: bytes = BOOT, machine: bytes = HERE, *host: str) -> None:
        command = [sys.executable, "-c", JOB, str(layout.directory), boot.hex(), machine.hex(), *host]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self.token = self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        """Kill it, stop it, or continue it; wait until that has happened."""
        os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait(60)
        elif number == signal.SIGSTOP:
            os.waitpid(self._process.pid, os.WUNTRACED)

    def asks(self, question: str = "?") -> str:
        """Whether it holds the lease, by its own knowledge; `fork`: the pid of a child."""
        assert self._process.stdin
        assert self._process.stdout
        print(question, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.communicate(timeout=60)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """An empty spool, on a host with a machine id."""
    monkeypatch.setattr(lease, "machine_id", lambda: HERE)
    made = Layout(tmp_path)
    made.delivery.mkdir()
    return made


@pytest.fixture
def job(layout: Layout) -> Iterator[Job]:
    """A job of this host that asks for the lease."""
    made = Job(layout)
    yield made
    made.close()


def test_asking_and_giving_back(layout: Layout) -> None:
    """A request is visible with all its fields; a release leaves nothing."""
    claims = Claims(layout, BOOT)
    assert claims.current() is None
    claim = Claim(layout, BOOT)
    ask = claims.current()
    assert ask is not None
    assert (ask.pid, ask.boot, ask.token) == (os.getpid(), BOOT, claim.token)
    assert claim.grant() is None
    with pytest.raises(SpoolBusy, match=f"held by process {os.getpid()}: it is already delivering by a job"):
        Claim(layout, BOOT)
    write_grant(layout, LeaseGrant(claim.token, True, 5, 4711))
    assert claim.grant() == LeaseGrant(claim.token, True, 5, 4711)
    lent = lent_to(layout, BOOT)
    # Its beat may have gone on meanwhile.
    assert lent is not None
    assert (lent[0].token, lent[1]) == (claim.token, claim.grant())
    claim.release()
    assert (claims.current(), lent_to(layout, BOOT)) == (None, None)
    again = Claim(layout, BOOT)
    assert again.token != claim.token
    assert again.grant() is None
    again.release()


def test_a_dead_job_has_lost_it_at_once(layout: Layout, job: Job) -> None:
    """SIGKILL, in this boot: no time has to pass."""
    claims = Claims(layout, BOOT, clock=Clock())
    assert claims.current() is not None
    write_grant(layout, LeaseGrant(job.token, True, 0, 0))
    job.signal(signal.SIGKILL)
    assert (claims.current(), lent_to(layout, BOOT)) == (None, None)


def test_after_a_power_loss_it_is_lost_at_once(layout: Layout) -> None:
    """A job of this host, of another boot, without a lock: no time has to pass. With one it lives."""
    claims = Claims(layout, BOOT, clock=Clock())
    job = Job(layout, ANOTHER_BOOT)
    assert claims.current() is not None
    write_grant(layout, LeaseGrant(job.token, True, 0, 0))
    assert lent_to(layout, BOOT) is not None
    job.signal(signal.SIGKILL)
    assert (claims.current(), lent_to(layout, BOOT)) == (None, None)
    job.close()


def test_a_child_does_not_hold_it_for_the_dead(layout: Layout, job: Job) -> None:
    """A fork of a driver has its lock, too, but is not the driver: no time has to pass."""
    claims = Claims(layout, BOOT, clock=Clock())
    child = int(job.asks("fork"))
    try:
        job.signal(signal.SIGKILL)
        assert is_held(layout.lease)
        assert claims.current() is None
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_frozen_job_has_lost_it_for_good(layout: Layout, job: Job) -> None:
    """SIGSTOP for LEASE_S: lost; once that is recorded, it does not get the lease back when it wakes up."""
    clock = Clock()
    claims = Claims(layout, BOOT, clock=clock)
    write_grant(layout, LeaseGrant(job.token, True, 0, 0))
    assert job.asks() == "held"
    job.signal(signal.SIGSTOP)
    ask = claims.current()
    assert ask is not None
    clock.now += LEASE_S - 1
    assert claims.current() is not None
    clock.now += 2
    assert claims.current() is None
    write_grant(layout, LeaseGrant(job.token, False, 0, 0))
    job.signal(signal.SIGCONT)
    beat = ask.beat
    while (ask := read_ask(layout)) is None or ask.beat == beat:
        pass
    assert claims.current() is None
    assert job.asks() == "lost"


def test_a_busy_job_keeps_it(layout: Layout, job: Job) -> None:
    """While its beat moves, it keeps the lease, however late the owner looks."""
    clock = Clock()
    claims = Claims(layout, BOOT, clock=clock)
    beat = 0
    for _ in range(5):
        while (ask := read_ask(layout)) is None or ask.beat == beat:
            pass
        clock.now += 10 * LEASE_S
        # It may see a later beat than we did, which is not to be taken for a new one in the next turn.
        held = claims.current()
        assert held is not None
        beat = held.beat
    assert job.asks() == "lost"


@pytest.mark.parametrize("where", [(ELSEWHERE,), (HERE, "another-name"), (bytes(16),)])
def test_a_job_on_another_host(
    layout: Layout, where: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flock may be invisible here: only its beat counts. So for a clone, and for hosts without an id."""
    if not any(where[0]):
        monkeypatch.setattr(lease, "machine_id", lambda: bytes(16))
    clock = Clock()
    claims = Claims(layout, BOOT, clock=clock)
    job = Job(layout, ANOTHER_BOOT, *where)
    assert claims.current() is not None
    job.signal(signal.SIGKILL)
    assert claims.current() is not None
    clock.now += LEASE_S + 1
    # Its last write may have been new.
    claims.current()
    clock.now += LEASE_S + 1
    assert claims.current() is None
    job.close()


@given(st.data())
def test_what_is_damaged_is_nobody(chance: st.DataObject) -> None:
    """A lease or a grant with a wrong byte, or without its end, counts for nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        layout = Layout(Path(directory))
        layout.delivery.mkdir()
        claim = Claim(layout, BOOT)
        write_grant(layout, LeaseGrant(claim.token, True, 0, 9))
        claim.release()
        lease = layout.lease.read_bytes()
        assert lease == b""
        claim = Claim(layout, BOOT)
        lease = layout.lease.read_bytes()
        claim.release()
        for path, first, data in (
            (layout.lease, HOLDER_BYTES, lease),
            (layout.grant, 0, layout.grant.read_bytes()),
        ):
            wrong = bytearray(data)
            if chance.draw(st.booleans()):
                del wrong[chance.draw(st.integers(first, len(wrong) - 1)) :]
            else:
                wrong[chance.draw(st.integers(first, len(wrong) - 1))] ^= chance.draw(st.integers(1, 255))
            path.write_bytes(wrong)
        assert read_ask(layout) is None
        assert read_grant(layout) is None
