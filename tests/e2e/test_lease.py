"""Delivery on lease: a job beside a live daemon and without one, and SIGKILLs of both.

These are the tests of `cli.daemon.delivery_worker`, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from spool.layout import SENT, Layout
from spool.log.quotas import OPEN, row_at
from spool.marks.lease import read_ask, read_grant
from spool.marks.outcome_file import list_outcomes
from spool.shared.state import Field, read_shared_state
from status.report import Snapshot
from tests.cli.program import run
from tests.daemon import RunningBruce, consume, halt
from tests.e2e.job import Died, Job
from tests.router.outlet import check_order, duplicates, keyed, numbers

pytestmark = pytest.mark.crash
PARTITIONS = 4
COUNT = 400


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers."""
    with EmbeddedKafka(brokers=2, topics=[("t", PARTITIONS)]) as running:
        yield running


class LeaseRun:
    """A spool with a backlog, its daemon, its Kafka, and its jobs."""

    def __init__(self, directory: Path, kafka: EmbeddedKafka) -> None:
        self.kafka, self.points = kafka, directory / "points"
        self.bruce = RunningBruce(directory, kafka.bootstrap_servers)
        self.bruce.environ["BRUCE_CRASH_POINTS"] = str(self.points)
        self.layout = Layout(self.bruce.spool)
        self.sent = 0
        self.jobs: list[Job] = []

    def job(self, *, mortal: bool = False) -> Job:
        """A job that has begun to ask. `mortal`: the crash points are its own, too."""
        servers, environ = self.kafka.bootstrap_servers, dict(self.bruce.environ)
        if not mortal:
            del environ["BRUCE_CRASH_POINTS"]
        self.jobs.append(Job(self.bruce.spool, servers, PARTITIONS, environ))
        return self.jobs[-1]

    def send(self, count: int = COUNT) -> None:
        """Have these accepted and committed."""
        self.sent += self.bruce.send(keyed(count, first=self.sent))
        self.bruce.await_status(lambda s: s.watermarks.synced == self.sent)

    def backlog(self) -> Job:
        """With Kafka away messages are sent, and a job gets delivery; then Kafka is there again."""
        self.kafka.down()
        self.send()
        job = self.job()
        assert job.answer()[:2] == ["lent", self.sent]
        self.kafka.up()
        return job

    def settled(self) -> Snapshot:
        """Everything that was sent is delivered, and the totals say so."""
        seen = self.bruce.await_status(lambda s: s.backlog == 0 and s.lent is None, 60)
        assert (seen.received, seen.delivered, seen.discarded) == (self.sent, self.sent, {})
        return seen

    def records(self) -> list[Message]:
        """The records in Kafka: everything, in order, each number with one identity."""
        records = consume(self.kafka.bootstrap_servers, "t", PARTITIONS, self.sent, 60)
        assert set(numbers(records)) == set(range(self.sent))
        check_order(records)
        identities = {
            (n, dict(r.headers() or [])["bruce-id"]) for n, r in zip(numbers(records), records, strict=True)
        }
        assert len(identities) == self.sent
        return records

    def worker(self) -> int:
        """The pid of the delivery worker."""
        return next(w.pid for w in self.bruce.status().workers if w.role == "delivery")

    def close(self) -> None:
        """End everything."""
        for job in self.jobs:
            job.close()
        self.bruce.close()


@pytest.fixture
def lease_run(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[LeaseRun]:
    """With its daemon running."""
    made = LeaseRun(tmp_path, kafka)
    try:
        made.bruce.start()
        yield made
    finally:
        made.close()


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


@pytest.mark.sample("lend.granted", "file.named")
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


@pytest.mark.sample("exactly_once")
@pytest.mark.parametrize("mode", ["exactly_once", "at_most_once"])
def test_in_every_mode(lease_run: LeaseRun, mode: str) -> None:
    """Delivery is lent and taken back, twice, and the next daemon finds the marks that it expects."""
    lease_run.bruce.stop()
    lease_run.bruce.configure({"dispatch": {"mode": mode}})
    lease_run.bruce.start()
    for _ in range(2):
        lease_run.send(100)
        lease_run.bruce.await_status(lambda s: s.backlog == 0, 60)
        job = lease_run.job()
        job.answer()
        lease_run.send(100)
        job.tell("end")
        job = lease_run.job()
        job.answer()
        job.tell("send", 50)
        job.tell("record")
        job.end()
        lease_run.settled()
        lease_run.bruce.kill9()
        lease_run.bruce.start()
    lease_run.bruce.await_status(lambda s: s.trouble is None)
    assert duplicates(lease_run.records()) == 0


def test_a_job_asks_and_dies_before_it_is_answered(lease_run: LeaseRun) -> None:
    """The daemon does not wait for it."""
    halt(lease_run.worker())
    lease_run.send(10)
    job = lease_run.job()
    lease_run.bruce.await_true(
        lambda: lease_run.layout.lease.exists() and lease_run.layout.lease.stat().st_size > 32
    )
    job.kill9()
    os.kill(lease_run.worker(), signal.SIGCONT)
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


@pytest.mark.sample("lend.ended-1", "adopt.marked-1")
@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("lend.settled", 1),
        ("lend.granted", 1),
        ("lend.ended", 1),
        ("adopt.marked", 1),
        ("adopt.marked", 2),
        ("adopt.removed", 1),
        ("mark.written", 2),
    ],
)
def test_the_delivery_worker_dies(lease_run: LeaseRun, point: str, times: int) -> None:
    """At each step of lending, taking over and taking back, twice at those that come twice: without harm."""
    armed = "".join(f"{point}\n" for _ in range(times))
    if point.startswith("lend.") and point != "lend.ended":
        lease_run.points.write_text(armed)
    job = lease_run.backlog()
    job.tell("send", 200)
    if not point.startswith("lend."):
        lease_run.points.write_text(armed)
    job.tell("record")
    lease_run.bruce.await_status(lambda s: s.delivered == 200)
    # Or else the driver, which writes marks while there is no owner, may come first.
    lease_run.bruce.await_true(lambda: point == "lend.ended" or lease_run.points.read_text() == "")
    assert job.tell("check") == "held"
    job.tell("send", 100)
    job.tell("record")
    if point == "lend.ended":
        lease_run.points.write_text(armed)
    job.end()
    lease_run.settled()
    lease_run.bruce.await_true(lambda: lease_run.points.read_text() == "")
    assert duplicates(lease_run.records()) == 0
    lease_run.bruce.await_status(lambda s: s.workers[-1].restarts >= times)


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


def test_only_jobs_deliver(lease_run: LeaseRun) -> None:
    """engine = "spark": bruce takes in and writes down, frees segments, and says when no job is there."""
    lease_run.bruce.stop()
    lease_run.bruce.configure({"dispatch": {"engine": "spark"}})
    lease_run.bruce.start()
    lease_run.send(3000)
    seen = lease_run.bruce.await_status(lambda s: s.trouble is not None and not s.brokers)
    assert (seen.backlog, seen.lent) == (3000, None)
    assert (seen.trouble or "").startswith(
        'no job delivers, which [dispatch] engine = "spark" leaves to them'
    )
    job = lease_run.job()
    job.answer()
    lease_run.bruce.await_status(lambda s: s.trouble is None and s.lent is not None)
    job.tell("send", 2500)
    job.tell("record")
    lease_run.bruce.await_status(lambda s: s.watermarks.delivered == 2500)
    lease_run.bruce.await_true(lambda: any(suffix == SENT for _, suffix in lease_run.layout.list_segments()))
    job.end()
    assert lease_run.bruce.stop() == 0
    lease_run.bruce.start()
    assert lease_run.bruce.await_status(lambda s: s.trouble is not None).backlog == 500
    lease_run.bruce.configure({"dispatch": {"engine": "live"}})
    lease_run.bruce.tell(signal.SIGHUP)
    lease_run.settled()
    assert duplicates(lease_run.records()) == 0


@pytest.mark.long
def test_room_is_made_while_only_jobs_deliver(lease_run: LeaseRun) -> None:
    """when_full = "discard_oldest": what no job has delivered is given up, counted, and stays away."""
    lease_run.bruce.stop()
    room = {"max_bytes": 6 * (256 << 10), "when_full": "discard_oldest", "recompress": False}
    lease_run.bruce.configure({"dispatch": {"engine": "spark"}, "spool": room})
    lease_run.bruce.start()
    sent = lease_run.bruce.send(keyed(3000, bytes_each=1000))
    seen = lease_run.bruce.await_status(lambda s: s.received == sent and s.discarded.get("evicted", 0) > 500)
    assert seen.received == sent == seen.backlog + sum(seen.discarded.values())
    job = lease_run.job()
    job.answer()
    job.tell("send", sent)
    job.tell("record")
    job.end()
    seen = lease_run.bruce.await_status(lambda s: s.backlog == 0)
    assert seen.delivered + sum(seen.discarded.values()) == sent


@pytest.mark.long
def test_a_quota_is_free_again_when_a_job_has_delivered(lease_run: LeaseRun) -> None:
    """Messages counted as open while bruce delivered itself are not counted for ever."""
    lease_run.bruce.stop()
    lease_run.bruce.configure({'topics."t"': {"quota": "2%"}})
    lease_run.bruce.start()
    lease_run.kafka.down()
    sent = lease_run.bruce.send(keyed(3000, bytes_each=1000))
    seen = lease_run.bruce.await_status(lambda s: s.received == sent and bool(s.full))
    assert seen.full[0].topic == "t"
    job = lease_run.job()
    job.answer()
    lease_run.kafka.up()
    job.tell("send", sent)
    job.tell("record")
    seen = lease_run.bruce.await_status(lambda s: s.backlog == 0 and not s.full)
    assert seen.lent is not None
    shared = next(lease_run.bruce.runtime.glob("*.page"))

    def told() -> bool:
        words = read_shared_state(shared)
        assert words is not None
        return (
            words[row_at(0) + OPEN] == 0
            and words[Field.READ_POSITION] == words[Field.LOW_WATERMARK] >= seen.delivered
        )

    lease_run.bruce.await_true(told)
    before = seen.delivered
    lease_run.bruce.send(keyed(10))
    lease_run.bruce.await_status(lambda s: s.backlog == 10)
    job.end()
    lease_run.bruce.await_status(lambda s: s.delivered == before + 10)
