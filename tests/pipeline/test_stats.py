"""Statistics: what is measured is what was stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.discard_hours import discard_hours
from spool.catalogue import Catalogue
from spool.changes import Changes, Discard
from spool.marks import Marks
from spool.refused import HOUR_NS
from spool.wire import encode
from tests.pipeline.conftest import Done
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 10**9


def store(rig: Rig, second: int, count: int, **message: object) -> None:
    """So many messages of a second, counted from noon."""
    datagrams = [encode(b"orders", b"v" * 10, **message) for _ in range(count)]  # type: ignore[arg-type]
    rig.append(datagrams, received_ns=NOON + second * 10**9)


def test_hours_peaks_sizes_and_keys(spark: SparkSession, rig: Rig) -> None:
    """By hour and topic: counts, bytes of keys and values, the busiest second, and the most frequent key."""
    from pipeline.stats_report import run_stats

    store(rig, 0, 5, key=b"even")
    store(rig, 1, 9, key=b"hot")
    store(rig, 3599, 2, partition_key=7)
    store(rig, 3600, 4, key=b"\xff")
    rig.append([encode(b"views", b"")], received_ns=NOON)
    rig.step()
    found = run_stats(spark, [str(rig.options.directory)])
    orders, views = found["topics"]
    hours = [(hour["hour"], hour["messages"], hour["peak"]) for hour in orders["hours"]]
    assert hours == [("2026-03-01T12:00:00Z", 16, 9), ("2026-03-01T13:00:00Z", 4, 4)]
    assert (orders["messages"], orders["peak"], orders["keys"]) == (20, 9, 4)
    assert orders["bytes"] == 20 * 10 + 5 * 4 + 9 * 3 + 4 * 1
    assert (orders["median_bytes"], orders["most_bytes"]) == (13, 14)
    assert orders["top_keys"][:2] == [{"key": "hot", "messages": 9}, {"key": "even", "messages": 5}]
    assert (views["messages"], views["bytes"], views["keys"], views["top_keys"]) == (1, 0, 0, [])
    assert found["total"]["messages"] == 21


def test_one_topic(spark: SparkSession, rig: Rig) -> None:
    """Others do not count."""
    from pipeline.stats_report import run_stats

    store(rig, 0, 3)
    rig.append([encode(b"views", b"")])
    rig.step()
    found = run_stats(spark, [str(rig.options.directory)], ["views"])
    assert [topic["topic"] for topic in found["topics"]] == ["views"]
    assert found["total"]["messages"] == 1


def test_discards_by_hour(rig: Rig) -> None:
    """What frames refused, and what the marks say of stored messages, by the hour of reception.

    Of a sealed segment too, an hour of which ends between two of its marks.
    """
    rig.append([], refused={1: (2, b"\0")}, received_ns=NOON)
    for second in (0, 3599, 3600, 7200):
        store(rig, second, 10)
    rig.append([encode(b"orders", b"v")], refused={1: (5, b"\0")}, received_ns=NOON + 7300 * 10**9)
    rig.stop()
    marks = Marks(rig.layout.delivery, Catalogue(rig.layout))
    marks.commit(Changes(floor=0, discarded=[Discard(np.array([5, 19, 20, 30, 39]), 15, b"orders", NOON)]))
    marks.close()
    noon = NOON // HOUR_NS
    assert discard_hours(rig.layout) == {
        (noon, 1): 2,
        (noon + 2, 1): 5,
        (noon, 15): 2,
        (noon + 1, 15): 1,
        (noon + 2, 15): 2,
    }


def test_command(job: Callable[..., Done], rig: Rig) -> None:
    """`brucectl spark stats --json` has the figures, and what was discarded at intake, by reason."""
    store(rig, 0, 3)
    rig.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    rig.step()
    rig.crash()
    done = job("stats", rig.options.directory, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["total"]["messages"] == 4
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == [("", 5)]
    assert [(row["reason"], row["messages"]) for row in found["discard_hours"]] == [
        (found["discards"][0]["reason"], 5)
    ]
