"""The log while Kafka, or a broker, is away: it began, it lasts, it is over, what waited is delivered."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from cli.daemon import delivery_log
from cli.daemon.delivery import Progress, Waits
from cli.daemon.delivery_log import REMIND_S, SETTLED_S, DeliveryLog, room_left
from dispatch.tables import State
from router.cluster.brokers import BrokerView
from router.cluster.trouble import Cause
from spool.layout import Layout
from spool.shared.state import Field, SharedState
from tests.router.fake import Clock

AWAY = "no broker can be reached ({0}: Connect to ipv4#{0} failed: Connection refused): start Kafka"


@pytest.mark.parametrize(
    ("left", "said"), [(512_000 << 20, "500 GiB"), (33 << 20, "33 MiB"), ((1 << 30) - 1, "1 GiB"), (0, "0")]
)
def test_room_that_does_not_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, said: str
) -> None:
    """The log has the room that is left, with the unit that fits."""
    layout, shared = Layout(tmp_path), SharedState(tmp_path / "page")
    layout.segments.mkdir()
    monkeypatch.setattr(delivery_log, "waiting_bytes", lambda *_: 100)
    monkeypatch.setattr(delivery_log, "free_bytes", lambda _: (1 << 50, 1 << 50))
    assert room_left(layout, shared.words) == ""
    shared.words[Field.MAX_BYTES] = left + 100
    assert room_left(layout, shared.words) == f"{said} of the spool are left"


class Story:
    """A log, and what it is given."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.waits = Waits()
        self.log = DeliveryLog(lambda: "the spool is full in 3 h 20 min", clock=self.clock)

    def note(
        self,
        trouble: str = "",
        cause: Cause = Cause.OTHER,
        *,
        low_watermark: int = 0,
        delivered: int = 0,
        discarded: int = 0,
        brokers: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """One report of the deliverer."""
        views = [BrokerView(number, state, 0, 0, 0) for number, state in brokers]
        counts = delivered, discarded
        self.log.note(Progress(low_watermark, views, trouble, counts, cause=cause, waits=lambda: self.waits))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The lines of the log, INFO as well."""
    caplog.set_level(logging.INFO)
    return caplog


def test_an_outage_is_four_lines(told: pytest.LogCaptureFixture) -> None:
    """It began, it lasts, it is over, what waited is delivered; whichever broker failed last.

    Those that are delivered before librdkafka's statistics know of a connection waited, too.
    """
    story, hours = Story(), 3
    began = story.clock.now
    story.waits = Waits(1, 0, 1)
    while story.clock.now - began < hours * 3600:
        for port in (9092, 9093, 9094):
            story.note(AWAY.format(f"kafka-1:{port}"), Cause.KAFKA)
            story.clock.now += 0.5
        story.waits = Waits(6012, time.time_ns() - 603_000_000_000, 7000)
    assert len(told.messages) <= 1 + hours * 3600 / REMIND_S
    assert told.messages[0] == AWAY.format("kafka-1:9092") + "; 1 message waits"
    assert told.messages[1].startswith("for 10 min 0 s now: no broker can be reached (kafka-1:9092")
    end = "start Kafka; 6,012 messages wait, the oldest for 10 min 3 s; the spool is full in 3 h 20 min"
    assert told.messages[1].endswith(end)
    story.note(AWAY.format("kafka-1:9092"), Cause.KAFKA, delivered=12)
    told.clear()
    story.waits = Waits(6000, 1, 7000)
    for low_watermark in (1000, 1000, 6999):
        story.clock.now += 1
        story.note(low_watermark=low_watermark)
    story.note(low_watermark=7000)
    story.note(low_watermark=9000)
    assert told.messages == [
        "Kafka is back after 3 h 0 min; 6,012 messages waited",
        "the 6,012 messages that waited are delivered, in 3 s",
    ]
    assert [record.levelname for record in told.records] == ["WARNING", "INFO"]


def test_discarded_is_not_delivered(told: pytest.LogCaptureFixture) -> None:
    """The last line calls nothing delivered that was not; another outage before it takes its place."""
    story = Story()
    story.waits = Waits(5, 0, 5)
    for _ in range(2):
        story.note(AWAY, Cause.KAFKA)
        story.note(discarded=1)
    story.note(low_watermark=5)
    assert told.messages[-1] == (
        "the 5 messages that waited are delivered, or discarded (see brucectl discards), in 0 s"
    )
    assert sum("that waited" in line for line in told.messages) == 1


def test_a_topic_that_is_being_created_is_no_trouble(told: pytest.LogCaptureFixture) -> None:
    """Its line of INFO is written where it is learnt; here it has none, and ends an outage."""
    story = Story()
    story.note(AWAY, Cause.KAFKA)
    for _ in range(4):
        story.note("Kafka does not have the topic t yet", Cause.ABSENT)
        story.clock.now += REMIND_S
    story.note()
    assert [line.partition(" (")[0] for line in told.messages] == [
        "no broker can be reached",
        "Kafka is back after 0 s; 0 messages waited",
    ]


def test_another_reason_is_told_at_once(told: pytest.LogCaptureFixture) -> None:
    """A network error that becomes a wrong password is logged at once; both are one outage."""
    story = Story()
    for sentence in (AWAY.format("kafka-1:9092"), "Kafka refuses the password", AWAY.format("kafka-1:9093")):
        story.note(sentence, Cause.KAFKA)
        story.clock.now += 10
    story.note("no right to write to t")
    story.note()
    assert [line.partition(" (")[0] for line in told.messages] == [
        "no broker can be reached",
        "Kafka refuses the password; 0 messages wait",
        "no broker can be reached",
        "Kafka is back after 30 s; 0 messages waited",
        "no right to write to t",
        "messages can be sent again, after 30 s",
    ]


def test_a_broker_that_is_away(told: pytest.LogCaptureFixture) -> None:
    """A line after it was away for a while, and one when it is back; a pause between batches gives none."""
    story = Story()
    for state in (State.HEALTHY, State.STALLED, State.HEALTHY, State.STALLED, State.HEALTHY):
        story.note(brokers=((1, State.HEALTHY), (2, state)))
        story.clock.now += SETTLED_S - 0.1
    assert told.messages == []
    for _ in range(50):
        story.note(brokers=((1, State.HEALTHY), (2, State.STALLED)))
        story.clock.now += 1
    story.note(brokers=((1, State.HEALTHY), (2, State.HEALTHY)))
    assert told.messages == [
        "broker 2 does not answer; what goes to it waits in the spool",
        "broker 2 answers again, after 50 s",
    ]


def test_all_brokers_are_away(told: pytest.LogCaptureFixture) -> None:
    """One trouble, without a line for each broker; a broker that stays away afterwards has its line."""
    story = Story()
    for sentence in [*[AWAY.format("kafka-1:9092")] * 10, "", ""]:
        state = State.STALLED if sentence else State.HEALTHY
        story.note(sentence, Cause.KAFKA, brokers=((1, State.STALLED), (2, state)))
        story.clock.now += 10
    assert [line.partition(" (")[0] for line in told.messages] == [
        "no broker can be reached",
        "Kafka is back after 1 min 40 s; 0 messages waited",
        "broker 1 does not answer; what goes to it waits in the spool",
    ]


def test_delivery_has_started(told: pytest.LogCaptureFixture) -> None:
    """The first acknowledgement of a worker's life is a line; no other is."""
    story = Story()
    for count in (0, 0, 3, 5, 0):
        story.note(delivered=count)
    assert told.messages == ["delivery has started: Kafka acknowledges what it gets"]
