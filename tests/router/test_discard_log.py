"""Every discard is in the log, and no flood of them floods it."""

from __future__ import annotations

import re

import pytest

from router.discard_log import MOST_TOPICS, QUIET_S, DiscardLog
from spool.wire import DEAD_LETTERED, Reason
from tests.router.fake import Clock


def said(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The counts of the lines so far."""
    return [int(re.match(r"\d+", record.getMessage())[0]) for record in caplog.records]  # type: ignore[index]


def test_the_first_at_once_the_others_together(caplog: pytest.LogCaptureFixture) -> None:
    """One line for the first, one a while for all that follow; none is left out at the end."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(10_000):
        log.note(Reason.TOO_LARGE, b"t", number, 1)
        clock.now += 0.01
        log.flush()
    clock.now += QUIET_S
    log.flush()
    assert 10_000 * 0.01 / QUIET_S <= len(caplog.records) <= 10_000 * 0.01 / QUIET_S + 2
    assert sum(said(caplog)) == 10_000
    assert caplog.messages[0] == "1 messages from 0 on discarded: too_large t"
    clock.now += QUIET_S
    log.flush()
    assert sum(said(caplog)) == 10_000
    assert log._counts == {}


def test_each_reason_and_topic_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A flood of one does not hide another."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(100):
        log.note(Reason.TOO_LARGE, b"t", number, 1)
    log.note(Reason.TOO_LARGE | DEAD_LETTERED, b"t", 100, 5)
    log.note(Reason.UNKNOWN_TOPIC, b"u", 105, 7)
    assert caplog.messages[1:] == [
        "5 messages from 100 on went to the dead-letter topic: too_large t",
        "7 messages from 105 on discarded: unknown_topic u",
    ]


def test_thousands_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    """They share a line a while; the counts are right, and the memory is bounded."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(20_000):
        log.note(Reason.UNKNOWN_TOPIC, b"t%d" % number, number, 1)
    assert len(caplog.records) <= MOST_TOPICS + 1
    assert len(log._counts) <= MOST_TOPICS + 1
    clock.now += QUIET_S
    log.flush()
    assert sum(said(caplog)) == 20_000
