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


class Life:
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
        """Everything that was sent is delivered, and the books say so."""
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
def life(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[Life]:
    """With its daemon running."""
    made = Life(tmp_path, kafka)
    try:
        made.bruce.start()
        yield made
    finally:
        made.close()


def test_beside_a_live_daemon(life: Life) -> None:
    """The job gets delivery, intake goes on; the daemon takes over what it did, and delivers the rest."""
    job = life.backlog()
    seen = life.bruce.status()
    assert seen.lent is not None
    assert (seen.lent.pid, seen.lent.until) == (job.pid, COUNT)
    assert f"delivery is lent to process {job.pid} on " in run("status", environ=life.bruce.environ).stdout
    life.send(100)
    assert len(job.tell("send", COUNT // 2)) == COUNT // 2
    job.tell("record")
    life.bruce.await_status(lambda s: s.delivered == COUNT // 2 and s.watermarks.delivered == COUNT // 2)
    assert len(job.tell("send", COUNT)) == COUNT // 2
    job.tell("record")
    assert job.tell("check") == "held"
    seen = life.bruce.await_status(lambda s: s.delivered == COUNT and s.trouble is None and not s.brokers)
    assert seen.backlog == 100
    job.end()
    life.settled()
    assert duplicates(life.records()) == 0
    assert list(life.layout.outcomes.iterdir()) == []


@pytest.mark.sample("9")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_without_a_daemon(life: Life, stop: signal.Signals) -> None:
    """After any end of the daemon the driver writes the marks; a daemon that starts sends nothing again."""
    life.kafka.down()
    life.send()
    if stop == signal.SIGKILL:
        life.bruce.kill9()
    else:
        life.bruce.stop()
    life.kafka.up()
    job = life.job()
    assert job.answer()[:2] == ["lent", COUNT]
    job.tell("send", 150)
    job.tell("record")
    job.tell("settle")
    assert life.bruce.status().delivered == 150
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    seen = life.settled()
    assert seen.workers == []
    life.bruce.start()
    life.send(50)
    life.settled()
    assert duplicates(life.records()) == 0


def test_the_driver_dies(life: Life) -> None:
    """SIGKILL: the daemon takes delivery back by itself, with what was written down; the rest goes again."""
    job = life.backlog()
    job.tell("send", 200)
    job.tell("record")
    again = len(job.tell("send", 100))
    job.kill9()
    life.settled()
    assert duplicates(life.records()) == again


@pytest.mark.long
def test_the_driver_dies_without_a_daemon(life: Life) -> None:
    """The next who owns the marks takes over what it left: another job, and after that a daemon."""
    life.kafka.down()
    life.send()
    life.bruce.kill9()
    life.kafka.up()
    again = 0
    for _ in range(2):
        job = life.job()
        job.answer()
        job.tell("send", 100)
        job.tell("record")
        again += len(job.tell("send", 30))
        job.kill9()
    assert len(list_outcomes(next(life.layout.outcomes.iterdir()))) == 1
    life.bruce.start()
    life.settled()
    assert duplicates(life.records()) == again


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
def test_the_driver_dies_as_the_owner(life: Life, point: str) -> None:
    """Without a daemon, at each step of what an owner does: the next job, then a daemon, go on from there."""
    life.kafka.down()
    life.send()
    life.bruce.kill9()
    life.kafka.up()
    armed = f"{point}\n"
    if point in ("lend.settled", "lend.granted"):
        life.points.write_text(armed)
    job = life.job(mortal=True)
    sent = 0
    with contextlib.suppress(Died):
        job.answer()
        sent = len(job.tell("send", 100))
        if point not in ("lend.settled", "lend.granted"):
            life.points.write_text(armed)
        job.tell("record")
        job.tell("settle")
        job.tell("end")
        pytest.fail("it did not die")
    assert life.points.read_text() == ""
    job = life.job()
    job.answer()
    job.tell("send", 100)
    job.tell("record")
    job.end()
    life.bruce.start()
    life.settled()
    assert duplicates(life.records()) == (sent if point == "file.synced" else 0)


def test_drain_takes_over_what_a_dead_job_left(life: Life) -> None:
    """`brucectl drain` without a daemon sends nothing again that tasks had written down."""
    job = life.backlog()
    life.bruce.kill9()
    job.tell("send", 150)
    job.tell("record")
    job.kill9()
    done = run("drain", environ=life.bruce.environ)
    assert done.returncode == 0, done.stderr
    life.settled()
    assert duplicates(life.records()) == 0


@pytest.mark.sample("exactly_once")
@pytest.mark.parametrize("mode", ["exactly_once", "at_most_once"])
def test_in_every_mode(life: Life, mode: str) -> None:
    """Delivery is lent and taken back, twice, and the next daemon finds the marks that it expects."""
    life.bruce.stop()
    life.bruce.configure({"dispatch": {"mode": mode}})
    life.bruce.start()
    for _ in range(2):
        life.send(100)
        life.bruce.await_status(lambda s: s.backlog == 0, 60)
        job = life.job()
        job.answer()
        life.send(100)
        job.tell("end")
        job = life.job()
        job.answer()
        job.tell("send", 50)
        job.tell("record")
        job.end()
        life.settled()
        life.bruce.kill9()
        life.bruce.start()
    life.bruce.await_status(lambda s: s.trouble is None)
    assert duplicates(life.records()) == 0


def test_a_job_asks_and_dies_before_it_is_answered(life: Life) -> None:
    """The daemon does not wait for it."""
    halt(life.worker())
    life.send(10)
    job = life.job()
    life.bruce.await_true(lambda: life.layout.lease.exists() and life.layout.lease.stat().st_size > 32)
    job.kill9()
    os.kill(life.worker(), signal.SIGCONT)
    life.settled()
    assert duplicates(life.records()) == 0


@pytest.mark.long
def test_the_next_job_begins_where_the_last_one_ended(life: Life) -> None:
    """The worker does not look between two jobs: the second sends nothing of what the first wrote down."""
    job = life.backlog()
    job.tell("send", 100)
    halt(life.worker())
    job.tell("record")
    job.kill9()
    job = life.job()
    life.bruce.await_true(lambda: (ask := read_ask(life.layout)) is not None and ask.pid == job.pid)
    os.kill(life.worker(), signal.SIGCONT)
    job.answer()
    assert len(job.tell("send", COUNT)) == COUNT - 100
    job.tell("record")
    job.end()
    life.settled()
    assert duplicates(life.records()) == 0


@pytest.mark.long
def test_one_job_at_a_time(life: Life) -> None:
    """A second job gets the name of the one that delivers; so does `brucectl drain` without a daemon."""
    job = life.backlog()
    other = life.job()
    answer = other.answer()
    assert answer[0] == "busy"
    assert f"is held by process {job.pid}: it is already delivering by a job" in answer[1]
    life.bruce.kill9()
    done = run("drain", environ=life.bruce.environ)
    assert done.returncode == 1
    assert f"process {job.pid} on " in done.stderr
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    assert life.settled().delivered == COUNT
    assert duplicates(life.records()) == 0


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
def test_the_delivery_worker_dies(life: Life, point: str, times: int) -> None:
    """At each step of lending, taking over and taking back, twice at those that come twice: without harm."""
    armed = "".join(f"{point}\n" for _ in range(times))
    if point.startswith("lend.") and point != "lend.ended":
        life.points.write_text(armed)
    job = life.backlog()
    job.tell("send", 200)
    if not point.startswith("lend."):
        life.points.write_text(armed)
    job.tell("record")
    life.bruce.await_status(lambda s: s.delivered == 200)
    # Or else the driver, which writes marks while there is no owner, may come first.
    life.bruce.await_true(lambda: point == "lend.ended" or life.points.read_text() == "")
    assert job.tell("check") == "held"
    job.tell("send", 100)
    job.tell("record")
    if point == "lend.ended":
        life.points.write_text(armed)
    job.end()
    life.settled()
    life.bruce.await_true(lambda: life.points.read_text() == "")
    assert duplicates(life.records()) == 0
    life.bruce.await_status(lambda s: s.workers[-1].restarts >= times)


def test_the_daemon_dies_and_comes_back(life: Life) -> None:
    """SIGKILL of everything while a job delivers: the next daemon lends on, and takes over what it did."""
    job = life.backlog()
    job.tell("send", 100)
    job.tell("record")
    life.bruce.kill9()
    job.tell("send", 100)
    job.tell("record")
    token = read_grant(life.layout)
    life.bruce.start()
    life.bruce.await_status(lambda s: s.delivered == 200)
    assert read_grant(life.layout) == token
    assert job.tell("check") == "held"
    life.send(10)
    job.tell("send", COUNT)
    job.tell("record")
    job.end()
    life.settled()
    assert duplicates(life.records()) == 0


def test_both_die(life: Life) -> None:
    """SIGKILL of daemon and driver: the next daemon has what was written down, and sends the rest."""
    job = life.backlog()
    job.tell("send", 100)
    job.tell("record")
    life.bruce.kill9()
    job.tell("send", 100)
    job.tell("record")
    again = len(job.tell("send", 50))
    job.kill9()
    life.bruce.start()
    life.settled()
    assert duplicates(life.records()) == again


def test_only_jobs_deliver(life: Life) -> None:
    """engine = "spark": bruce takes in and writes down, frees segments, and says when no job is there."""
    life.bruce.stop()
    life.bruce.configure({"dispatch": {"engine": "spark"}})
    life.bruce.start()
    life.send(3000)
    seen = life.bruce.await_status(lambda s: s.trouble is not None and not s.brokers)
    assert (seen.backlog, seen.lent) == (3000, None)
    assert (seen.trouble or "").startswith(
        'no job delivers, which [dispatch] engine = "spark" leaves to them'
    )
    job = life.job()
    job.answer()
    life.bruce.await_status(lambda s: s.trouble is None and s.lent is not None)
    job.tell("send", 2500)
    job.tell("record")
    life.bruce.await_status(lambda s: s.watermarks.delivered == 2500)
    life.bruce.await_true(lambda: any(suffix == SENT for _, suffix in life.layout.list_segments()))
    job.end()
    assert life.bruce.stop() == 0
    life.bruce.start()
    assert life.bruce.await_status(lambda s: s.trouble is not None).backlog == 500
    life.bruce.configure({"dispatch": {"engine": "live"}})
    life.bruce.tell(signal.SIGHUP)
    life.settled()
    assert duplicates(life.records()) == 0


@pytest.mark.long
def test_room_is_made_while_only_jobs_deliver(life: Life) -> None:
    """when_full = "discard_oldest": what no job has delivered is given up, counted, and stays away."""
    life.bruce.stop()
    room = {"max_bytes": 6 * (256 << 10), "when_full": "discard_oldest", "recompress": False}
    life.bruce.configure({"dispatch": {"engine": "spark"}, "spool": room})
    life.bruce.start()
    sent = life.bruce.send(keyed(3000, bytes_each=1000))
    seen = life.bruce.await_status(lambda s: s.received == sent and s.discarded.get("evicted", 0) > 500)
    assert seen.received == sent == seen.backlog + sum(seen.discarded.values())
    job = life.job()
    job.answer()
    job.tell("send", sent)
    job.tell("record")
    job.end()
    seen = life.bruce.await_status(lambda s: s.backlog == 0)
    assert seen.delivered + sum(seen.discarded.values()) == sent


@pytest.mark.long
def test_a_quota_is_free_again_when_a_job_has_delivered(life: Life) -> None:
    """Messages counted as open while bruce delivered itself are not counted for ever."""
    life.bruce.stop()
    life.bruce.configure({'topics."t"': {"quota": "2%"}})
    life.bruce.start()
    life.kafka.down()
    sent = life.bruce.send(keyed(3000, bytes_each=1000))
    seen = life.bruce.await_status(lambda s: s.received == sent and bool(s.full))
    assert seen.full[0].topic == "t"
    job = life.job()
    job.answer()
    life.kafka.up()
    job.tell("send", sent)
    job.tell("record")
    seen = life.bruce.await_status(lambda s: s.backlog == 0 and not s.full)
    assert seen.lent is not None
    shared = next(life.bruce.runtime.glob("*.page"))

    def told() -> bool:
        words = read_shared_state(shared)
        assert words is not None
        return (
            words[row_at(0) + OPEN] == 0
            and words[Field.FRONTIER] == words[Field.LOW_WATERMARK] >= seen.delivered
        )

    life.bruce.await_true(told)
    before = seen.delivered
    life.bruce.send(keyed(10))
    life.bruce.await_status(lambda s: s.backlog == 10)
    job.end()
    life.bruce.await_status(lambda s: s.delivered == before + 10)
