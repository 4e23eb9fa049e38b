"""Refused messages are in the log: at once, summed by reason, and not too often."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from spool.format.frame import DISCARDED, TAIL_FIELDS
from spool.format.wire import Reason
from spool.log.refusal_log import QUIET_S, RefusalLog
from spool.shared.ledger import Discards
from tests.router.fake import Clock


def test_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Earlier discards are not logged; the first is logged at once, and a flood is summed by reason."""
    clock, tail = Clock(), np.zeros(TAIL_FIELDS, np.int64)
    told = RefusalLog(clock=clock)
    tail[DISCARDED + Reason.SHORT] = 1000
    full = Discards(b"t", Reason.SPOOL_FULL, 50, 0, 0)
    told.note(tail, [full])
    assert caplog.messages == []
    tail[DISCARDED + Reason.SHORT] += 1
    told.note(tail, [full])
    said = "1 message was discarded at intake: 1 short (shorter than its header); `brucectl status` says who"
    assert caplog.messages[0].startswith(said)
    for _ in range(600):
        clock.now += QUIET_S / 60
        tail[DISCARDED + Reason.NOT_PERMITTED] += 7
        full = replace(full, count=full.count + 1)
        told.note(tail, [full])
    assert len(caplog.messages) == 1 + 10
    found = [re.findall(r"(\d+) (not_permitted|spool_full)", line) for line in caplog.messages[1:]]
    counts = {name: sum(int(n) for line in found for n, said in line if said == name) for _, name in found[0]}
    assert counts == {"not_permitted": 4200, "spool_full": 600}
    # Of messages without room no sender is known.
    assert all("`brucectl status` says who sent the others" in line for line in caplog.messages[1:])
    caplog.clear()
    clock.now += QUIET_S
    told.note(tail, [replace(full, count=full.count + 1)])
    assert caplog.messages == ["1 message was discarded at intake: 1 spool_full (the spool had no room)"]
    told.note(tail, [replace(full, count=full.count + 3)])
    assert len(caplog.messages) == 1
    for _ in range(2):
        told.note(tail, [replace(full, count=full.count + 3)], ends=True)
    said = "2 messages were discarded at intake: 2 spool_full (the spool had no room)"
    assert caplog.messages[1:] == [said]
