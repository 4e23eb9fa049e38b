"""The log while Kafka, or a broker, is away: a line, one when it is over, and now and then one between."""

from __future__ import annotations

import pytest

from cli.delivery_log import REMIND_S, SETTLED_S, DeliveryLog
from dispatch.brokers import State
from tests.router.fake import Clock

AWAY = "no broker can be reached ({0}: Connect to ipv4#{0} failed: Connection refused): start Kafka"


def test_an_outage_is_a_line_and_reminders(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever broker failed last; the end says how long it took."""
    clock = Clock()
    told, hours = DeliveryLog(clock=clock), 3
    began = clock.now
    while clock.now - began < hours * 3600:
        for port in (9092, 9093, 9094):
            told.note_trouble(AWAY.format(f"kafka-1:{port}"))
            clock.now += 0.5
    assert len(caplog.messages) <= 1 + hours * 3600 / REMIND_S
    assert caplog.messages[0] == AWAY.format("kafka-1:9092")
    assert caplog.messages[1].startswith("for 10 min now: no broker can be reached (kafka-1:9092")
    told.note_trouble("")
    told.note_trouble("")
    assert caplog.messages[-1] == "messages can be sent again, after 10800 s"
    assert caplog.messages[-2] != caplog.messages[-1]


def test_another_reason_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """What was a network becomes a password."""
    told = DeliveryLog(clock=Clock())
    sentences = [AWAY.format("kafka-1:9092"), "Kafka refuses the password", AWAY.format("kafka-1:9093")]
    for sentence in sentences:
        told.note_trouble(sentence)
    assert caplog.messages == sentences


def test_a_broker_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """A line when it has been for a while, and one when it is back; a pause between batches is none."""
    clock = Clock()
    told = DeliveryLog(clock=clock)
    for state in (State.HEALTHY, State.STALLED, State.HEALTHY, State.STALLED, State.HEALTHY):
        told.note_brokers([(1, State.HEALTHY), (2, state)])
        clock.now += SETTLED_S - 0.1
    assert caplog.messages == []
    for _ in range(50):
        told.note_brokers([(1, State.HEALTHY), (2, State.STALLED)])
        clock.now += 1
    told.note_brokers([(1, State.HEALTHY), (2, State.HEALTHY)])
    assert caplog.messages == [
        "broker 2 does not answer; what goes to it waits in the spool",
        "broker 2 answers again, after 50 s",
    ]


def test_all_brokers_are_away(caplog: pytest.LogCaptureFixture) -> None:
    """That is one trouble, and no line a broker; the one that stays away when it is over has its line."""
    clock = Clock()
    told = DeliveryLog(clock=clock)
    for sentence in [*[AWAY.format("kafka-1:9092")] * 10, ""]:
        told.note_trouble(sentence)
        told.note_brokers([(1, State.STALLED), (2, State.STALLED if sentence else State.HEALTHY)])
        clock.now += 10
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        "no broker can be reached",
        "messages can be sent again, after 100 s",
        "broker 1 does not answer; what goes to it waits in the spool",
    ]
