"""The verdicts of storm and soak on planted faults, in Kafka or in the totals: each is seen, no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from tests.tools.test_verify import message
from tools.soaks.options import SoakOptions
from tools.soaks.soak import FULL, Soak
from tools.storms.evidence import Evidence
from tools.storms.options import StormOptions
from tools.storms.run import StormRun

SENT = 4
REPORT = {"senders": [{"sender": 3, "sent": SENT}], "sent": SENT}
ONCE, LEAST = "exactly_once", "at_least_once"
TWICE = "1 messages are in Kafka more often than kills explain"
OTHER = "Kafka has other messages than were sent"


def fill(kafka: EmbeddedKafka, numbers: Sequence[int]) -> None:
    """Write these messages, each under its own sequence."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        value, timestamp, key = message(number)
        header = bytes(16) + number.to_bytes(8, "big")
        producer.produce("storm-0", value, key, 0, timestamp=timestamp, headers=[("bruce-id", header)])
    assert producer.flush(60) == 0


def storm_run_of(directory: Path, kafka: EmbeddedKafka, mode: str = LEAST) -> StormRun:
    """A run that is over, of which nothing but Kafka and the totals is looked at."""
    target, bruce = SimpleNamespace(bootstrap=kafka.bootstrap_servers), SimpleNamespace(spool=directory)
    options = StormOptions(topics=1, mode=mode)
    return StormRun(options, Evidence(directory / "e", heading={}), target, bruce)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "status", "mode", "says"),
    [
        (range(SENT), {}, LEAST, []),
        (range(SENT), {}, ONCE, []),
        ([0, 1, 2, 3, 1], {}, LEAST, [TWICE]),
        ([0, 1, 2, 3, 1], {}, ONCE, [TWICE, "1 duplicates, exactly once"]),
        ([0, 1, 3], {}, LEAST, [OTHER]),
        (range(SENT), {"received": SENT + 1}, LEAST, ["received 5, but 4 were sent"]),
        (range(SENT), {"discarded": {"damaged": 1}}, LEAST, ["discarded: {'damaged': 1}"]),
    ],
)
def test_a_storm(
    tmp_path: Path, numbers: Sequence[int], status: dict[str, Any], mode: str, says: list[str]
) -> None:
    """A loss, a duplicate that no kill explains, totals that are wrong."""
    with EmbeddedKafka(brokers=1, topics=[("storm-0", 1)]) as kafka:
        fill(kafka, numbers)
        parts = storm_run_of(tmp_path, kafka, mode)
        parts.judge(REPORT, {"received": SENT, "discarded": {}, **status})
    assert parts.evidence.violations == says


@pytest.mark.parametrize(
    ("numbers", "discarded", "says"),
    [
        ([0, 1, 3], {FULL: 1}, []),
        ([0, 1], {FULL: 1}, ["2 are not in Kafka"]),
        (range(SENT), {FULL: 1}, ["0 are not in Kafka"]),
        (
            [0, 1],
            {FULL: 1, "damaged": 1},
            ["discarded: {'damaged': 1, 'spool_full': 1}", "2 are not in Kafka"],
        ),
        ([0, 1, 7], {FULL: 2}, [OTHER]),
    ],
)
def test_a_soak(tmp_path: Path, numbers: Sequence[int], discarded: dict[str, int], says: list[str]) -> None:
    """Messages that are not in Kafka were discarded, for want of room, and counted."""
    with EmbeddedKafka(brokers=1, topics=[("storm-0", 1)]) as kafka:
        fill(kafka, numbers)
        parts = storm_run_of(tmp_path, kafka)
        soak = Soak(parts, SoakOptions())
        soak._report = dict(REPORT)
        soak._judge({"received": SENT, "discarded": dict(sorted(discarded.items()))})
    found = parts.evidence.violations
    assert len(found) == len(says)
    assert all(one.startswith(words) for one, words in zip(found, says, strict=True))
