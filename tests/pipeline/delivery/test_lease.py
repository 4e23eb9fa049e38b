"""The driver's lease where its owner does not answer, takes it back, or is the driver itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pipeline.delivery.lease import DeliveryLease, delivery_lease
from pipeline.errors import JobFailed, LeaseLost, NotLent
from spool.errors import NoSpool, SpoolBusy
from spool.format.wire import Reason, encode
from spool.layout import Layout
from spool.marks.discard_file import DiscardFile, read_discard_file
from spool.marks.lease import read_ask, read_grant, write_grant
from spool.marks.outcome_file import write_outcomes
from spool.read.overview import take_totals
from spool.storage.lock import Lock
from tests.spool.fixture import SpoolFixture


def fill(spool: SpoolFixture, messages: int = 40) -> None:
    """Commit some."""
    spool.append([encode(b"t", b"v")] * messages)
    spool.step()


def deliver(lease: DeliveryLease, first: int, end: int) -> None:
    """A task is done."""
    write_outcomes(
        lease.outcomes, "task", lease.spool, np.arange(first, end), np.zeros(end - first, np.int32)
    )


def test_it_is_its_own_owner(spool: SpoolFixture) -> None:
    """Without a daemon: up to the committed end, settled when asked, and all in the marks at the end."""
    fill(spool)
    with delivery_lease(spool.layout) as lease:
        assert (lease.end, lease.spool) == (40, spool.identity.spool)
        fill(spool)
        deliver(lease, 0, 30)
        lease.settle()
        assert take_totals(spool.layout, list).low_watermark == 30
        deliver(lease, 30, 40)
        with pytest.raises(SpoolBusy, match="already delivering by a job"), delivery_lease(spool.layout):
            pass
        lease.check()
    account = take_totals(spool.layout, list)
    assert (account.low_watermark, account.backlog) == (40, 40)
    assert not lease.outcomes.exists()
    assert read_ask(spool.layout) is None
    grant = read_grant(spool.layout)
    assert grant is not None
    assert not grant.lent
    with pytest.raises(LeaseLost, match="was taken back"):
        lease.check()


def test_a_job_that_fails_leaves_what_it_wrote_down(spool: SpoolFixture) -> None:
    """Its error is what is raised; the next lease begins behind what was delivered."""
    fill(spool)

    def fail() -> None:
        with delivery_lease(spool.layout) as lease:
            deliver(lease, 0, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(list(spool.layout.outcomes.glob("*/*.out"))) == 1
    with delivery_lease(spool.layout):
        assert take_totals(spool.layout, list).low_watermark == 10


def test_nobody_answers(spool: SpoolFixture) -> None:
    """An owner that does not lend: one sentence after a while, and the job asks no more."""
    fill(spool)
    owner = Lock(spool.layout.owner, "delivering")
    with (
        pytest.raises(NotLent, match=r"does not lend delivery within 0 s"),
        delivery_lease(spool.layout, patience_s=0.3),
    ):
        pytest.fail("it was lent")
    assert read_ask(spool.layout) is None
    owner.release()


def test_nobody_takes_over(spool: SpoolFixture) -> None:
    """At the end the owner does not run: one sentence says where the lease is, and the next owner has it."""
    fill(spool)
    owners = []

    def end_in_vain() -> None:
        with delivery_lease(spool.layout, patience_s=0.3) as lease:
            deliver(lease, 0, 40)
            owners.append(Lock(spool.layout.owner, "delivering"))

    with pytest.raises(NotLent, match=r"are in .*/outcomes"):
        end_in_vain()
    owners[0].release()
    assert take_totals(spool.layout, list).low_watermark == 0
    with delivery_lease(spool.layout):
        assert take_totals(spool.layout, list).low_watermark == 40


@pytest.mark.parametrize("settles", [True, False])
def test_a_discard_file_that_cannot_be_written(spool: SpoolFixture, tmp_path: Path, *, settles: bool) -> None:
    """The job says so, and counts no discard that was not kept; the next owner has it."""
    fill(spool)
    path = tmp_path / "missing" / "discards"
    file = DiscardFile(path, 1 << 20)

    def end_in_vain() -> None:
        with delivery_lease(spool.layout, file=file) as lease:
            deliver(lease, 0, 30)
            reasons = np.full(10, Reason.TOO_LARGE, np.int32)
            write_outcomes(lease.outcomes, "task", lease.spool, np.arange(30, 40), reasons)
            if settles:
                lease.settle()

    with pytest.raises(JobFailed, match=r"missing/discards cannot be written \(No such file or directory\)"):
        end_in_vain()
    account = take_totals(spool.layout, list)
    assert (account.delivered, account.backlog, account.by_reason()) == (30, 10, {})
    path.parent.mkdir()
    with delivery_lease(spool.layout, file=file):
        account = take_totals(spool.layout, list)
    assert (account.backlog, account.by_reason()) == (0, {Reason.TOO_LARGE: 10})
    assert [one.sequence for one in read_discard_file(path)] == list(range(30, 40))


def test_it_is_taken_back(spool: SpoolFixture) -> None:
    """A job that was taken for dead learns it between two stages, and is not lent to again."""
    fill(spool)
    with delivery_lease(spool.layout) as lease:
        grant = read_grant(spool.layout)
        assert grant is not None
        write_grant(spool.layout, dataclasses.replace(grant, lent=False))
        with pytest.raises(LeaseLost, match="was taken back"):
            lease.settle()
        with pytest.raises(LeaseLost):
            lease.check()


def test_no_spool(tmp_path: Path) -> None:
    """A directory without a spool stays as it is."""
    with pytest.raises(NoSpool), delivery_lease(Layout(tmp_path / "none")):
        pass
    assert not (tmp_path / "none").exists()


def test_a_spool_that_was_never_delivered_from(spool: SpoolFixture) -> None:
    """A copy without delivery/ is one, too."""
    fill(spool)
    for path in sorted(spool.layout.delivery.rglob("*"), reverse=True):
        path.unlink()
    spool.layout.delivery.rmdir()
    with delivery_lease(spool.layout) as lease:
        deliver(lease, 0, 40)
    assert take_totals(spool.layout, list).low_watermark == 40
