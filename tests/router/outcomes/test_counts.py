"""Every discard is in the log, and no flood of them floods it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.outcomes.counts import MOST_TOPICS, DiscardLog, OpenCounts
from router.timing import DISCARD_LINES_S
from spool.format.batch import Topics
from spool.format.wire import DEAD_LETTERED, Reason
from tests.router.fake import Clock


def said(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The counts of the lines so far."""
    return [int(record.getMessage().split()[0].replace(",", "")) for record in caplog.records]


def test_the_first_at_once_the_others_together(caplog: pytest.LogCaptureFixture) -> None:
    """One line for the first, one a while for all that follow; none is left out at the end."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(10_000):
        log.note(Reason.TOO_LARGE, b"t", number, 1)
        clock.now += 0.01
        log.flush()
    clock.now += DISCARD_LINES_S
    log.flush()
    assert 10_000 * 0.01 / DISCARD_LINES_S <= len(caplog.records) <= 10_000 * 0.01 / DISCARD_LINES_S + 2
    assert sum(said(caplog)) == 10_000
    assert caplog.messages[0] == "1 message from 0 on discarded: too_large (larger than Kafka takes), topic t"
    clock.now += DISCARD_LINES_S
    log.flush()
    assert sum(said(caplog)) == 10_000
    assert log._open == {}


def test_the_last_ones(caplog: pytest.LogCaptureFixture) -> None:
    """At the end all are said, before their time."""
    log = DiscardLog(clock=Clock())
    for number in range(10):
        log.note(Reason.TOO_LARGE, b"t", number, 1)
    for _ in range(2):
        log.close()
    assert said(caplog) == [1, 9]


def test_each_reason_and_topic_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A flood of one does not hide another."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(100):
        log.note(Reason.TOO_LARGE, b"t", number, 1)
    log.note(Reason.TOO_LARGE | DEAD_LETTERED, b"t", 100, 5)
    log.note(Reason.UNKNOWN_TOPIC, b"u", 105, 7)
    assert caplog.messages[1:] == [
        "5 messages from 100 on went to the dead-letter topic: too_large (larger than Kafka takes), topic t",
        "7 messages from 105 on discarded: unknown_topic (Kafka does not have its topic), topic u",
    ]


def test_thousands_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    """They share a line a while; the counts are right, and the memory is bounded."""
    clock = Clock()
    log = DiscardLog(clock=clock)
    for number in range(20_000):
        log.note(Reason.UNKNOWN_TOPIC, b"t%d" % number, number, 1)
    assert len(caplog.records) <= MOST_TOPICS + 1
    assert len(log._open) <= MOST_TOPICS + 1
    clock.now += DISCARD_LINES_S
    log.flush()
    assert sum(said(caplog)) == 20_000


NAMES = [b"a", b"b"]


class CountsFixture:
    """OpenCounts, and its last report."""

    def __init__(self) -> None:
        self.topics, self.told = Topics(), (0, [0, 0])
        self.topics.add(b"other")
        self.shares = OpenCounts(NAMES, self.topics, self._note)

    def _note(self, place: int, counts: npt.NDArray[np.int64]) -> None:
        self.told = place, counts.tolist()


class Read:
    """As much of a batch as shares look at."""

    def __init__(self, topic: list[int]) -> None:
        self.topic = np.array(topic, np.int32)


courses = st.lists(st.tuples(st.sampled_from(["read", "sent", "discarded"]), st.integers(0, 2)), max_size=60)


@given(courses)
def test_what_is_read_and_not_resolved_is_open(course: list[tuple[str, int]]) -> None:
    """Over any course of messages read, delivered and discarded; never below zero."""
    fixture, model = CountsFixture(), [0, 0, 0]
    for what, topic in course:
        if what == "read":
            rows = np.array([True, False])
            fixture.shares.note_read(Read([topic, topic]), rows)  # type: ignore[arg-type]
            model[topic] += 1
        elif what == "sent":
            fixture.shares.note_resolved(np.array([topic], np.int32))
            model[topic] = max(0, model[topic] - 1)
        else:
            fixture.shares.note_discarded(fixture.topics.names[topic], 1)
            model[topic] = max(0, model[topic] - 1)
    fixture.shares.report(100, 50)
    assert fixture.told == (100, model[1:])


def test_nothing_is_open_below_the_floor() -> None:
    """Once all messages read are resolved the count begins at 0 again, whatever it had come to."""
    fixture = CountsFixture()
    fixture.shares.note_read(Read([1, 1, 2]), np.ones(3, np.bool_))  # type: ignore[arg-type]
    fixture.shares.report(10, 10)
    assert fixture.told == (10, [0, 0])
