"""Refused messages in the log: told soon, counted in full, a line a minute."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from spool.frame import DISCARDED, TAIL_FIELDS
from spool.ledger import Discards
from spool.refusals import QUIET_S, RefusalLog
from spool.wire import Reason
from tests.router.fake import Clock


def test_lines(caplog: pytest.LogCaptureFixture) -> None:
    """What was refused before is no news; the first is told at once, and of a flood every one, by reason."""
    clock, tail = Clock(), np.zeros(TAIL_FIELDS, np.int64)
    told = RefusalLog(clock=clock)
    tail[DISCARDED + Reason.SHORT] = 1000
    full = Discards(b"t", Reason.SPOOL_FULL, 50, 0, 0)
    told.note(tail, [full])
    assert caplog.messages == []
    tail[DISCARDED + Reason.SHORT] += 1
    told.note(tail, [full])
    assert caplog.messages[0].startswith("1 messages were discarded at intake: short 1; `brucectl status`")
    for _ in range(600):
        clock.now += QUIET_S / 60
        tail[DISCARDED + Reason.NOT_PERMITTED] += 7
        full = replace(full, count=full.count + 1)
        told.note(tail, [full])
    assert len(caplog.messages) == 1 + 10
    found = [re.findall(r"(not_permitted|spool_full) (\d+)", line) for line in caplog.messages[1:]]
    counts = {name: sum(int(n) for line in found for said, n in line if said == name) for name, _ in found[0]}
    assert counts == {"not_permitted": 4200, "spool_full": 600}
