"""The delivery worker lends delivery, takes it back, dies on the way; or it only watches jobs."""

from __future__ import annotations

import os
import signal

import pytest

from spool.layout import SENT
from spool.log.quotas import OPEN, row_at
from spool.shared.state import Field, read_shared_state
from tests.daemon import halt
from tests.e2e.lease_run import LeaseRun
from tests.router.outlet import duplicates, keyed

pytestmark = pytest.mark.crash


@pytest.mark.long
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


@pytest.mark.sample("adopt.marked-1")
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
