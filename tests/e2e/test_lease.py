"""Delivery on lease: a job beside a live daemon and without one, and SIGKILLs of both."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from spool.marks.lease import read_ask, read_grant
from spool.marks.outcome_file import list_outcomes
from tests.cli.program import run
from tests.daemon import halt
from tests.e2e.job import Died
from tests.e2e.lease_run import COUNT, LeaseRun
from tests.router.outlet import duplicates

pytestmark = pytest.mark.crash


def test_beside_a_live_daemon(lease_run: LeaseRun) -> None:
    """The job gets delivery, intake goes on; the daemon takes over what it did, and delivers the rest."""
    job = lease_run.backlog()
    seen = lease_run.bruce.status()
    assert seen.lent is not None
    assert (seen.lent.pid, seen.lent.until) == (job.pid, COUNT)
    assert (
        f"delivery is lent to process {job.pid} on " in run("status", environ=lease_run.bruce.environ).stdout
    )
    lease_run.send(100)
    assert len(job.tell("send", COUNT // 2)) == COUNT // 2
    job.tell("record")
    lease_run.bruce.await_status(lambda s: s.delivered == COUNT // 2 and s.watermarks.delivered == COUNT // 2)
    assert len(job.tell("send", COUNT)) == COUNT // 2
    job.tell("record")
    assert job.tell("check") == "held"
    seen = lease_run.bruce.await_status(
        lambda s: s.delivered == COUNT and s.trouble is None and not s.brokers
    )
    assert seen.backlog == 100
    job.end()
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0
    assert list(lease_run.layout.outcomes.iterdir()) == []


@pytest.mark.sample("9")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_without_a_daemon(lease_run: LeaseRun, stop: signal.Signals) -> None:
    """After any end of the daemon the driver writes the marks; a daemon that starts sends nothing again."""
    lease_run.kafka.down()
    lease_run.send()
    if stop == signal.SIGKILL:
        lease_run.bruce.kill9()
    else:
        lease_run.bruce.stop()
    lease_run.kafka.up()
    job = lease_run.job()
    assert job.answer()[:2] == ["lent", COUNT]
    job.tell("send", 150)
    job.tell("record")
    job.tell("settle")
    assert lease_run.bruce.status().delivered == 150
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    seen = lease_run.settled()
    assert seen.workers == []
    lease_run.bruce.start()
    lease_run.send(50)
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0


def test_the_driver_dies(lease_run: LeaseRun) -> None:
    """SIGKILL: the daemon takes delivery back by itself, with what was written down; the rest goes again."""
    job = lease_run.backlog()
    job.tell("send", 200)
    job.tell("record")
    again = len(job.tell("send", 100))
    job.kill9()
    lease_run.settled()
    assert duplicates(lease_run.records()) == again


@pytest.mark.long
def test_the_driver_dies_without_a_daemon(lease_run: LeaseRun) -> None:
    """The next who owns the marks takes over what it left: another job, and after that a daemon."""
    lease_run.kafka.down()
    lease_run.send()
    lease_run.bruce.kill9()
    lease_run.kafka.up()
    again = 0
    for _ in range(2):
        job = lease_run.job()
        job.answer()
        job.tell("send", 100)
        job.tell("record")
        again += len(job.tell("send", 30))
        job.kill9()
    assert len(list_outcomes(next(lease_run.layout.outcomes.iterdir()))) == 1
    lease_run.bruce.start()
    lease_run.settled()
    assert duplicates(lease_run.records()) == again


@pytest.mark.sample("lend.granted")
@pytest.mark.parametrize(
    "point",
    [
        "lend.settled",
        "lend.granted",
        "file.synced",
        "file.named",
        "adopt.marked",
        "adopt.removed",
        "lend.ended",
    ],
)
def test_the_driver_dies_as_the_owner(lease_run: LeaseRun, point: str) -> None:
    """Without a daemon, at each step of what an owner does: the next job, then a daemon, go on from there."""
    lease_run.kafka.down()
    lease_run.send()
    lease_run.bruce.kill9()
    lease_run.kafka.up()
    armed = f"{point}\n"
    if point in ("lend.settled", "lend.granted"):
        lease_run.points.write_text(armed)
    job = lease_run.job(mortal=True)
    sent = 0
    with contextlib.suppress(Died):
        job.answer()
        sent = len(job.tell("send", 100))
        if point not in ("lend.settled", "lend.granted"):
            lease_run.points.write_text(armed)
        job.tell("record")
        job.tell("settle")
        job.tell("end")
        pytest.fail("it did not die")
    assert lease_run.points.read_text() == ""
    job = lease_run.job()
    job.answer()
    job.tell("send", 100)
    job.tell("record")
    job.end()
    lease_run.bruce.start()
    lease_run.settled()
    assert duplicates(lease_run.records()) == (sent if point == "file.synced" else 0)


def test_drain_takes_over_what_a_dead_job_left(lease_run: LeaseRun) -> None:
    """`brucectl drain` without a daemon sends nothing again that tasks had written down."""
    job = lease_run.backlog()
    lease_run.bruce.kill9()
    job.tell("send", 150)
    job.tell("record")
    job.kill9()
    done = run("drain", environ=lease_run.bruce.environ)
    assert done.returncode == 0, done.stderr
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0


@pytest.mark.long
def test_the_next_job_begins_where_the_last_one_ended(lease_run: LeaseRun) -> None:
    """The worker does not look between two jobs: the second sends nothing of what the first wrote down."""
    job = lease_run.backlog()
    job.tell("send", 100)
    halt(lease_run.worker())
    job.tell("record")
    job.kill9()
    job = lease_run.job()
    lease_run.bruce.await_true(lambda: (ask := read_ask(lease_run.layout)) is not None and ask.pid == job.pid)
    os.kill(lease_run.worker(), signal.SIGCONT)
    job.answer()
    assert len(job.tell("send", COUNT)) == COUNT - 100
    job.tell("record")
    job.end()
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0


@pytest.mark.long
def test_one_job_at_a_time(lease_run: LeaseRun) -> None:
    """A second job gets the name of the one that delivers; so does `brucectl drain` without a daemon."""
    job = lease_run.backlog()
    other = lease_run.job()
    answer = other.answer()
    assert answer[0] == "busy"
    assert f"is held by process {job.pid}: it is already delivering by a job" in answer[1]
    lease_run.bruce.kill9()
    done = run("drain", environ=lease_run.bruce.environ)
    assert done.returncode == 1
    assert f"process {job.pid} on " in done.stderr
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    assert lease_run.settled().delivered == COUNT
    assert duplicates(lease_run.records()) == 0


def test_the_daemon_dies_and_comes_back(lease_run: LeaseRun) -> None:
    """SIGKILL of everything while a job delivers: the next daemon lends on, and takes over what it did."""
    job = lease_run.backlog()
    job.tell("send", 100)
    job.tell("record")
    lease_run.bruce.kill9()
    job.tell("send", 100)
    job.tell("record")
    token = read_grant(lease_run.layout)
    lease_run.bruce.start()
    lease_run.bruce.await_status(lambda s: s.delivered == 200)
    assert read_grant(lease_run.layout) == token
    assert job.tell("check") == "held"
    lease_run.send(10)
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0


def test_both_die(lease_run: LeaseRun) -> None:
    """SIGKILL of daemon and driver: the next daemon has what was written down, and sends the rest."""
    job = lease_run.backlog()
    job.tell("send", 100)
    job.tell("record")
    lease_run.bruce.kill9()
    job.tell("send", 100)
    job.tell("record")
    again = len(job.tell("send", 50))
    job.kill9()
    lease_run.bruce.start()
    lease_run.settled()
    assert duplicates(lease_run.records()) == again
