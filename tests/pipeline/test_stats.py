"""Statistics: what is measured is what was stored."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from spool.wire import encode
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
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


def test_command(spark: SparkSession, rig: Rig) -> None:
    """`brucectl spark stats --json` has the figures, and what was discarded at intake, by reason."""
    store(rig, 0, 3)
    rig.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    rig.step()
    rig.crash()
    command = [*BRUCECTL, "spark", "stats", str(rig.options.directory)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["total"]["messages"] == 4
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == [("", 5)]
