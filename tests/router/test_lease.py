"""Lending while the disk takes nothing: delivery comes back all the same, and no two owners have it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from router.lease import LeaseManager
from router.outcome_import import OutcomeImport
from spool.log.recovery import boot_id
from spool.marks import lease
from spool.marks.lease import LEASE_S, Claim, Claims, read_grant
from spool.marks.outcome_file import write_outcomes
from tests.router.fake import Clock
from tests.spool.fixture import SpoolFixture


class Bank:
    """An owner and a job in one process; the job's beat does not go on by itself."""

    def __init__(self, directory: Path) -> None:
        self.spool, self.clock = SpoolFixture(directory), Clock()
        self.claim = Claim(self.spool.layout, boot_id(), renew_s=3600)
        claims = Claims(self.spool.layout, boot_id(), clock=self.clock)
        outcome_import = OutcomeImport(self.spool.layout, self.spool.identity.spool)
        self.lender = LeaseManager(self.spool.layout, claims, outcome_import, beside_keeper=True)

    def close(self) -> None:
        """End both."""
        self.claim.release()
        self.lender.close()
        self.spool.crash()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    """A job asks."""
    made = Bank(tmp_path)
    yield made
    made.close()


full = mock.patch.object(lease, "write_file", side_effect=OSError(errno.ENOSPC, "No space left on device"))


def test_a_frozen_job_on_a_full_disk(bank: Bank) -> None:
    """Its lease ends though nothing can be written, and it gets no other one when it wakes up."""
    assert bank.lender.step() is not None
    assert bank.claim.grant() is not None
    bank.clock.now += LEASE_S + 1
    with full:
        assert bank.lender.step() is None
    assert bank.claim.grant() is None
    assert list(bank.spool.layout.outcomes.iterdir()) == []
    bank.claim._renew()
    assert bank.lender.step() is None
    assert read_grant(bank.spool.layout) is None


def test_no_lease_before_it_is_known_what_is_synced(bank: Bank) -> None:
    """A daemon that has just started has no index yet: a power loss may take what is read."""
    bank.spool.fill(10)
    bank.spool.step()
    synced = bank.spool.synced
    bank.spool.fill(2)
    (bank.spool.layout.index / "committed").rename(bank.spool.layout.index / "kept")
    assert bank.lender.step() is None
    assert bank.claim.grant() is None
    (bank.spool.layout.index / "kept").rename(bank.spool.layout.index / "committed")
    assert bank.lender.step() is not None
    assert bank.claim.grant().end == synced


def test_marks_that_cannot_be_written(bank: Bank) -> None:
    """Delivery is not lent before the marks have an earlier job's outcomes: messages would be sent again."""
    bank.spool.fill(10)
    bank.spool.step()
    earlier = bank.spool.layout.outcomes / "earlier"
    earlier.mkdir(parents=True)
    none = np.zeros(10, np.int32)
    told = write_outcomes(earlier, "task", bank.spool.identity.spool, np.arange(10), none)
    with mock.patch.object(OutcomeImport, "_write_down", return_value=False):
        for _ in range(2):
            assert bank.lender.step() is None
            assert not bank.lender.settled
            assert bank.claim.grant() is None
            assert told.exists()
    assert bank.lender.step() is not None
    assert bank.lender.settled
    assert bank.claim.grant() is not None
    assert bank.lender.outcome_import.low_watermark == 10


def test_a_full_disk_lends_nothing(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the owner delivers itself."""
    caplog.set_level(logging.ERROR)
    with full:
        assert [bank.lender.step() for _ in range(3)] == [None, None, None]
    assert "delivery cannot be lent to process" in caplog.text
    assert len(caplog.messages) == 1
    assert bank.claim.grant() is None
