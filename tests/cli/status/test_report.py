"""The report of `brucectl status`: rates, a bad disk, what jobs have written down, what is late."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.status.report import _rate, look_once
from dispatch.topic_settings import Lateness, write_lateness
from spool.format.wire import encode
from spool.log.recovery import boot_id
from spool.marks.outcome_file import write_outcomes
from spool.shared.runtime import runtime_directory, shared_state_path
from spool.shared.state import Change, Field, SharedState
from status.health import Limits, complaints, too_late
from tests.cli.commands.test_status import check_shape, shown
from tests.cli.program import run
from tests.daemon import RunningBruce
from tests.spool.fixture import SpoolFixture
from tests.status.test_health import HEALTHY


def test_rates(bruce: RunningBruce) -> None:
    """All messages since the daemon began are in its rates; a single discard makes it unhealthy."""
    bruce.send([*(encode(b"t", b"%d" % n) for n in range(30)), b"short"])
    seen: list[dict[str, Any]] = []

    def told() -> bool:
        seen[:] = [shown(bruce)]
        rate = seen[0]["rates"]["quarter_hour"]
        return rate is not None and round(rate["delivered"] * rate["seconds"]) >= 30

    bruce.await_true(told)
    (report,) = seen
    check_shape(report)
    for rate in report["rates"].values():
        assert list(rate) == ["seconds", "received", "delivered", "discarded"]
        counts = [round(rate[count] * rate["seconds"]) for count in ("received", "delivered", "discarded")]
        assert counts == [31, 30, 1]
    assert [one["condition"] for one in report["unhealthy"]] == ["discards"]
    assert report["unhealthy"][0]["sentence"].startswith("1 message was discarded in the last ")
    room = report["room"]
    assert (room["capacity_bytes"], room["hours_until_full"]) == (256 * (256 << 10), None)


def test_one_discard_in_a_quarter_of_an_hour() -> None:
    """Rates are exact enough that one discard is not rounded away."""
    rate = _rate(Change(915.0, 10**9, 10**9, 1, 0))
    assert rate is not None
    assert rate.discarded > 0
    report = replace(HEALTHY, quarter_hour=rate, discarded_lately=1)
    assert [one.sentence for one in complaints(report, Limits())] == [
        "1 message was discarded in the last 15 min 15 s; see brucectl discards"
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({}, ""),
        ({Field.SYNC_ERROR: 5, Field.SUSPECT: 7}, "segment 7 could not be synced: Input/output error; "),
        ({Field.SYNC_ERROR: 30}, "the disk refuses what the spool asks of it: Read-only file system"),
        ({Field.RENEWED: 2}, "syncs have failed since the start: 2 segments were rewritten"),
    ],
    ids=["well", "suspect", "refused", "renewed"],
)
def test_a_bad_disk_in_words(tmp_path: Path, words: dict[Field, int], sentence: str) -> None:
    """The keeper's disk error is one sentence, in the table and in the JSON."""
    spool = SpoolFixture(tmp_path)
    spool.crash()
    path = shared_state_path(runtime_directory(), spool.identity.spool, boot_id())
    shared = SharedState(path)
    for word, value in words.items():
        shared.words[word] = value
    try:
        report = json.loads(run("status", "--json", "--spool", spool.layout.directory).stdout)
        table = run("status", "--spool", spool.layout.directory).stdout
    finally:
        path.unlink()
    check_shape(report)
    assert (report["disk"] or "").startswith(sentence)
    assert (report["disk"] is None) is (sentence == "")
    assert (report["disk"] or "") in table


def test_what_jobs_tell(tmp_path: Path) -> None:
    """Outcome files not yet imported are counted by their heads; files without such a head count nothing."""
    spool = SpoolFixture(tmp_path)
    spool.fill(4)
    spool.step()
    spool.crash()
    assert "jobs have written down" not in run("status", "--spool", spool.layout.directory).stdout
    outcomes = spool.layout.outcomes / "job"
    outcomes.mkdir(parents=True)
    for first in (0, 3):
        numbers = np.arange(first, first + 3)
        write_outcomes(outcomes, "task", spool.identity.spool, numbers, np.zeros(3, np.int32))
    (outcomes / "none.out").write_bytes(b"x" * 100)
    report = json.loads(run("status", "--json", "--spool", spool.layout.directory).stdout)
    check_shape(report)
    assert (report["unadopted"], report["delivered"]) == (6, 0)
    assert "written down what became of 6 messages" in run("status", "--spool", spool.layout.directory).stdout


HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize(
    ("hours", "stamped_hours", "late"),
    [
        ({"stuck": 3, "busy": 0}, {}, ["stuck"]),
        ({"stuck": 3, "busy": 0}, {"stuck": 0}, []),
        ({"stuck": 3, "busy": 2}, {}, ["stuck", "busy"]),
        ({"kept": 3, "busy": 2}, {}, ["busy"]),
        ({"kept": 3, "busy": 0}, {}, []),
    ],
)
def test_what_is_late(
    tmp_path: Path, hours: dict[str, int], stamped_hours: dict[str, int], late: list[str]
) -> None:
    """Each topic by its own oldest message, and that message's own timestamp; not by the spool's oldest."""
    spool, now_ns = SpoolFixture(tmp_path / "spool"), time.time_ns()
    for topic, age in hours.items():
        stamp_ms = (now_ns - HOUR_NS * stamped_hours.get(topic, age)) // 10**6
        for number in range(3):
            spool.append(
                [encode(topic.encode(), b"v", timestamp=stamp_ms)],
                received_ns=now_ns - HOUR_NS * age + number,
            )
    spool.step()
    spool.crash()
    write_lateness(spool.layout, {topic: Lateness(3600.0, None) for topic in (b"stuck", b"busy")})
    report = look_once(spool.layout.directory, None)
    assert [one.topic.decode() for one in too_late(report.lateness, report.oldest_records)] == late
    assert ("late" in [one.condition for one in complaints(report, Limits())]) is bool(late)
