"""The conditions under which a bruce is unhealthy: each alone, just beyond its limit, without another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatch.topic_settings import Lateness
from status.health import Health, Limits, complaints, in_words
from status.report import (
    BrokerView,
    FullView,
    OldestView,
    OtherRelease,
    RateView,
    Report,
    RoomView,
    Snapshot,
    SpoolView,
    Watermarks,
    WorkerView,
)
from tests.status.test_witness import SPOOL, spool, tier, view

WELL = Snapshot(
    spool=SpoolView("uuid", "/spool", 1, 1),
    watermarks=Watermarks(9, 9, 9, 5),
    received=9,
    delivered=5,
    discarded={"short": 1},
    backlog=3,
    full=[],
    disk=None,
    lost_inputs=None,
    workers=[WorkerView(role, 10, 0, alive=True) for role in ("supervisor", "ingest", "keeper", "delivery")],
    brokers=[BrokerView(1, "stalled", 5, 2, 4)],
    trouble=None,
    dead_lettered=0,
    acknowledgements=None,
    kafka=None,
    lent=None,
    unadopted=0,
    held=False,
    other_release=None,
    senders=[],
    inputs=[],
)
HEALTHY = Report(
    taken="2026-11-21T17:00:00Z",
    snapshot=WELL,
    minute=RateView(60, 1, 1, 0),
    quarter_hour=RateView(900, 1, 1, 0),
    topics=((b"t", 3),),
    topics_estimated=False,
    oldest=OldestView(5, "2026-11-21T16:45:00Z", 900),
    room=RoomView(1000, 10, 1.0),
    last_trouble=None,
    marked=True,
)
FULL = FullView("max_bytes", None, "2026-11-21T16:45:00Z", "the spool is full")


LIMITS = Limits()


def conditions(report: Report, limits: Limits = LIMITS) -> list[str]:
    """The problems, as names for programs."""
    return [one.condition for one in complaints(report, limits)]


def but(**changes: Any) -> Report:
    """The healthy report with a changed snapshot."""
    return replace(HEALTHY, snapshot=replace(WELL, **changes))


def test_healthy() -> None:
    """A backlog, an old discard, a stalled broker, and figures exactly at their limits are no complaint.

    Nor is a witness that has stopped, that cannot read a tier, or that finds messages late or twice.
    """
    assert conditions(HEALTHY) == []
    late = tier("main", spool(late=1, duplicated=1, uncompared_blocks=1), skipped=1, error="away")
    assert conditions(replace(HEALTHY, witness=view(late, problem="it has stopped"))) == []
    assert conditions(replace(HEALTHY, minute=None, quarter_hour=None, oldest=None, room=None)) == []


@pytest.mark.parametrize(
    ("report", "condition", "words"),
    [
        (but(workers=[], brokers=[]), "stopped", "no daemon is running on this spool, and 3 messages wait"),
        (
            but(workers=[], brokers=[], other_release=OtherRelease(77, "brucepg9", "brucepg6")),
            "release",
            "a daemon of another release is running (process 77; its page is brucepg9, ours is brucepg6)",
        ),
        (
            but(workers=[*WELL.workers[:3], WorkerView("delivery", 10, 4, alive=False)]),
            "worker",
            "the delivery worker is not running; it was started again 4 times",
        ),
        (
            but(workers=[*WELL.workers[:3], WorkerView("delivery", 10, 0, True, 14.2)]),
            "worker",
            "the delivery worker (10) has done nothing for 14 s",
        ),
        (
            but(workers=[*WELL.workers[:3], WorkerView("keeper", 10, 0, True, 14.2, waits_for_disk=True)]),
            "disk",
            "the keeper worker (10) has waited for the disk for 14 s",
        ),
        (but(lost_inputs="programs do not reach"), "inputs", "programs do not reach"),
        (but(trouble="no broker can be reached"), "trouble", "no broker can be reached"),
        (
            replace(HEALTHY, oldest=OldestView(5, "2026-11-21T16:44:59Z", 900.1)),
            "old",
            "has waited for 15 min 0 s, longer than 15 min 0 s",
        ),
        (
            replace(
                HEALTHY,
                lateness={b"t": Lateness(600, None), b"u": Lateness(1, None)},
                oldest_records={b"t": 900},
            ),
            "late",
            "topic t keeps messages for 10 min 0 s from their own timestamps, and the oldest of it that "
            "waits in the spool is 15 min 0 s old: Kafka deletes such messages soon after they are "
            "delivered; "
            "raise retention.ms of the topic, or set its message.timestamp.type to LogAppendTime",
        ),
        (but(full=[FULL]), "full", "the spool is full"),
        (replace(HEALTHY, room=RoomView(1000, 10, 0.99)), "filling", "the spool is full in 59 min 24 s"),
        (
            # As many as there were, and not a rate times a time.
            replace(HEALTHY, quarter_hour=RateView(890, 1, 1, 0.1), discarded_lately=87),
            "discards",
            "87 messages were discarded in the last 14 min 50 s",
        ),
        (but(disk="the disk refuses"), "disk", "the disk refuses"),
        (replace(HEALTHY, marked=False), "marks", "the marks cannot be read"),
        (
            replace(HEALTHY, witness=view(tier("main", spool(missing=3)))),
            "witness",
            f"in tier main, of spool {SPOOL} of alpha: 3 missing; see brucectl audit --witness",
        ),
        (
            replace(HEALTHY, witness=view(tier("main", spool(altered_blocks=1)), problem="it has stopped")),
            "witness",
            "of alpha: 1 block altered; ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_condition(report: Report, condition: str, words: str) -> None:
    """One complaint, in one sentence."""
    (one,) = complaints(report, Limits())
    assert one.condition == condition
    assert words in one.sentence
    assert "\n" not in one.sentence


def test_topics_that_keep_nothing_so_late() -> None:
    """One sentence however many there are; none of topics with no message that is too old for them."""
    many = replace(
        HEALTHY,
        topics=((b"t", 3), (b"u", 1), (b"v", 1)),
        lateness={b"t": Lateness(60, 60), b"u": Lateness(60, None), b"v": Lateness(900, None)},
    )
    (one,) = complaints(replace(many, oldest_records={b"t": 900, b"u": 61, b"v": 900}), Limits())
    assert "topic t keeps messages for 1 min 0 s" in one.sentence
    assert one.sentence.endswith("; the same is true of 1 other topic")
    (one,) = complaints(replace(many, oldest_records={b"t": 900, b"u": 60}), Limits())
    assert "topic t keeps messages" in one.sentence
    assert "other topic" not in one.sentence
    assert conditions(replace(many, oldest_records={b"t": 59, b"v": 900, b"w": 900})) == []


def test_limits() -> None:
    """The caller sets --max-age and --full-within; a full spool is not reported as filling, too."""
    assert conditions(HEALTHY, Limits(max_age_s=899)) == ["old"]
    assert conditions(HEALTHY, Limits(full_within_s=3601)) == ["filling"]
    assert conditions(replace(but(full=[FULL]), room=RoomView(1000, 1000, 0.0))) == ["full"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (7800, "2 h 10 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    """The two largest units."""
    assert in_words(seconds) == words


def test_alive_and_ready() -> None:
    """A worker that hangs fails liveness, and an intake that hangs or cannot be reached readiness.

    A disk that does not answer fails neither: no restart would help.
    """

    def health(role: str, *, disk: bool = False, lost: str = "") -> Health:
        workers = [*WELL.workers, WorkerView(role, 10, 0, True, 14.2, waits_for_disk=disk)]
        return Health(workers, [], 0, held=False, lost_inputs=lost)

    said = ["the keeper worker (10) has done nothing for 14 s"]
    assert (health("keeper").not_alive(), health("keeper").not_ready()) == (said, said)
    assert health("delivery").not_alive() == ["the delivery worker (10) has done nothing for 14 s"]
    assert health("delivery").not_ready() == []
    waits = health("keeper", disk=True)
    assert (waits.not_alive(), waits.not_ready()) == ([], [])
    lost = health("keeper", disk=True, lost="programs do not reach it")
    assert (lost.not_alive(), lost.not_ready()) == ([], ["programs do not reach it"])
