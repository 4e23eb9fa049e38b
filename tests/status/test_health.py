"""When a bruce is called unhealthy: each condition alone, just beyond its limit, and no other with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from status.health import Limits, complaints, in_words
from status.report import OldestView, RateView, Report, RoomView
from status.snapshot import BrokerView, FullView, OtherRelease, Snapshot, SpoolView, Watermarks, WorkerView

WELL = Snapshot(
    spool=SpoolView("uuid", "/spool", 1, 1),
    watermarks=Watermarks(9, 9, 9, 5),
    received=9,
    delivered=5,
    discarded={"short": 1},
    backlog=3,
    full=[],
    disk=None,
    workers=[WorkerView(role, 10, 0, alive=True) for role in ("supervisor", "ingest", "keeper", "delivery")],
    brokers=[BrokerView(1, "stalled", 5, 2, 4)],
    trouble=None,
    dead_lettered=0,
    acknowledgements=None,
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
    """What is wrong, in words for programs."""
    return [one.condition for one in complaints(report, limits)]


def but(**changes: Any) -> Report:
    """The healthy one with another snapshot."""
    return replace(HEALTHY, snapshot=replace(WELL, **changes))


def test_healthy() -> None:
    """A backlog, an old discard, a stalled broker, and figures right at their limits are no complaint."""
    assert conditions(HEALTHY) == []
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
        (but(trouble="no broker can be reached"), "trouble", "no broker can be reached"),
        (
            replace(HEALTHY, oldest=OldestView(5, "2026-11-21T16:44:59Z", 900.1)),
            "old",
            "has waited for 15 min 0 s, longer than 15 min 0 s",
        ),
        (but(full=[FULL]), "full", "the spool is full"),
        (replace(HEALTHY, room=RoomView(1000, 10, 0.99)), "filling", "the spool is full in 59 min 24 s"),
        (
            replace(HEALTHY, quarter_hour=RateView(890, 1, 1, 0.1)),
            "discards",
            "89 messages were discarded in the last 14 min 50 s",
        ),
        (but(disk="the disk refuses"), "disk", "the disk refuses"),
        (replace(HEALTHY, marked=False), "marks", "the marks cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_condition(report: Report, condition: str, words: str) -> None:
    """One complaint, in one sentence."""
    (one,) = complaints(report, Limits())
    assert one.condition == condition
    assert words in one.sentence
    assert "\n" not in one.sentence


def test_limits() -> None:
    """--max-age and --full-within are the caller's; a spool that is full does not fill as well."""
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
